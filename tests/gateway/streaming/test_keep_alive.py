"""A waiting stream sends comments, and a client that does not read keeps no engine busy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.gateway.fixtures.http_server import Site, end_of
from tests.gateway.fixtures.scripted_app import CHUNKS, delta, events, hang_up, stream, streaming, text_of
from tests.gateway.fixtures.tenants import DOORS, STREAMED, Gateway, until

both_doors = pytest.mark.parametrize("gateway", DOORS, indirect=True)
COMMENT = b": waiting for the engine"
#: Of one write, and far over what all buffers between an engine and its client hold.
PIECE_BYTES, ALL_BUFFERS_BYTES = 64 * 1024, 32 << 20


def told(all_events: list[bytes]) -> list[bytes]:
    """Return what was sent, without comments."""
    return [event for event in all_events if event != COMMENT]


@both_doors
async def test_while_the_engine_is_silent_its_client_is_told_and_another_may_still_answer(gateway: Gateway) -> None:
    gateway.send_comments_every(0.1)
    turned_away, asked = asyncio.Event(), 0

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked == 1:
            await turned_away.wait()
            return await hang_up(request, body)
        return await stream(request, events())

    gateway.let_all_say(say)
    exchange = gateway.exchange(STREAMED)
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: exchange.body.count(COMMENT) >= 2)
    assert len(gateway.starts()) == 1
    turned_away.set()
    await work
    assert (exchange.status, text_of(exchange.events)) == (200, "Hello")
    assert told(exchange.events)[-1] == b"data: [DONE]"
    assert len({start.replica_id for start in gateway.starts()}) == 2
    assert [end.state for end in gateway.ends()] == ["complete"]
    await gateway.idle()


@both_doors
async def test_the_first_token_goes_out_at_once_and_pauses_after_it_are_filled(gateway: Gateway) -> None:
    gateway.send_comments_every(0.1)
    go_on = asyncio.Event()

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in events()[:2]:
            await response.write(piece)
        await go_on.wait()
        await response.write(events()[2][:10])  # a pause within an event is one between events for the client
        await asyncio.sleep(0.3)
        await response.write(events()[2][10:] + b"".join(events()[3:]))
        return response

    gateway.let_all_say(say)
    exchange = gateway.exchange(STREAMED)
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: exchange.body.count(COMMENT) >= 2)
    assert text_of(told(exchange.body.split(b"\n\n"))) == "Hel"
    go_on.set()
    await work
    assert told(exchange.events) == [event.rstrip() for event in events() if b'"usage"' not in event]
    assert [(end.state, end.completion_tokens) for end in gateway.ends()] == [("complete", 3)]


async def test_after_a_heartbeat_the_failure_of_every_engine_is_an_event(gateway: Gateway) -> None:
    gateway.send_comments_every(0.1)

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return web.Response(status=500)

    gateway.let_all_say(say)
    got = await gateway.ask(STREAMED)
    assert got.status == 200
    (failure,) = told(got.events)
    assert failure.startswith(b"event: error\n")
    assert b'"engine_failed"' in failure
    assert [(end.state, end.prompt_tokens) for end in gateway.ends()] == [("engine_error", 0)]


async def test_a_client_that_leaves_between_heartbeats_stops_the_engine(gateway: Gateway) -> None:
    gateway.send_comments_every(0.1)
    gateway.let_all_say(streaming([b""], then_wait=True))
    exchange = gateway.exchange(STREAMED)
    work = asyncio.ensure_future(exchange.run())
    await until(lambda: COMMENT in exchange.body)
    exchange.disconnect.set()
    await work
    await until(lambda: sum(engine.abandoned for engine in gateway.engines) == 1)
    assert [end.state for end in gateway.ends()] == ["client_gone"]
    assert gateway.loads() == [0, 0]


async def test_a_client_that_reads_nothing_slows_its_engine_and_is_given_up(gateway: Gateway) -> None:
    written = 0

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        (piece,) = events([delta("x" * PIECE_BYTES)], done=False)
        while True:
            await response.write(piece)
            written += len(piece)

    gateway.let_all_say(say)
    exchange = gateway.exchange(STREAMED, takes=4)
    await exchange.run()
    await until(lambda: sum(engine.abandoned for engine in gateway.engines) == 1)
    assert written < ALL_BUFFERS_BYTES
    (end,) = gateway.ends()
    assert (end.state, end.tokens_source) == ("client_gone", "streamed")
    assert end.completion_tokens >= 3
    assert gateway.loads() == [0, 0]


async def test_a_connection_on_which_nothing_is_read_is_cut_off(gateway: Gateway) -> None:
    asked = gateway.exchange(STREAMED)
    site = Site(pages={asked.path: gateway.app})
    await site.start()

    async def say(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        (piece,) = events([delta("x" * PIECE_BYTES)], done=False)
        while True:
            await response.write(piece)

    gateway.let_all_say(say)
    headers = asked.headers | {"content-length": str(len(asked.pieces[0]))}
    lines = [f"POST {asked.path} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()]]
    client = await site.client()
    client.transport.pause_reading()
    client.say("\r\n".join([*lines, "", ""]).encode() + asked.pieces[0])
    await until(lambda: site.server.connections and site.server.running)
    await until(lambda: not site.server.connections and not site.server.running)
    assert [end.state for end in gateway.ends()] == ["client_gone"]
    assert gateway.loads() == [0, 0]
    client.transport.resume_reading()
    assert not (await end_of(client)).endswith(b"0\r\n\r\n")
    await site.stop()


async def test_a_client_that_does_not_take_the_very_end_is_given_up_and_has_had_all(gateway: Gateway) -> None:
    gateway.let_all_say(streaming([b"".join(events(CHUNKS))]))
    exchange = gateway.exchange(STREAMED, takes=2)
    await exchange.run()
    assert [end.state for end in gateway.ends()] == ["complete"]
    assert gateway.loads() == [0, 0]


async def test_a_client_that_takes_no_heartbeat_is_given_up_too(gateway: Gateway) -> None:
    gateway.send_comments_every(0.1)
    gateway.let_all_say(streaming(events(CHUNKS[:2], done=False), then_wait=True))
    exchange = gateway.exchange(STREAMED, takes=2)
    await exchange.run()
    await until(lambda: sum(engine.abandoned for engine in gateway.engines) == 1)
    assert [(end.state, end.completion_tokens) for end in gateway.ends()] == [("client_gone", 1)]
