"""The whole journey, through both doors: what the client gets, what the engine is asked, what is written down."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import orjson
import pytest

from billing.records import encode
from billing.wal_format import FRAME
from catalogue import registry as catalogue
from catalogue.registry import Description
from gateway.limits import MINUTE_US
from tenants import keys, registry
from tests.gateway import world
from tests.gateway.engines import (
    CHUNKS,
    USAGE,
    Say,
    answer,
    chunk,
    delta,
    events,
    hang_up,
    hello,
    saying,
    stream,
    streaming,
)
from tests.gateway.world import HELLO, MODEL, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

DOORS = [world.raw_door, world.view_door]
pytestmark = pytest.mark.parametrize("gateway", DOORS, indirect=True, ids=["raw", "view"])

STREAMED = {**HELLO, "stream": True}
WITH_USAGE = {**STREAMED, "stream_options": {"include_usage": True}}


def all_say(gateway: Gateway, say: Say) -> None:
    """Let every engine say this."""
    for engine in gateway.engines:
        engine.say = say


def asked(gateway: Gateway) -> int:
    """Return how many requests reached an engine."""
    return sum(len(engine.bodies) for engine in gateway.engines)


def text_of(told: list[bytes]) -> str:
    """Return the text that chunks tell."""
    chunks = [orjson.loads(event.removeprefix(b"data: ")) for event in told if event.startswith(b"data: {")]
    return "".join(c["delta"].get("content") or "" for one in chunks for c in one.get("choices", ()))


async def test_an_answer_is_metered_as_the_engine_reported_it(gateway: Gateway) -> None:
    got = await gateway.ask(headers={"x-request-id": "mine"})
    (start,), (end,) = gateway.starts(), gateway.ends()
    assert (got.status, got.json) == (200, answer())
    assert got.answer_headers["x-request-id"] == str(start.request_id) == str(end.request_id)
    assert got.answer_headers["x-client-request-id"] == start.client_request_id == "mine"
    assert got.answer_headers["x-cache"] == "miss"
    assert (start.tenant_id, start.project_id) == (gateway.world.acme.tenant.id, gateway.world.acme.project.id)
    assert (start.key_id, start.revision_id) == (gateway.world.acme.key.id, gateway.world.revision.id)
    assert (end.state, end.http_status, end.tokens_source) == ("complete", 200, "engine")
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.completion_tokens) == (8, 4, 3)
    assert gateway.loads() == [0, 0]


async def test_the_request_id_is_ours_whatever_the_client_sends(gateway: Gateway) -> None:
    first, second = [await gateway.ask(headers={"x-request-id": "same", "cache-control": "no-store"}) for _ in "ab"]
    ids = {first.answer_headers["x-request-id"], second.answer_headers["x-request-id"]}
    assert len(ids) == 2
    assert {UUID(one).version for one in ids} == {7}
    assert {headers["x-request-id"] for engine in gateway.engines for headers in engine.headers} == ids


async def test_the_same_question_again_is_answered_without_an_engine(gateway: Gateway) -> None:
    first = await gateway.ask()
    again = await gateway.ask({**dict(reversed(HELLO.items())), "user": "somebody"})
    assert (again.status, again.body, again.answer_headers["x-cache"]) == (200, first.body, "hit")
    assert again.answer_headers["age"] == "0"
    assert asked(gateway) == 1
    end = gateway.ends()[1]
    assert (end.cache_result, end.tokens_source, end.replica_id) == ("hit", "cache", None)
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.completion_tokens) == (0, 0, 0)
    assert (end.avoided_prompt_tokens, end.avoided_completion_tokens) == (12, 3)


async def test_a_strangers_same_question_goes_to_an_engine_under_another_salt(gateway: Gateway) -> None:
    await gateway.ask({**HELLO, "cache_salt": "mine"})
    other = await gateway.ask({**HELLO, "cache_salt": "mine"}, key=gateway.world.globex.secret)
    assert other.answer_headers["x-cache"] == "miss"
    salts = [body["cache_salt"] for engine in gateway.engines for body in engine.bodies]
    assert len(set(salts)) == 2
    assert all(len(salt) == 43 for salt in salts)


@pytest.mark.parametrize("first", [HELLO, STREAMED, WITH_USAGE], ids=["whole", "stream", "usage"])
@pytest.mark.parametrize("second", [HELLO, STREAMED, WITH_USAGE], ids=["whole", "stream", "usage"])
async def test_an_answer_of_either_shape_is_replayed_in_either(
    gateway: Gateway, first: dict[str, Any], second: dict[str, Any]
) -> None:
    await gateway.ask(first)
    hit = await gateway.ask(second)
    assert (hit.answer_headers["x-cache"], asked(gateway)) == ("hit", 1)
    if not second.get("stream"):
        assert hit.json["choices"][0]["message"]["content"] == "Hello"
        assert hit.json["usage"] == USAGE
        return
    assert hit.answer_headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (text_of(hit.events), hit.events[-1]) == ("Hello", b"data: [DONE]")
    assert any(b'"usage":{' in event for event in hit.events) == (second is WITH_USAGE)


async def test_a_stream_is_passed_on_event_by_event(gateway: Gateway) -> None:
    got = await gateway.ask(WITH_USAGE)
    assert got.events == [event.removesuffix(b"\n\n") for event in events()]
    got = await gateway.ask({**STREAMED, "temperature": 1})
    assert text_of(got.events) == "Hello"
    assert not any(b"usage" in event for event in got.events)


@pytest.mark.parametrize(
    ("mode", "body", "header", "reason"),
    [
        ("off", HELLO, "", "off"),
        ("deterministic", {**HELLO, "temperature": 1}, "", "sampled"),
        ("all", HELLO, "no-store", "no-store"),
        ("all", HELLO, "no-cache", "no-cache"),
    ],
)
async def test_a_question_that_may_not_be_answered_from_memory_says_why(
    gateway: Gateway, mode: str, body: dict[str, Any], header: str, reason: str
) -> None:
    await in_database(lambda: registry.set_policy(OPERATOR, gateway.world.acme.tenant, cache_mode=mode))
    await until(lambda: _policy(gateway).cache_mode == mode)
    headers = {"cache-control": header} if header else {}
    for _ in range(2):
        got = await gateway.ask(body, headers=headers)
        assert (got.answer_headers["x-cache"], got.answer_headers["x-cache-reason"]) == ("bypass", reason)
    assert asked(gateway) == 2
    assert [(end.cache_result, end.cache_reason) for end in gateway.ends()] == [("bypass", reason)] * 2
    after = await gateway.ask(body)
    assert (after.answer_headers["x-cache"] == "hit") == (reason == "no-cache")


async def test_a_replica_that_hangs_up_is_replaced_before_the_first_byte(gateway: Gateway) -> None:
    gateway.engines[0].say = hang_up
    answers = [await gateway.ask({**STREAMED, "temperature": 1, "n": n}) for n in (1, 2, 3, 4)]
    assert [text_of(got.events) for got in answers] == ["Hello"] * 4
    assert len(gateway.engines[0].bodies) == 1  # then it is passed over
    assert [end.state for end in gateway.ends()] == ["complete"] * 4
    assert len(gateway.starts()) == 5
    assert gateway.loads() == [0, 0]


async def test_a_replica_that_answers_500_is_replaced_and_passed_over(gateway: Gateway) -> None:
    gateway.engines[0].say = saying({"error": {"message": "out of memory"}}, status=500)
    for n in (1, 2, 3):
        assert (await gateway.ask({**HELLO, "n": n})).status == 200
    assert len(gateway.engines[0].bodies) == 1


async def test_a_request_that_every_replica_fails_on_shuts_nobody_out(gateway: Gateway) -> None:
    gateway.engines[0].say = hello
    all_say(gateway, saying({"error": {"message": "out of memory"}}, status=500))
    poison = await gateway.ask({**HELLO, "temperature": 1}, headers={"x-session-id": "s"})
    assert (poison.status, poison.error["code"], poison.error["type"]) == (502, "engine_failed", "api_error")
    assert "out of memory" not in poison.body.decode()
    all_say(gateway, hello)
    for n in (1, 2, 3, 4):
        await gateway.ask({**HELLO, "n": n})
    assert [len(engine.bodies) for engine in gateway.engines] == [3, 3]
    assert [end.state for end in gateway.ends()] == ["engine_error", *["complete"] * 4]
    assert gateway.loads() == [0, 0]


@pytest.mark.parametrize("status", [401, 403, 404, 405, 429, 302])
async def test_what_is_between_us_and_the_engine_is_not_told_as_the_clients_fault(
    gateway: Gateway, status: int
) -> None:
    all_say(gateway, saying({"error": {"message": "who are you"}}, status=status))
    got = await gateway.ask()
    assert (got.status, got.error["code"]) == (502, "engine_failed")
    assert [end.state for end in gateway.ends()] == ["engine_error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "document", "message", "code", "param"),
    [
        (400, {"error": {"message": "bad top_k", "param": "top_k"}}, "bad top_k", "invalid_request", "top_k"),
        (400, {"error": {"message": "bad", "param": {"a": 1}}}, "bad", "invalid_request", None),
        (400, {"error": "just a text"}, "just a text", "invalid_request", None),
        (422, {"detail": "not so"}, "not so", "invalid_request", None),
        (413, {}, "The engine refused the request.", "invalid_request", None),
        (400, [1], "The engine refused the request.", "invalid_request", None),
        (400, b"<html>", "The engine refused the request.", "invalid_request", None),
        (
            400,
            {"error": {"message": "This model's maximum context length is 2048 tokens."}},
            "This model's maximum context length is 2048 tokens.",
            "context_length_exceeded",
            None,
        ),
    ],
)
async def test_the_engines_verdict_on_a_request_comes_in_our_envelope_and_costs_nothing(
    gateway: Gateway, stream: bool, status: int, document: Any, message: str, code: str, param: str | None
) -> None:
    all_say(gateway, saying(document, status=status))
    got = await gateway.ask({**HELLO, "stream": stream})
    assert got.status == status
    assert got.error == {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    assert asked(gateway) == 1
    (end,) = gateway.ends()
    assert (end.state, end.http_status, end.prompt_tokens, end.completion_tokens) == ("refused", status, 0, 0)
    assert gateway.loads() == [0, 0]


async def test_the_salt_is_told_to_nobody(gateway: Gateway) -> None:
    async def repeat(request: Any, body: dict[str, Any]) -> Any:
        return await saying({"error": {"message": f"cannot read {body}"}}, status=400)(request, body)

    all_say(gateway, repeat)
    got = await gateway.ask()
    (salt,) = [body["cache_salt"] for engine in gateway.engines for body in engine.bodies]
    assert "cannot read" in got.error["message"]
    assert salt not in got.body.decode()


async def test_without_a_replica_the_client_is_told_to_come_back_and_nothing_is_written(gateway: Gateway) -> None:
    await in_database(world.stop_replicas)
    await until(lambda: not gateway.runtime.feed.view.endpoints)
    got = await gateway.ask()
    assert (got.status, got.error["code"], got.answer_headers["retry-after"]) == (503, "no_replica_ready", "5")
    assert gateway.records() == []


async def test_a_stream_that_breaks_off_ends_with_an_error_event_and_is_charged_as_far_as_it_came(
    gateway: Gateway,
) -> None:
    all_say(gateway, streaming(events(CHUNKS[:3], done=False), cut=True))
    got = await gateway.ask(STREAMED)
    assert text_of(got.events[:-1]) == "Hello"
    kind, data = got.events[-1].split(b"\n")
    assert kind == b"event: error"
    assert orjson.loads(data.removeprefix(b"data: "))["error"]["code"] == "engine_failed_mid_stream"
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source, end.completion_tokens) == ("engine_error", "streamed", 2)
    assert (await gateway.ask(STREAMED)).answer_headers["x-cache"] == "miss"


@pytest.mark.parametrize(
    "pieces",
    [
        [*events(CHUNKS[:3], done=False), b'data: {"error": {"message": "CUDA error at /opt/engine.cu:12"}}\n\n'],
        [*events(CHUNKS[:3], done=False), b'data: {"usage": nonsense\n\n'],
        [*events(CHUNKS[:3], done=False), b'data: ["usage"]\n\n'],
        events(CHUNKS[:3], done=False),
    ],
    ids=["error", "malformed", "list", "end"],
)
async def test_whatever_goes_wrong_in_a_stream_the_client_is_told_so_in_our_words(
    gateway: Gateway, pieces: list[bytes]
) -> None:
    all_say(gateway, streaming(pieces))
    got = await gateway.ask(STREAMED)
    assert got.events[-1].startswith(b"event: error\n")
    assert b"CUDA" not in got.body
    assert [end.state for end in gateway.ends()] == ["engine_error"]
    assert gateway.loads() == [0, 0]


async def test_a_stream_without_usage_is_charged_by_what_was_passed_on(gateway: Gateway) -> None:
    all_say(gateway, streaming(events(CHUNKS[:4])))
    got = await gateway.ask(STREAMED)
    assert got.events[-1] == b"data: [DONE]"
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source, end.completion_tokens) == ("complete", "streamed", 3)


@pytest.mark.parametrize("document", [b"{", b"", b"[]", b'"text"', b"null"])
async def test_an_answer_that_cannot_be_read_is_a_502_and_charged_nothing(gateway: Gateway, document: bytes) -> None:
    all_say(gateway, saying(document))
    got = await gateway.ask()
    assert (got.status, got.error["code"]) == (502, "engine_failed")
    (end,) = gateway.ends()
    assert (end.state, end.prompt_tokens, end.completion_tokens) == ("engine_error", 0, 0)
    assert gateway.loads() == [0, 0]


@pytest.mark.parametrize(
    "document",
    [
        answer(choices=[{"index": 0, "message": {"role": "assistant", "content": "Hel"}, "finish_reason": "abort"}]),
        answer(usage=None),
        answer(choices=[]),
    ],
    ids=["aborted", "no usage", "no choices"],
)
async def test_an_answer_that_is_not_whole_is_passed_on_but_not_kept(
    gateway: Gateway, document: dict[str, Any]
) -> None:
    all_say(gateway, saying(document))
    assert (await gateway.ask()).json == document
    assert (await gateway.ask()).answer_headers["x-cache"] == "miss"


async def test_an_aborted_stream_is_passed_on_but_not_kept(gateway: Gateway) -> None:
    aborted = chunk({"index": 0, "delta": {}, "finish_reason": "abort"})
    all_say(gateway, streaming(events([*CHUNKS[:2], aborted, CHUNKS[-1]])))
    assert (await gateway.ask(STREAMED)).events[-1] == b"data: [DONE]"
    assert (await gateway.ask(STREAMED)).answer_headers["x-cache"] == "miss"


async def test_what_another_revision_answers_is_not_kept_under_the_new_ones_name(gateway: Gateway) -> None:
    described = Description(
        name=MODEL, source="/models/new", engine="simulated", context_length_tokens=2048, public=True
    )
    platform = await in_database(registry.platform_tenant)
    revision = await in_database(lambda: catalogue.register(OPERATOR, platform, described))
    await until(lambda: _model(gateway).revision_id == revision.id)
    for _ in range(2):
        got = await gateway.ask()
        assert (got.status, got.answer_headers["x-cache"]) == (200, "miss")
    assert asked(gateway) == 2


async def test_a_session_stays_on_its_replica(gateway: Gateway) -> None:
    for turn in range(6):
        got = await gateway.ask({**HELLO, "temperature": 1, "seed": turn}, headers={"x-session-id": "s"})
        assert got.answer_headers["x-route"] == "session"
    assert sorted(len(engine.bodies) for engine in gateway.engines) == [0, 6]


async def test_a_large_body_reaches_the_engine_whole(gateway: Gateway) -> None:
    text = "long " * 400_000
    got = await gateway.ask({**HELLO, "messages": [{"role": "user", "content": text}]})
    assert got.status == 200
    (body,) = [body for engine in gateway.engines for body in engine.bodies]
    assert body["messages"][0]["content"] == text


@contextmanager
def full_disk(gateway: Gateway, *, room_bytes: int = 0) -> Iterator[None]:
    """Let no file of this process grow beyond what the usage log has now, and some room."""
    (segment,) = gateway.wal.glob("*.wal")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (segment.stat().st_size + room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
async def test_what_cannot_be_metered_is_not_served(gateway: Gateway, body: dict[str, Any]) -> None:
    with full_disk(gateway):
        got = await gateway.ask(body)
    assert (got.status, got.error["code"]) == (503, "usage_log_unavailable")
    assert str(gateway.wal) not in got.body.decode()
    assert (asked(gateway), gateway.records(), gateway.loads()) == (0, [], [0, 0])
    assert (await gateway.ask(body)).status == 200


@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
async def test_an_end_that_cannot_be_written_is_not_called_a_success(gateway: Gateway, body: dict[str, Any]) -> None:
    await gateway.ask({**body, "temperature": 1})
    start_bytes = FRAME.size + len(encode(gateway.starts()[0]))
    with full_disk(gateway, room_bytes=start_bytes + 8):  # a START fits, an END does not
        got = await gateway.ask(body)
    assert (len(gateway.starts()), len(gateway.ends())) == (2, 1)
    assert b"usage_log_unavailable" in got.body
    assert b"[DONE]" not in got.body
    assert gateway.loads() == [0, 0]


async def test_a_hit_that_cannot_be_metered_is_not_served(gateway: Gateway) -> None:
    await gateway.ask()
    with full_disk(gateway):
        got = await gateway.ask()
    assert (got.status, got.error["code"]) == (503, "usage_log_unavailable")
    assert (await gateway.ask()).answer_headers["x-cache"] == "hit"


async def test_a_long_stream_writes_down_how_far_it_is(gateway: Gateway) -> None:
    words = [delta(f"w{number} ") for number in range(5)]
    all_say(gateway, streaming(events([CHUNKS[0], *words, *CHUNKS[3:]]), pause_seconds=0.3))
    await gateway.ask(STREAMED)
    counted = [record.completion_tokens for record in gateway.progress()]
    assert counted[0] == 1
    assert 2 <= len(counted) <= 3
    assert counted == sorted(counted)
    assert gateway.ends()[0].completion_tokens == 3  # the engine's own count is the one that is charged


async def test_a_tenants_limit_holds_for_hits_and_misses_alike(gateway: Gateway) -> None:
    await in_database(lambda: registry.set_policy(OPERATOR, gateway.world.acme.tenant, requests_per_minute=3))
    await until(lambda: _policy(gateway).requests_per_minute == 3)
    got = [await gateway.ask() for _ in range(4)]
    assert [one.status for one in got] == [200, 200, 200, 429]
    assert [one.answer_headers["x-ratelimit-remaining-requests"] for one in got] == ["2", "1", "0", "0"]
    assert (got[3].error["code"], got[3].error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(got[3].answer_headers["retry-after"]) <= MINUTE_US / 3e6
    assert len(gateway.ends()) == 3
    assert (await gateway.ask(key=gateway.world.globex.secret)).status == 200


async def test_a_key_without_the_scope_or_the_model_is_refused(gateway: Gateway) -> None:
    project = gateway.world.acme.project
    reader = await in_database(lambda: keys.issue(OPERATOR, project, name="r", scopes=("management:read",)))
    other = await in_database(lambda: keys.issue(OPERATOR, project, name="o", allowed_models=("other",)))
    refused = [await gateway.ask(key=issued.secret) for issued in (reader, other)]
    assert [(one.status, one.error["code"]) for one in refused] == [(403, "scope_missing"), (403, "model_not_allowed")]
    listed = await gateway.ask(key=other.secret, method="GET", path="/v1/models", pieces=(b"",))
    assert listed.json == {"object": "list", "data": []}
    one = await gateway.ask(key=other.secret, method="GET", path=f"/v1/models/{MODEL}", pieces=(b"",))
    assert (one.status, one.error["code"]) == (404, "model_not_found")
    assert gateway.records() == []


async def test_models_are_listed_and_described_in_openais_format(gateway: Gateway) -> None:
    listed = await gateway.ask(method="GET", path="/v1/models")
    (model,) = listed.json["data"]
    assert listed.json["object"] == "list"
    assert (model["id"], model["object"], model["owned_by"]) == (MODEL, "model", "platform")
    assert (await gateway.ask(method="GET", path=f"/v1/models/{MODEL}")).json == model


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_json", None),
        ({"messages": HELLO["messages"]}, 400, "missing_field", "model"),
        ({**HELLO, "model": "nobody"}, 404, "model_not_found", "model"),
        ({**HELLO, "temperature": "hot"}, 400, "invalid_type", "temperature"),
    ],
)
async def test_a_bad_request_is_answered_with_what_is_wrong_and_leaves_no_trace(
    gateway: Gateway, body: Any, status: int, code: str, param: str | None
) -> None:
    got = await gateway.ask(body)
    assert (got.status, got.error["code"], got.error["param"]) == (status, code, param)
    assert got.answer_headers["x-request-id"]
    assert (asked(gateway), gateway.records()) == (0, [])


async def test_many_streams_at_once_are_each_their_own(gateway: Gateway) -> None:
    async def repeat(request: Any, body: dict[str, Any]) -> Any:
        words = [delta(f"{body['seed']},") for _ in range(5)]
        return await stream(request, events([CHUNKS[0], *words, *CHUNKS[3:]]), pause_seconds=0.001)

    all_say(gateway, repeat)
    got = await asyncio.gather(*[gateway.ask({**STREAMED, "seed": seed}) for seed in range(30)])
    assert [text_of(one.events) for one in got] == [f"{seed}," * 5 for seed in range(30)]
    assert len(gateway.ends()) == 30
    assert gateway.loads() == [0, 0]


def _policy(gateway: Gateway) -> registry.Policy:
    return gateway.runtime.feed.view.callers.caller(gateway.world.acme.key.public_id).policy


def _model(gateway: Gateway) -> catalogue.ServedModel:
    found = gateway.runtime.feed.view.catalogue.models.get(MODEL)
    assert found is not None
    return found
