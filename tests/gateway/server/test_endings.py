"""When connections of clients end: leaving, refusal, timeouts, an orderly end; and that nothing is left of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.server import connection, server
from tests.gateway.fixtures.http_server import PATIENCE_SECONDS, Client, Site, Stream, echo, end_of, served, until
from tests.gateway.pipeline.test_garbage import kept

ROOT = Path(__file__).parents[3]
GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("how", ["reset", "close", "half"])
@served
async def test_a_client_that_leaves_is_noticed(site: Site, how: str) -> None:
    stream = site.pages["/a"] = Stream()
    client = await site.client(GET)
    await client.head()
    if how == "half":
        client.writer.write_eof()
    elif how == "close":
        client.writer.close()
    else:
        client.transport.abort()
    await asyncio.wait_for(stream.gone.wait(), PATIENCE_SECONDS)
    stream.go_on.set()
    await until(lambda: not site.server.connections and not site.server.running)


@served
async def test_a_client_that_says_no_more_still_gets_an_answer_that_is_ready(site: Site) -> None:
    client = await site.client(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc" + GET)
    client.writer.write_eof()
    assert [(await client.answer()).body for _ in range(2)] == [b"/a abc", b"/a "]
    assert await client.rest() == b""


@served
async def test_a_body_that_breaks_off_is_told_to_the_page_and_the_page_tells_its_client(site: Site) -> None:
    client = await site.client(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabc")
    await until(lambda: site.paths == ["/a"])
    client.writer.write_eof()
    assert await client.statuses() == [400]


@served
async def test_more_connections_than_may_be_are_told_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REJECTED", 3)
    monkeypatch.setattr(site.server, "_most_connections", 2)
    first = [await site.client(GET) for _ in range(2)]
    for client in first:
        assert (await client.answer()).status == 200
    for _ in range(3):
        client = await site.client(GET)
        answer = await client.answer()
        assert (answer.status, answer.headers[b"connection"]) == (503, b"close")
        assert b'"too_many_connections"' in answer.body
        assert await client.rest() == b""
    flood = await site.client(GET)
    assert await end_of(flood) == b""
    assert (len(site.server.connections), len(site.server.rejected)) == (2, 3)
    site.look(connection.LINGER_SECONDS + 1)
    await until(lambda: not site.server.rejected)
    first[0].writer.close()
    await until(lambda: len(site.server.connections) == 1)
    assert (await (await site.client(GET)).answer()).status == 200
    assert len(site.paths) == 3


@served
async def test_a_newcomer_displaces_the_connection_that_is_idle_longest(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.server, "_most_connections", 3)
    stream = site.pages["/s"] = Stream()
    busy = await site.client(b"GET /s HTTP/1.1\r\nhost: x\r\n\r\n", address="127.0.0.2")
    await busy.head()
    silent = await site.client(address="127.0.0.2")
    await until(lambda: len(site.server.connections) == 2)
    used = await site.client(GET, address="127.0.0.2")
    await used.answer()
    refused = await site.client(GET, address="127.0.0.2")
    assert (await refused.answer()).status == 503
    newcomers = []
    for displaced in (silent, used):
        newcomers.append(await site.client(GET, address="127.0.0.3" if displaced is silent else "127.0.0.4"))
        assert (await newcomers[-1].answer()).status == 200
        assert await end_of(displaced) == b""
    stream.go_on.set()
    assert await busy.reader.readuntil(b"0\r\n\r\n")
    assert len(site.server.connections) == 3


@served
async def test_a_connection_whose_body_does_not_come_is_displaced_like_an_idle_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.server, "_most_connections", 2)
    unfinished = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
    slow = await site.client(unfinished, address="127.0.0.2")
    await until(lambda: site.paths == ["/a"])
    pipelined = await site.client(GET + unfinished, address="127.0.0.2")
    assert (await pipelined.answer()).status == 200
    await until(lambda: site.paths == ["/a"] * 3)
    for displaced, address in ((slow, "127.0.0.3"), (pipelined, "127.0.0.4")):
        newcomer = await site.client(GET, address=address)
        assert (await newcomer.answer()).status == 200
        assert await end_of(displaced) == b""


@served
async def test_clients_behind_a_trusted_proxy_displace_its_idle_connections(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.server, "_most_connections", 2)
    monkeypatch.setattr(site.server, "_client_of", lambda _: "")
    first, second = [await site.client(GET, address="127.0.0.2") for _ in range(2)]
    for client in (first, second):
        await client.answer()
    third = await site.client(GET, address="127.0.0.2")
    assert (await third.answer()).status == 200
    assert sorted([await _is_closed(first), await _is_closed(second)]) == [False, True]


async def _is_closed(client: Client) -> bool:
    client.say(GET)
    try:
        return not await client.reader.readline()
    except ConnectionError:
        return True


@served
async def test_who_is_silent_for_too_long_is_closed(site: Site) -> None:
    idle = await site.client(GET)
    await idle.answer()
    new, dribbling, served_now = await site.client(), await site.client(GET[:20]), await site.client()
    stream = site.pages["/stream"] = Stream()
    served_now.say(GET.replace(b"/a", b"/stream"))
    await served_now.head()
    await until(
        lambda: len(site.server.connections) == 4 and any(each._framing_bytes for each in site.server.connections)
    )
    site.look(connection.HEAD_SECONDS - 1)
    assert len(site.server.connections) == 4
    site.look(connection.HEAD_SECONDS + 1)
    assert await new.rest() == b""
    slow = await dribbling.answer()
    assert (slow.status, b'"head_too_slow"' in slow.body) == (408, True)
    assert await dribbling.rest() == b""
    dribbling.writer.close()
    await until(lambda: len(site.server.connections) == 2)
    site.look(connection.IDLE_SECONDS + 1)
    assert await idle.rest() == b""
    stream.go_on.set()
    assert await served_now.reader.readuntil(b"0\r\n\r\n") == b"6\r\nfirst \r\n4\r\nlast\r\n0\r\n\r\n"


@served
async def test_many_silent_connections_are_closed_a_few_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CHECKED_AT_ONCE", 2)
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.0)
    clients = [await site.client() for _ in range(5)]
    await until(lambda: len(site.server.connections) == len(clients))
    checking = site.server.check_timeouts()
    for closed in (2, 4):
        checking.send(None)  # until it lets others run
        assert sum(each._shut for each in site.server.connections) == closed
    with pytest.raises(StopIteration):
        checking.send(None)
    assert [await client.rest() for client in clients] == [b""] * len(clients)


@served
async def test_who_does_not_close_after_the_last_answer_is_not_waited_for(site: Site) -> None:
    client = await site.client(GET.replace(b"1.1", b"1.0"))
    assert (await client.rest()).endswith(b"\r\n\r\n/a ")
    assert len(site.server.connections) == 1
    site.look(connection.LINGER_SECONDS + 1)
    await until(lambda: not site.server.connections)


@served
async def test_at_the_end_idle_connections_close_and_answers_are_finished(site: Site) -> None:
    stream = site.pages["/stream"] = Stream()
    idle, new, half = await site.client(GET), await site.client(), await site.client(GET[:20])
    await idle.answer()
    streaming = await site.client(GET.replace(b"/a", b"/stream"))
    await streaming.head()
    answering = await site.client(GET.replace(b"/a", b"/wait"))
    go_on = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await echo(scope, receive, send)

    site.pages["/wait"] = wait
    await until(lambda: len(site.server.running) == 2 and any(each._framing_bytes for each in site.server.connections))
    site.server.close()
    assert (await idle.rest(), await new.rest()) == (b"", b"")
    over = asyncio.ensure_future(site.server.over())
    half.say(GET[20:])
    go_on.set()
    for client, body in ((half, b"/a "), (answering, b"/wait ")):
        answer = await client.answer()
        assert (answer.body, answer.headers[b"connection"]) == (body, b"close")
        client.writer.close()
    assert not over.done()
    stream.go_on.set()
    assert (await streaming.rest()).endswith(b"0\r\n\r\n")
    streaming.writer.close()
    await over


@served
async def test_what_outlives_the_end_is_stopped(site: Site) -> None:
    stopped = False

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        nonlocal stopped
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            stopped = True
            raise

    site.pages["/a"] = wait
    client = await site.client(GET + GET)
    await until(lambda: site.paths == ["/a"])
    site.server.close()
    site.server.abort()
    await site.server.over()
    assert stopped
    assert await end_of(client) == b""


def test_the_page_for_developers_names_what_is_refused_before_it_is_a_request() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    told = {
        (int(status), code)
        for status, codes in re.findall(r"^\| ([0-9]{3}) \| ([^|]*) \|", page, re.MULTILINE)
        for code in re.findall(r"`([a-z_]+)`", codes)
    }
    assert told >= {
        (400, "bad_http"),
        (408, "head_too_slow"),
        (414, "target_too_long"),
        (431, "head_too_large"),
        (503, "too_many_connections"),
    }


async def plain(site: Site) -> None:
    client = await site.client(GET + GET)
    await client.answer()
    await client.answer()
    client.writer.close()


async def refused(site: Site) -> None:
    client = await site.client(b"BROKEN\r\n\r\n")
    await client.rest()
    client.writer.close()


async def gone(site: Site) -> None:
    """Leave while one request is answered and two others wait."""
    stream = site.pages["/stream"] = Stream()
    client = await site.client(GET.replace(b"/a", b"/stream") + GET + GET)
    await client.head()
    client.transport.abort()
    stream.go_on.set()
    await until(lambda: not site.server.running)


async def upgrading(site: Site) -> None:
    client = await site.client(GET[:-2] + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n")
    await client.answer()
    client.writer.close()


@pytest.mark.parametrize("ask", [plain, refused, gone, upgrading], ids=lambda ask: ask.__name__)
@served
async def test_a_connection_leaves_no_cycle_behind(site: Site, ask: Callable[[Site], Awaitable[None]]) -> None:
    await ask(site)
    with kept() as found:
        for _ in range(5):
            await ask(site)
        await until(lambda: not site.server.connections)
    assert not found
