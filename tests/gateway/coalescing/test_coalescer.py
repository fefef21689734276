"""Identical requests in flight run once, whichever of them leaves, fails or wants another shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tenants.keys import keys
from tests.gateway.fixtures.asgi_client import Exchange
from tests.gateway.fixtures.scripted_app import CHUNKS, answer, delta, events, saying, text_of
from tests.gateway.fixtures.tenants import DOORS, HELLO, STREAMED, WITH_USAGE, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

Running = tuple[Exchange, asyncio.Task[Exchange]]


class Paced:
    """An engine's stream in two parts, the second one once it is let on."""

    def __init__(self, *, cut: bool = False, fresh: bool = False) -> None:
        self.go_on = asyncio.Event()
        self._cut = cut
        #: A later run says other words.
        self._fresh = fresh
        self.runs = 0

    async def say(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answer in the shape that is asked for."""
        self.runs += 1
        first = self.runs == 1
        if not body.get("stream"):
            await self.go_on.wait()
            return web.json_response(answer())
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        said = events([dict(one, id=f"run-{self.runs}") for one in CHUNKS])
        if self._fresh and not first:
            said[1] = events([delta("Other")])[0]
        for event in said[:2]:
            await response.write(event)
        await self.go_on.wait()
        if self._cut and first:
            assert request.transport is not None
            request.transport.abort()
            return response
        for event in said[2:]:
            await response.write(event)
        return response


def start(gateway: Gateway, body: Any, count: int = 1, **how: Any) -> list[Running]:
    """Send the same request ``count`` times at once."""
    exchanges = [gateway.exchange(body, **how) for _ in range(count)]
    return [(exchange, asyncio.create_task(exchange.run())) for exchange in exchanges]


async def lead(gateway: Gateway, body: Any, **how: Any) -> Running:
    """Send a request and wait until its engine works on it."""
    (running,) = start(gateway, body, **how)
    await until(gateway.bodies)
    return running


async def follow(gateway: Gateway, body: Any, count: int = 1, **how: Any) -> list[Running]:
    """Send requests and wait until they follow."""
    before = len(following(gateway))
    running = start(gateway, body, count, **how)
    await until(lambda: len(following(gateway)) == before + count)
    return running


def following(gateway: Gateway) -> list[Any]:
    """Return the STARTs of requests that follow another one."""
    return [each for each in gateway.starts() if each.cache_result == "coalesced"]


async def done(*running: Running) -> list[Exchange]:
    """Wait for the ends."""
    return list(await asyncio.wait_for(asyncio.gather(*(task for _, task in running)), timeout=60))


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_of_a_hundred_identical_streams_one_runs_and_all_get_its_bytes(gateway: Gateway) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, STREAMED)
    others = await follow(gateway, STREAMED, 99)
    engine.go_on.set()
    told = await done(first, *others)
    assert len(gateway.bodies()) == 1
    assert {each.status for each in told} == {200}
    assert len({each.body for each in told}) == 1
    assert text_of(told[0].events) == "Hello"
    assert len({each.answer_headers["x-request-id"] for each in told}) == 100
    source = told[0].answer_headers["x-request-id"]
    for each in told[1:]:
        head = each.answer_headers
        assert (head["x-cache"], head["x-source-id"]) == ("coalesced", source)
        assert head["cache-status"] == "hearth; fwd=miss; collapsed"
    ends = [end for end in gateway.ends() if end.cache_result == "coalesced"]
    assert len(ends) == 99
    assert {
        (e.state, e.prompt_tokens, e.completion_tokens, e.tokens_source, e.avoided_prompt_tokens) for e in ends
    } == {("complete", 0, 0, "cache", 8)}
    assert {(e.avoided_cached_prompt_tokens, e.avoided_completion_tokens, str(e.source_id)) for e in ends} == {
        (4, 3, source)
    }
    await gateway.idle()


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
async def test_a_follower_hears_each_piece_as_it_comes_and_usage_if_it_asked(gateway: Gateway) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, STREAMED)
    (second,) = await follow(gateway, WITH_USAGE)
    if first[0].sent:
        await until(lambda: second[0].body.count(b"data:") == 2)
    engine.go_on.set()
    led, followed = await done(first, second)
    assert len(gateway.bodies()) == 1
    assert followed.events[:4] == led.events[:4]
    assert b'"usage"' in followed.events[4] and followed.events[5] == b"data: [DONE]"
    assert not any(b'"usage"' in event for event in led.events)


@pytest.mark.parametrize(("leads", "follows"), [(STREAMED, HELLO), (HELLO, STREAMED), (HELLO, HELLO)])
async def test_who_asked_for_another_shape_is_told_the_whole_answer_in_it(
    gateway: Gateway, leads: Any, follows: Any
) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, leads)
    others = await follow(gateway, follows, 3)
    engine.go_on.set()
    told = await done(first, *others)
    assert len(gateway.bodies()) == 1
    for each in told[1:]:
        assert each.answer_headers["x-cache"] == "coalesced"
        text = text_of(each.events) if follows is STREAMED else each.json["choices"][0]["message"]["content"]
        assert text == "Hello"
    assert [end.state for end in gateway.ends()] == ["complete"] * 4


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
async def test_what_a_leader_began_goes_on_without_it_while_others_follow(gateway: Gateway, body: Any) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, body)
    others = await follow(gateway, body, 2)
    first[0].disconnect.set()
    others[0][0].disconnect.set()
    await asyncio.wait_for(others[0][1], timeout=60)
    engine.go_on.set()
    (told,) = await done(others[1])
    assert told.status == 200
    assert len(gateway.bodies()) == 1
    await until(lambda: len(gateway.ends()) == 3)
    assert sorted((end.state, end.cache_result, end.completion_tokens) for end in gateway.ends()) == [
        ("client_gone", "coalesced", 0),
        ("complete", "coalesced", 0),
        ("complete", "miss", 3),
    ]


@pytest.mark.parametrize("gateway", DOORS, indirect=True)
@pytest.mark.parametrize("body", [HELLO, STREAMED], ids=["whole", "stream"])
async def test_the_engine_stops_once_the_leader_and_all_followers_have_left(gateway: Gateway, body: Any) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, body)
    others = await follow(gateway, body, 2)
    for exchange, _ in (first, *others):
        exchange.disconnect.set()
    await done(first, *others)
    await until(lambda: sum(each.abandoned for each in gateway.engines) == 1)
    await until(lambda: [end.state for end in gateway.ends()] == ["client_gone"] * 3)
    await gateway.idle()


async def test_a_leader_that_reads_nothing_holds_nobody_back_for_ever(gateway: Gateway) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, STREAMED, takes=1)
    (second,) = await follow(gateway, STREAMED)
    engine.go_on.set()
    (told,) = await done(second)
    assert text_of(told.events) == "Hello"
    await done(first)
    assert sorted(end.state for end in gateway.ends()) == ["complete", "complete"]


async def test_when_a_leader_s_engine_fails_before_anybody_was_told_one_of_a_hundred_leads(gateway: Gateway) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    second = await in_database(lambda: keys.issue(OPERATOR, gateway.world.acme.project, name="second"))
    first = await lead(gateway, HELLO)
    others = await follow(gateway, HELLO, 100, key=second.secret)
    await in_database(lambda: keys.revoke(OPERATOR, gateway.world.acme.key))
    (refused,) = await done(first)
    assert (refused.status, refused.error["code"]) == (401, "key_revoked")
    await until(lambda: len(gateway.bodies()) == 2)
    engine.go_on.set()
    told = await done(*others)
    assert {each.status for each in told} == {200}
    assert len(gateway.bodies()) == 2
    assert sorted(each.answer_headers["x-cache"] for each in told) == ["coalesced"] * 99 + ["miss"]


@pytest.mark.parametrize(("fresh", "last"), [(False, b"data: [DONE]"), (True, b"engine_failed_mid_stream")])
async def test_those_that_told_something_go_on_where_the_next_run_repeats_it(
    gateway: Gateway, fresh: bool, last: bytes
) -> None:
    engine = Paced(cut=True, fresh=fresh)
    gateway.let_all_say(engine.say)
    first = await lead(gateway, STREAMED)
    others = await follow(gateway, STREAMED, 20)
    await until(lambda: all(exchange.body.count(b"data:") == 2 for exchange, _ in others))
    engine.go_on.set()
    led, *told = await done(first, *others)
    assert b"engine_failed_mid_stream" in led.events[-1]
    assert all(last in each.events[-1] for each in told)
    assert len(gateway.bodies()) == 2
    if not fresh:
        assert {text_of(each.events) for each in told} == {"Hello"}
        ends = [end for end in gateway.ends() if end.state == "complete"]
        assert sorted(end.cache_result for end in ends) == ["coalesced"] * 19 + ["miss"]
    await until(lambda: gateway.loads() == [0, 0])


async def test_a_follower_that_led_in_vain_is_recorded_with_what_it_received(gateway: Gateway) -> None:
    engine = Paced(cut=True)
    gateway.let_all_say(engine.say)
    first = await lead(gateway, STREAMED)
    source = gateway.starts()[0].request_id
    (second,) = await follow(gateway, STREAMED)
    await until(lambda: second[0].body.count(b"data:") == 2)
    gateway.let_all_say(saying({}, status=404))
    engine.go_on.set()
    _, told = await done(first, second)
    assert told.status == 200
    assert b"engine_failed" in told.events[-1]
    (end,) = [end for end in gateway.ends() if end.request_id != source]
    assert (end.state, end.http_status, end.cache_result, end.source_id) == ("engine_error", 200, "coalesced", source)
    assert (end.error_code, end.completion_tokens, end.avoided_completion_tokens) == ("engine_failed", 0, 1)


async def test_what_the_engine_says_about_the_request_is_told_to_all(gateway: Gateway) -> None:
    go_on = asyncio.Event()

    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await go_on.wait()
        return await saying({"error": {"message": "no", "param": "seed"}}, 400)(request, body)

    gateway.let_all_say(refuse)
    first = await lead(gateway, HELLO)
    others = await follow(gateway, HELLO, 5)
    go_on.set()
    told = await done(first, *others)
    assert {(each.status, each.error["message"]) for each in told} == {(400, "no")}
    assert len(gateway.bodies()) == 1


@pytest.mark.parametrize(
    "other",
    [
        {**HELLO, "temperature": 1},
        {**HELLO, "seed": 1},
        {**STREAMED, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    ],
    ids=["sampled", "another", "counts"],
)
async def test_what_may_not_be_shared_runs_for_itself(gateway: Gateway, other: Any) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, HELLO)
    (second,) = start(gateway, other)
    await until(lambda: len(gateway.bodies()) == 2)
    engine.go_on.set()
    led, _ = await done(first, second)
    assert led.answer_headers["x-cache"] == "miss"
    assert following(gateway) == []


async def test_a_stranger_s_identical_request_runs_for_itself(gateway: Gateway) -> None:
    engine = Paced()
    gateway.let_all_say(engine.say)
    first = await lead(gateway, HELLO)
    (second,) = start(gateway, HELLO, key=gateway.world.globex.secret)
    await until(lambda: len(gateway.bodies()) == 2)
    engine.go_on.set()
    assert {each.answer_headers["x-cache"] for each in await done(first, second)} == {"miss"}
