"""Requests that use engines up: silent ones, responses too large, and those that engines break on, each tried anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.upstream import connection
from tenants.policy.limits import LimitValues, set_limit
from tenants.policy.policy_target import PolicyTarget
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import CHUNKS, answer, events, hang_up, hello, saying, silence, streaming
from tests.gateway.fixtures.tenants import HELLO, MODEL, STREAMED, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

#: 2 prompt tokens by estimate, and up to 100 for each of two choices.
LONG: dict[str, Any] = {**HELLO, "temperature": 1, "max_tokens": 100, "n": 2}


@pytest.fixture
def engine_timeout_seconds() -> float:
    """Give silent engines up soon: nothing here depends on an engine that is slow by chance."""
    return 1.5


def told(got: Exchange) -> tuple[int, str]:
    return got.status, got.error["code"]


async def test_limits_get_nothing_back_for_a_silent_engine(gateway: Gateway) -> None:
    acme = PolicyTarget(tenant=gateway.world.acme.tenant)
    await in_database(lambda: set_limit(OPERATOR, acme, LimitValues(tokens_per_minute=500)))
    await until(lambda: gateway.caller().limits)
    gateway.let_all_say(silence)
    assert told(await gateway.ask(LONG)) == (504, "engine_timeout")
    (end,) = gateway.ends()
    assert (end.state, end.http_status, end.prompt_tokens, end.completion_tokens) == ("engine_error", 504, 2, 30)
    assert len(gateway.bodies()) == 1
    gateway.let_all_say(hello)
    left = int((await gateway.ask(HELLO)).answer_headers["x-ratelimit-remaining-tokens"])
    assert left < 500 - 200  # refilled for a moment, and less what the second request reserves
    await gateway.idle()


async def test_a_silent_engine_goes_on_serving_the_others(gateway: Gateway) -> None:
    gateway.let_all_say(silence)
    session = {"x-session-id": "s"}
    await gateway.ask(LONG, headers=session)
    (silent,) = [engine for engine in gateway.engines if engine.bodies]
    gateway.let_all_say(hello)
    assert (await gateway.ask(LONG, headers=session)).status == 200
    assert len(silent.bodies) == 2


async def test_followers_of_a_silent_engines_request_get_its_error_and_pay_nothing(gateway: Gateway) -> None:
    gateway.let_all_say(silence)
    got = await asyncio.gather(*(gateway.ask({**LONG, "temperature": 0}) for _ in range(3)))
    assert [told(each) for each in got] == [(504, "engine_timeout")] * 3
    assert len(gateway.bodies()) == 1
    ends = sorted(gateway.ends(), key=lambda end: end.completion_tokens)
    assert [(end.cache_result, end.prompt_tokens, end.completion_tokens) for end in ends] == [
        ("coalesced", 0, 0),
        ("coalesced", 0, 0),
        ("miss", 2, 30),
    ]


async def test_a_response_above_the_byte_cap_is_charged_and_not_asked_for_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_WHOLE_BYTES", 300 * 1024)
    gateway.let_all_say(saying(answer("x" * 2048 * 1024)))
    got = await gateway.ask(LONG)
    assert (told(got), got.answer_headers["x-should-retry"]) == ((502, "response_too_large"), "false")
    assert len(gateway.bodies()) == 1
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source, end.prompt_tokens) == ("engine_error", "estimated", 2)
    assert 150 <= end.completion_tokens <= 200  # 2 KiB a token
    gateway.let_all_say(hello)
    assert (await gateway.ask()).status == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("say", [hang_up, saying({}, status=500)], ids=["hangs up", "500"])
async def test_a_request_that_broke_two_engines_takes_no_third(gateway: Gateway, say: Any, stream: bool) -> None:
    poison, other = {**LONG, "stream": stream}, {**LONG, "max_tokens": 99}
    gateway.let_all_say(say)
    assert told(await gateway.ask(poison)) == (502, "engine_failed")
    assert len(gateway.bodies()) == 2
    gateway.let_all_say(hello)
    for again in (poison, {**LONG, "stream": not stream}):
        got = await gateway.ask(again)
        assert told(got) == (503, "request_breaks_engines")
        assert 290 <= int(got.answer_headers["retry-after"]) <= 300
    assert len(gateway.bodies()) == 2
    assert (await gateway.ask(other)).status == 200
    assert (await gateway.ask(poison, key=gateway.world.globex.secret)).status == 200
    failed = gateway.ends()[0]
    assert (failed.state, failed.prompt_tokens) == ("engine_error", 0)
    await gateway.idle()


async def test_streams_that_break_engines_in_the_middle_are_refused_too(gateway: Gateway) -> None:
    gateway.let_all_say(streaming(events(CHUNKS[:3], done=False), cut=True))
    for _ in range(2):
        assert b"engine_failed_mid_stream" in (await gateway.ask(STREAMED)).events[-1]
        replica_id = gateway.starts()[-1].replica_id
        assert replica_id is not None
        gateway.runtime.pipeline._components.dispatcher._avoid_for_a_while(replica_id)
    assert told(await gateway.ask(STREAMED)) == (503, "request_breaks_engines")


async def test_equal_requests_that_one_engine_takes_with_it_may_come_again(gateway: Gateway) -> None:
    await in_database(lambda: tenants.stop_replica(gateway.world.replicas[1].id))
    await until(lambda: len(gateway.runtime.feed.snapshot.endpoints[MODEL]) == 1)
    gateway.let_all_say(streaming(events(CHUNKS[:3], done=False), cut=True))
    sampled = {**STREAMED, "temperature": 1}
    broken = await asyncio.gather(*(gateway.ask(sampled) for _ in range(3)))
    assert all(b"engine_failed_mid_stream" in each.events[-1] for each in broken)
    gateway.let_all_say(hello)
    assert (await gateway.ask(sampled)).events[-1] == b"data: [DONE]"


async def test_a_stream_that_falls_silent_is_not_run_again_for_its_followers(gateway: Gateway) -> None:
    gateway.let_all_say(streaming(events(CHUNKS[:3], done=False), then_wait=True))
    got = await asyncio.gather(*(gateway.ask(STREAMED) for _ in range(3)))
    assert all(b"engine_failed_mid_stream" in each.events[-1] for each in got)
    assert len(gateway.bodies()) == 1
    assert sorted((end.cache_result, end.completion_tokens) for end in gateway.ends()) == [
        ("coalesced", 0),
        ("coalesced", 0),
        ("miss", 2),
    ]


@pytest.mark.parametrize("body", [{**HELLO, "temperature": 1}, {**STREAMED, "temperature": 1}], ids=["whole", "stream"])
async def test_a_request_that_completes_is_no_suspect(gateway: Gateway, body: Any) -> None:
    for _ in range(3):
        gateway.engines[0].say = hang_up
        gateway.engines[1].say = hello
        await gateway.ask(body, headers={"x-session-id": "s"})
        dispatcher = gateway.runtime.pipeline._components.dispatcher
        dispatcher._avoid_until.clear()
    assert {end.state for end in gateway.ends()} == {"complete"}
