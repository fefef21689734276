"""Every endpoint except chat, through both entry points: responses, engine requests and usage."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

import hearth.celery  # noqa: F401 - whoever sends a task needs the app configured first
from gateway import tasks
from gateway.protocols.endpoint_table import ENDPOINTS
from gateway.streaming.engine_stream import STREAM_BROKEN
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.protocol_replies import (
    COUNT,
    EMBEDDINGS,
    MESSAGE,
    MESSAGE_EVENTS,
    RESPONSE,
    RESPONSE_EVENTS,
    STREAMS,
    TOKENS,
    every_protocol,
)
from tests.gateway.fixtures.scripted_app import hang_up, saying, streaming
from tests.gateway.fixtures.tenants import DOORS, MODEL, Gateway, in_database, until

pytestmark = pytest.mark.parametrize("gateway", DOORS, indirect=True)

HELLO = [{"role": "user", "content": "Hello"}]
RESPONSES: dict[str, Any] = {"model": MODEL, "input": "Hello", "temperature": 0}
MESSAGES: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 16, "temperature": 0}
COUNTED: dict[str, Any] = {"model": MODEL, "messages": HELLO}
EMBED: dict[str, Any] = {"model": MODEL, "input": ["Hello", "there"]}
TOKENIZE: dict[str, Any] = {"model": MODEL, "prompt": "Hello"}
DETOKENIZE: dict[str, Any] = {"model": MODEL, "tokens": [1, 2]}
#: Path, body, answer, and whether it is metered.
ASKED = [
    ("/v1/responses", RESPONSES, RESPONSE, True),
    ("/v1/responses/input_tokens", RESPONSES, {"object": "response.input_tokens", "input_tokens": 3}, False),
    ("/v1/messages", MESSAGES, MESSAGE, True),
    ("/v1/messages/count_tokens", COUNTED, COUNT, False),
    ("/v1/embeddings", EMBED, EMBEDDINGS, True),
    ("/v1/tokenize", TOKENIZE, TOKENS, False),
    ("/v1/detokenize", DETOKENIZE, {"prompt": "Hello"}, False),
]


@pytest.fixture(autouse=True)
def every_endpoint_answers(gateway: Gateway) -> None:
    """Let the engines speak every protocol."""
    gateway.let_all_say(every_protocol)


@pytest.mark.parametrize(("path", "body", "answer", "metered"), ASKED)
async def test_an_answer_is_passed_on_and_metered_as_its_protocol_tells(
    gateway: Gateway, path: str, body: dict[str, Any], answer: Any, metered: bool
) -> None:
    got = await gateway.ask(body, path=path, headers={"cache-control": "no-store"})
    assert (got.status, got.json) == (200, answer)
    assert len(gateway.ends()) == metered
    if metered:
        (start,), (end,) = gateway.starts(), gateway.ends()
        completion = 0 if path == "/v1/embeddings" else 3
        cached = 0 if path == "/v1/embeddings" else 4
        assert (start.endpoint, start.model_name, end.state) == (path, MODEL, "complete")
        assert (end.prompt_tokens, end.cached_prompt_tokens, end.completion_tokens) == (12 - cached, cached, completion)
        assert end.finish_reason == ("stop" if completion else "")
    await gateway.idle()


@pytest.mark.parametrize(("path", "body", "answer", "metered"), ASKED)
async def test_each_tenant_asks_in_its_own_part_of_the_cache_where_there_is_one(
    gateway: Gateway, path: str, body: dict[str, Any], answer: Any, metered: bool
) -> None:
    bad = {"cache_salt": "mine", "priority": -1, "vllm_xargs": {"a": 1}, "session_id": "s", "request_id": "r"}
    for key in (gateway.world.acme.secret, gateway.world.globex.secret):
        assert (await gateway.ask({**body, **bad}, path=path, key=key)).status == 200
    first, second = gateway.bodies()
    assert ("cache_salt" in first) == ("cache_salt" in second) == metered
    assert not metered or first["cache_salt"] != second["cache_salt"] != "mine"
    assert not set(first) & {"priority", "vllm_xargs", "session_id", "request_id"}


@pytest.mark.parametrize(("path", "body"), [("/v1/responses", RESPONSES), ("/v1/messages", MESSAGES)])
async def test_a_stream_is_passed_on_unchanged_and_metered_at_its_end(
    gateway: Gateway, path: str, body: dict[str, Any]
) -> None:
    got = await gateway.ask({**body, "stream": True}, path=path)
    assert (got.status, got.body) == (200, b"".join(STREAMS[path]))
    assert got.answer_headers["x-cache"] == "miss"
    (end,) = gateway.ends()
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.completion_tokens) == (8, 4, 3)
    assert (end.state, end.tokens_source, end.finish_reason) == ("complete", "engine", "stop")


@pytest.mark.parametrize(
    ("path", "body", "events", "tokens"),
    [("/v1/responses", RESPONSES, RESPONSE_EVENTS[:5], 1), ("/v1/messages", MESSAGES, MESSAGE_EVENTS[:4], 2)],
)
async def test_a_stream_that_breaks_ends_with_an_error_of_its_protocol_and_costs_what_was_sent(
    gateway: Gateway, path: str, body: dict[str, Any], events: list[bytes], tokens: int
) -> None:
    gateway.let_all_say(streaming(events, cut=True))
    got = await gateway.ask({**body, "stream": True}, path=path)
    assert got.body.startswith(b"".join(events))
    assert got.events[-1].startswith(b"event: error\n")
    told = orjson.loads(got.events[-1].partition(b"data: ")[2])
    assert told["type"] == "error"
    assert told.get("code", told.get("error")) in (
        "engine_failed_mid_stream",
        {"type": "api_error", "message": STREAM_BROKEN.message},
    )
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source, end.completion_tokens) == ("engine_error", "streamed", tokens)


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGES), ("/v1/embeddings", EMBED)])
async def test_what_must_be_the_same_again_is_kept_for_its_tenant_alone(
    gateway: Gateway, path: str, body: dict[str, Any]
) -> None:
    first = await gateway.ask(body, path=path)
    again = await gateway.ask(body, path=path)
    stranger = await gateway.ask(body, path=path, key=gateway.world.globex.secret)
    assert [one.answer_headers["x-cache"] for one in (first, again, stranger)] == ["miss", "hit", "miss"]
    assert (first.body, len(gateway.bodies())) == (again.body, 2)
    avoided = gateway.ends()[1]
    assert avoided.avoided_prompt_tokens + avoided.avoided_cached_prompt_tokens == 12


@pytest.mark.parametrize(("path", "body"), [("/v1/tokenize", TOKENIZE), ("/v1/messages/count_tokens", COUNTED)])
async def test_what_is_never_kept_says_so(gateway: Gateway, path: str, body: dict[str, Any]) -> None:
    for _ in range(2):
        got = await gateway.ask(body, path=path)
        assert (got.answer_headers["x-cache"], got.answer_headers["x-cache-reason"]) == ("bypass", "endpoint")
    assert len(gateway.bodies()) == 2


async def test_no_response_is_stored_or_read(gateway: Gateway) -> None:
    await gateway.ask({**RESPONSES, "store": True}, path="/v1/responses")
    assert gateway.bodies()[0]["store"] is False
    for field, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True)):
        got = await gateway.ask({**RESPONSES, field: value}, path="/v1/responses")
        assert (got.status, got.error["code"], got.error["param"]) == (400, "unsupported_value", field)
    for method, path in (("GET", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/cancel")):
        got = await gateway.ask(method=method, path=path)
        assert (got.status, got.error["code"]) == (404, "response_not_stored")
    compacted = await gateway.ask(RESPONSES, path="/v1/responses/compact")
    assert (compacted.status, compacted.error["code"]) == (404, "unknown_path")
    assert "does not compact" in compacted.error["message"]
    assert len(gateway.bodies()) == 1


async def test_a_count_of_input_tokens_keeps_no_state_and_cannot_be_streamed(gateway: Gateway) -> None:
    path = "/v1/responses/input_tokens"
    stored = await gateway.ask({**RESPONSES, "previous_response_id": "resp_1"}, path=path)
    assert (stored.status, stored.error["param"]) == (400, "previous_response_id")
    streamed = await gateway.ask({**RESPONSES, "stream": True}, path=path)
    assert (streamed.status, streamed.error["param"]) == (400, "stream")
    assert gateway.bodies() == []


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
        ({"tools": [{"name": "f", "input_schema": {"type": ["object"]}}]}, "tools[0].input_schema.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}, "tools": []}, "tool_choice"),
    ],
)
async def test_tools_that_no_call_can_follow_never_reach_an_engine(
    gateway: Gateway, changes: dict[str, Any], param: str
) -> None:
    got = await gateway.ask({**MESSAGES, **changes}, path="/v1/messages")
    assert (got.status, got.json["error"]["type"]) == (400, "invalid_request_error")
    assert f"'{param}'" in got.json["error"]["message"]
    assert gateway.bodies() == []


async def test_anthropics_key_header_and_error_envelope_are_understood(gateway: Gateway) -> None:
    secret = gateway.world.acme.secret
    headers = {"authorization": "", "x-api-key": secret, "anthropic-version": "2023-06-01"}
    got = await gateway.ask(MESSAGES, path="/v1/messages", headers=headers)
    assert (got.status, got.answer_headers["request-id"]) == (200, got.answer_headers["x-request-id"])
    wrong = await gateway.ask(MESSAGES, path="/v1/messages", key="hk_wrong")
    assert (wrong.status, wrong.json["type"], wrong.json["error"]["type"]) == (401, "error", "authentication_error")
    assert set(wrong.json["error"]) == {"type", "message"}
    missing = await gateway.ask({**MESSAGES, "model": "nobody"}, path="/v1/messages/count_tokens")
    assert (missing.status, missing.json["error"]["type"]) == (404, "not_found_error")
    unknown = await gateway.ask(MESSAGES, path="/v1/messages/nothing")
    assert (unknown.status, unknown.json["error"]["type"]) == (404, "not_found_error")


async def test_a_body_that_is_too_large_is_refused_in_the_words_of_its_path(gateway: Gateway) -> None:
    got = await gateway.ask(b" " * (11 << 20), path="/v1/messages")
    assert (got.status, got.json["type"], got.json["error"]["type"]) == (413, "error", "request_too_large")


async def test_marks_of_what_to_cache_are_accepted_everywhere_and_do_not_part_two_turns(gateway: Gateway) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "Long context."}
    tool = {"name": "f", "input_schema": {"type": "object"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{**text, **mark}], **mark}
    marked = {
        **MESSAGES,
        "system": [{**text, **mark}],
        "tools": [{**tool, **mark}],
        "messages": [{"role": "user", "content": [{**text, **mark}, result]}],
    }
    assert (await gateway.ask(marked, path="/v1/messages")).status == 200
    (body,) = gateway.bodies()
    assert b"cache_control" not in orjson.dumps(body)
    assert (body["system"], body["tools"]) == ([text], [tool])
    assert body["messages"][0]["content"][0] == text


@pytest.mark.parametrize(("path", "body", "answer", "metered"), ASKED)
async def test_a_model_that_lacks_an_endpoint_says_so_and_costs_nothing(
    gateway: Gateway, path: str, body: dict[str, Any], answer: Any, metered: bool
) -> None:
    gateway.let_all_say(saying({"detail": "Not Found"}, status=404))
    got = await gateway.ask(body, path=path)
    assert got.status == 400
    assert f"does not support {path}" in got.json["error"]["message"]
    assert len(gateway.bodies()) == 1
    assert all(end.state == "refused" for end in gateway.ends())
    gateway.let_all_say(every_protocol)
    assert (await gateway.ask(body, path=path)).status == 200


@pytest.mark.parametrize(("path", "body", "answer", "metered"), ASKED)
async def test_a_replica_that_fails_is_replaced_on_every_endpoint(
    gateway: Gateway, path: str, body: dict[str, Any], answer: Any, metered: bool
) -> None:
    gateway.engines[0].say = hang_up
    got = [await gateway.ask(body, path=path, headers={"cache-control": "no-store"}) for _ in range(2)]
    assert [one.json for one in got] == [answer] * 2


async def test_only_what_writes_tokens_streams(gateway: Gateway) -> None:
    for path in ("/v1/embeddings", "/v1/tokenize"):
        got = await gateway.ask({**EMBED, **TOKENIZE, "stream": True}, path=path)
        assert (got.status, got.error["code"], got.error["param"]) == (400, "invalid_value", "stream")


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
async def test_an_endpoint_takes_post_and_a_key(gateway: Gateway, path: str) -> None:
    got = await gateway.ask(method="GET", path=path)
    assert (got.status, got.answer_headers["allow"]) == (405, "POST")
    assert (await gateway.ask({}, path=path, headers={"authorization": ""})).status == 401


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": HELLO}, "max_completion_tokens"),
        ("/v1/chat/completions", {"messages": HELLO}, "max_tokens"),
        ("/v1/completions", {"prompt": "Hello"}, "max_tokens"),
        ("/v1/responses", RESPONSES, "max_output_tokens"),
        ("/v1/messages", MESSAGES, "max_tokens"),
    ],
)
async def test_no_more_tokens_are_asked_for_than_the_context_holds(
    gateway: Gateway, path: str, body: dict[str, Any], field: str
) -> None:
    gateway.let_all_say(saying(MESSAGE))
    for asked in (2049, 10**9, 2048, 5):
        await gateway.ask({"model": MODEL, **body, field: asked}, path=path, headers={"cache-control": "no-store"})
    assert [sent[field] for sent in gateway.bodies()] == [2048, 2048, 2048, 5]


async def test_models_are_listed_in_anthropics_words_to_its_clients(gateway: Gateway) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    listed = await gateway.ask(method="GET", path="/v1/models", headers=headers)
    (model,) = listed.json["data"]
    assert {**listed.json, "data": []} == {"data": [], "has_more": False, "first_id": MODEL, "last_id": MODEL}
    assert (model["type"], model["id"], model["display_name"], model["created_at"][-1]) == ("model", MODEL, MODEL, "Z")
    assert (await gateway.ask(method="GET", path=f"/v1/models/{MODEL}", headers=headers)).json == model


async def test_every_answer_says_where_its_time_went(gateway: Gateway) -> None:
    asked = [
        await gateway.ask(MESSAGES, path="/v1/messages"),
        await gateway.ask(MESSAGES, path="/v1/messages"),
        await gateway.ask({**MESSAGES, "stream": True}, path="/v1/messages", headers={"cache-control": "no-store"}),
        await gateway.ask({**MESSAGES, "model": "nobody"}, path="/v1/messages"),
        await gateway.ask(method="GET", path="/v1/models"),
    ]
    for got in asked:
        spent = _timing(got)
        assert list(spent) == ["admit", "queue", "engine", "total"]
        overhead = float(got.answer_headers["x-gateway-overhead-ms"])
        assert overhead == pytest.approx(spent["total"] - spent["engine"] - spent["queue"], abs=0.02)
        assert float(got.answer_headers["x-queue-ms"]) == spent["queue"] == 0
        names = [name for name, _ in got.sent[0]["headers"]]
        assert len(names) == len(set(names))
    assert [got.answer_headers.get("x-cache") for got in asked] == ["miss", "hit", "bypass", None, None]


async def test_a_replica_has_another_name_for_each_tenant(gateway: Gateway) -> None:
    session = {"x-session-id": "s", "cache-control": "no-store"}
    keys = (gateway.world.acme.secret, gateway.world.globex.secret)
    told = [
        {(await gateway.ask(MESSAGES, path="/v1/messages", key=key, headers=session)).answer_headers["x-replica"]}
        for key in keys
        for _ in range(2)
    ]
    assert told[0] == told[1] != told[2] == told[3]
    known = {str(replica.id) for replica in gateway.world.replicas}
    assert all(len(name) == 8 and name not in known for (name,) in told)


@pytest.mark.parametrize(("path", "body", "answer", "metered"), ASKED)
async def test_an_answer_may_be_fetched_later_by_its_tenant_alone(
    gateway: Gateway, path: str, body: dict[str, Any], answer: Any, metered: bool
) -> None:
    accepted = await gateway.ask(body, path=path, headers={"prefer": "respond-async"})
    assert (accepted.status, gateway.bodies()) == (202, [])
    try:
        await in_database(lambda: tasks.run_deferred(accepted.json["id"]))
    finally:
        await asyncio.to_thread(tasks.background.close)
    stranger = await gateway.ask(method="GET", path=accepted.json["url"], key=gateway.world.globex.secret)
    done = await gateway.ask(method="GET", path=accepted.json["url"])
    assert (stranger.status, done.status, done.json) == (404, 200, answer)
    assert len(gateway.ends()) == metered


async def test_none_of_a_clients_headers_reaches_an_engine(gateway: Gateway) -> None:
    sent = {
        "x-vllm-priority": "-100",
        "x-session-id": "mine",
        "x-request-id": "mine",
        "x-data-parallel-rank": "1",
        "endpoint-load-metrics-format": "json",
        "anthropic-beta": "mine",
        "cookie": "mine",
    }
    assert (await gateway.ask(MESSAGES, path="/v1/messages", headers=sent)).status == 200
    (heard,) = [headers for engine in gateway.engines for headers in engine.headers]
    assert not set(heard) & (set(sent) - {"x-request-id"})
    assert b"mine" not in orjson.dumps(heard)


async def test_the_wait_for_a_replica_is_told_apart_from_the_engines_work(gateway: Gateway) -> None:
    await in_database(tenants.stop_replicas)
    await until(lambda: not gateway.runtime.feed.snapshot.endpoints)
    waiting = asyncio.ensure_future(gateway.ask(MESSAGES, path="/v1/messages"))
    await until(lambda: gateway.held() == 1)
    await in_database(lambda: tenants.place(gateway.world, [engine.port for engine in gateway.engines]))
    got = await waiting
    assert got.json == MESSAGE
    spent = _timing(got)
    assert spent["queue"] > 0
    assert spent["queue"] + spent["engine"] <= spent["total"] + 0.02


def _timing(got: Exchange) -> dict[str, float]:
    """Return what ``server-timing`` says, milliseconds by name."""
    parts = (part.split(";dur=") for part in got.answer_headers["server-timing"].split(", "))
    return {name: float(spent) for name, spent in parts}
