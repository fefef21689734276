"""The whole pipeline, through both entry points: responses, engine requests and usage records."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from catalogue import registry as catalogue
from catalogue.registry import Description
from tenants import registry
from tenants.ids import PLATFORM_SLUG
from tenants.keys import keys
from tenants.policy.limits import LimitValues, set_limit
from tenants.policy.policy_target import PolicyTarget
from tenants.snapshot.snapshot import Caller
from tests.gateway.fixtures.scripted_app import CHUNKS, USAGE, answer, delta, events, stream, text_of
from tests.gateway.fixtures.tenants import DOORS, HELLO, MODEL, STREAMED, WITH_USAGE, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

pytestmark = pytest.mark.parametrize("gateway", DOORS, indirect=True)


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
    await gateway.idle()


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
    assert len(gateway.bodies()) == 1
    end = gateway.ends()[1]
    assert (end.cache_result, end.tokens_source, end.replica_id) == ("hit", "cache", None)
    assert (end.prompt_tokens, end.cached_prompt_tokens, end.completion_tokens) == (0, 0, 0)
    assert (end.avoided_prompt_tokens, end.avoided_cached_prompt_tokens, end.avoided_completion_tokens) == (8, 4, 3)
    assert str(end.source_id) == first.answer_headers["x-request-id"]


async def test_a_strangers_same_question_goes_to_an_engine_under_another_salt(gateway: Gateway) -> None:
    await gateway.ask({**HELLO, "cache_salt": "mine"})
    other = await gateway.ask({**HELLO, "cache_salt": "mine"}, key=gateway.world.globex.secret)
    assert other.answer_headers["x-cache"] == "miss"
    salts = [body["cache_salt"] for body in gateway.bodies()]
    assert len(set(salts)) == 2
    assert all(len(salt) == 43 for salt in salts)


@pytest.mark.parametrize("first", [HELLO, STREAMED, WITH_USAGE], ids=["whole", "stream", "usage"])
@pytest.mark.parametrize("second", [HELLO, STREAMED, WITH_USAGE], ids=["whole", "stream", "usage"])
async def test_an_answer_of_either_shape_is_replayed_in_either(
    gateway: Gateway, first: dict[str, Any], second: dict[str, Any]
) -> None:
    await gateway.ask(first)
    hit = await gateway.ask(second)
    assert (hit.answer_headers["x-cache"], len(gateway.bodies())) == ("hit", 1)
    assert (hit.answer_headers["cache-control"], hit.answer_headers["x-content-type-options"]) == (
        "no-store",
        "nosniff",
    )
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
    await until(lambda: _caller(gateway).policy.cache_mode == mode)
    headers = {"cache-control": header} if header else {}
    for _ in range(2):
        got = await gateway.ask(body, headers=headers)
        assert (got.answer_headers["x-cache"], got.answer_headers["x-cache-reason"]) == ("bypass", reason)
    assert len(gateway.bodies()) == 2
    assert [(end.cache_result, end.cache_reason) for end in gateway.ends()] == [("bypass", reason)] * 2
    after = await gateway.ask(body)
    assert (after.answer_headers["x-cache"] == "hit") == (reason == "no-cache")


async def test_what_an_earlier_revision_answers_is_not_kept_under_the_new_ones_name(gateway: Gateway) -> None:
    described = Description(
        name=MODEL, source="/models/new", engine="simulated", context_length_tokens=2048, public=True
    )
    platform = await in_database(lambda: registry.find_tenant(PLATFORM_SLUG))
    revision = await in_database(lambda: catalogue.register(OPERATOR, platform, described))
    await until(lambda: _model(gateway).revision_id == revision.id)
    for _ in range(2):
        got = await gateway.ask()
        assert (got.status, got.answer_headers["x-cache"]) == (200, "miss")
    assert len(gateway.bodies()) == 2


async def test_a_session_stays_on_its_replica(gateway: Gateway) -> None:
    for turn in range(6):
        got = await gateway.ask({**HELLO, "temperature": 1, "seed": turn}, headers={"x-session-id": "s"})
        assert got.answer_headers["x-route"].startswith("session; ")
    assert sorted(len(engine.bodies) for engine in gateway.engines) == [0, 6]


async def test_a_large_body_reaches_the_engine_whole(gateway: Gateway) -> None:
    text = "long " * 400_000
    got = await gateway.ask({**HELLO, "messages": [{"role": "user", "content": text}]})
    assert got.status == 200
    (body,) = gateway.bodies()
    assert body["messages"][0]["content"] == text


async def test_a_tenants_limit_holds_for_hits_and_misses_alike(gateway: Gateway) -> None:
    whole = PolicyTarget(tenant=gateway.world.acme.tenant)
    await in_database(lambda: set_limit(OPERATOR, whole, LimitValues(requests_per_minute=3)))
    await until(lambda: bool(_caller(gateway).limits))
    got = [await gateway.ask() for _ in range(4)]
    assert [one.status for one in got] == [200, 200, 200, 429]
    assert [one.answer_headers["x-ratelimit-remaining-requests"] for one in got] == ["2", "1", "0", "0"]
    assert (got[3].error["code"], got[3].error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    assert 1 <= int(got[3].answer_headers["retry-after"]) <= 20
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
    assert gateway.starts() == []


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
async def test_a_bad_request_is_answered_with_what_is_wrong_and_never_starts(
    gateway: Gateway, body: Any, status: int, code: str, param: str | None
) -> None:
    got = await gateway.ask(body)
    assert (got.status, got.error["code"], got.error["param"]) == (status, code, param)
    assert got.answer_headers["x-request-id"]
    assert (len(gateway.bodies()), gateway.starts()) == (0, [])


async def test_many_streams_at_once_are_each_their_own(gateway: Gateway) -> None:
    async def repeat(request: Any, body: dict[str, Any]) -> Any:
        words = [delta(f"{body['seed']},") for _ in range(5)]
        return await stream(request, events([CHUNKS[0], *words, *CHUNKS[3:]]), pause_seconds=0.001)

    gateway.let_all_say(repeat)
    got = await asyncio.gather(*[gateway.ask({**STREAMED, "seed": seed}) for seed in range(30)])
    assert [text_of(one.events) for one in got] == [f"{seed}," * 5 for seed in range(30)]
    assert len(gateway.ends()) == 30
    await gateway.idle()


def _caller(gateway: Gateway) -> Caller:
    return gateway.runtime.feed.snapshot.callers.caller(gateway.world.acme.key.public_id)


def _model(gateway: Gateway) -> catalogue.ServedModel:
    found = gateway.runtime.feed.snapshot.catalogue.models.get(MODEL)
    assert found is not None
    return found
