"""The HTTP client for engines, against servers that say byte for byte what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import gateway.upstream.client
from gateway.upstream import connection as limits
from gateway.upstream.client import UpstreamClient
from gateway.upstream.connection import (
    ConnectFailed,
    ConnectionLost,
    ProtocolError,
    ReadTimeout,
    ResponseTooLarge,
    UpstreamError,
)
from tests.gateway.fixtures.scripted_engine import (
    CHUNKED,
    WHOLE,
    Engine,
    Line,
    ask,
    listening,
    saying,
    saying_each_time,
    stream,
)
from tests.gateway.fixtures.tenants import until


@pytest.fixture
async def upstream() -> AsyncIterator[UpstreamClient]:
    """A client that is patient: machines that run tests are slow."""
    client = UpstreamClient(connect_seconds=5.0, read_timeout_seconds=30.0)
    yield client
    await client.close()


async def test_a_request_is_written_as_http(upstream: UpstreamClient) -> None:
    async with listening(saying(WHOLE)) as engine:
        headers = {"content-type": "application/json", "authorization": "Bearer k"}
        (await upstream.post(engine.base_url + "/below", "/v1/x", headers, b"{}", stream=False)).close()
    assert engine.lines[0].heads[0].split(b"\r\n") == [
        b"POST /below/v1/x HTTP/1.1",
        b"host: " + engine.base_url.removeprefix("http://").encode(),
        b"content-type: application/json",
        b"authorization: Bearer k",
        b"content-length: 2",
        b"",
        b"",
    ]


@pytest.mark.parametrize("size", [0, limits.ONE_WRITE_BYTES, limits.ONE_WRITE_BYTES + 1, 5 << 20])
async def test_a_body_of_any_size_arrives(upstream: UpstreamClient, size: int) -> None:
    async with listening(saying(WHOLE)) as engine:
        assert await ask(upstream, engine, b"x" * size) == (200, b"hello")
    assert engine.lines[0].bodies == [b"x" * size]


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (WHOLE, 200, b"hello"),
        (CHUNKED + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", 200, b"hello"),
        (CHUNKED + b"5;why=not\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n", 200, b"hello"),
        (b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", 400, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 500 No\r\n\r\nuntil the end", 500, b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + WHOLE, 200, b"hello"),
    ],
)
@pytest.mark.parametrize("cut", [True, False])
async def test_an_answer_is_read_however_it_is_framed_and_cut(
    upstream: UpstreamClient, answer: bytes, status: int, body: bytes, cut: bool
) -> None:
    pieces = [answer[i : i + 1] for i in range(len(answer))] if cut else [answer]
    async with listening(saying(*pieces)) as engine:
        assert await ask(upstream, engine) == (status, body)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        CHUNKED + b"g\r\nhello\r\n",
        CHUNKED + b"ffffffffffffffffff\r\nhello\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-much: " + b"y" * 60_000 + b"\r\nx-more: " + b"y" * 10_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 4_000,
        CHUNKED + b"1;" + b"x" * 70_000,
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_what_is_no_answer_is_garbled_and_never_read_on(
    upstream: UpstreamClient, answer: bytes, streamed: bool
) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(answer)
        await line.wait_until_closed()

    async with listening(speak) as engine:
        with pytest.raises(ProtocolError):
            await upstream.post(engine.base_url, "/v1/x", {}, b"{}", stream=streamed)
        await until(lambda: engine.lines[0].closed)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-le", WHOLE[:-1], CHUNKED, CHUNKED + b"5\r\nhello\r\n"]
)
async def test_an_answer_that_is_cut_short_is_broken(upstream: UpstreamClient, answer: bytes) -> None:
    async with listening(saying(answer)) as engine:
        with pytest.raises(ConnectionLost) as caught:
            await ask(upstream, engine)
    assert caught.value.after_first_byte == bool(answer)
    assert len(engine.lines) == 1


async def test_what_came_of_a_stream_before_it_broke_is_passed_on_first(upstream: UpstreamClient) -> None:
    got = []
    async with listening(saying(CHUNKED + b"5\r\nhello\r\n")) as engine:
        response = await upstream.post(engine.base_url, "/v1/x", {}, b"{}", stream=True)
        await until(lambda: response._failure is not None)
        got.append(await response.read())
        with pytest.raises(ConnectionLost):
            await response.read()
        response.close()
    assert got == [b"hello"]


async def test_a_refusal_of_a_stream_is_read_whole(upstream: UpstreamClient) -> None:
    async with listening(saying(b"HTTP/1.1 400 No\r\ncontent-length: 10\r\n\r\n", b"hello", b"there")) as engine:
        assert b"".join(await stream(upstream, engine)) == b"hellothere"


async def test_a_connection_is_used_again_by_whole_answers_and_streams(upstream: UpstreamClient) -> None:
    async with listening(saying_each_time(CHUNKED, b"5\r\nhello\r\n", b"0\r\n\r\n")) as engine:
        for _ in range(2):
            assert await ask(upstream, engine) == (200, b"hello")
            assert await stream(upstream, engine) == [b"hello"]
        assert len(engine.lines) == 1
        assert len(engine.lines[0].heads) == 4


async def test_an_idle_connection_is_closed_before_the_engine_would(
    upstream: UpstreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(WHOLE)
        await line.wait_until_closed()

    monkeypatch.setattr(gateway.upstream.client, "KEEP_SECONDS", 0.1)
    async with listening(speak) as engine:
        assert await ask(upstream, engine) == (200, b"hello")
        await until(lambda: engine.lines[0].closed)


async def test_two_requests_at_once_have_two_connections(upstream: UpstreamClient) -> None:
    async with listening(saying_each_time(WHOLE)) as engine:
        answers = await asyncio.gather(ask(upstream, engine), ask(upstream, engine))
        assert list(answers) == [(200, b"hello")] * 2
        assert len(engine.lines) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        WHOLE + WHOLE,
        WHOLE + b"?",
    ],
    ids=["close", "1.0", "two answers", "surplus"],
)
async def test_a_connection_that_closes_or_says_too_much_is_not_used_again(
    upstream: UpstreamClient, answer: bytes
) -> None:
    async with listening(saying_each_time(answer)) as engine:
        for _ in range(2):
            assert await ask(upstream, engine) == (200, b"hello")
        assert len(engine.lines) == 2


async def test_a_second_answer_that_nobody_asked_for_closes_the_connection(upstream: UpstreamClient) -> None:
    more = asyncio.Event()

    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(WHOLE)
        await more.wait()
        await line.say(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nother")
        await line.wait_until_closed()

    async with listening(speak) as engine:
        assert await ask(upstream, engine) == (200, b"hello")
        more.set()
        await until(lambda: engine.lines[0].closed)
        engine.speak = saying(WHOLE)
        assert await ask(upstream, engine) == (200, b"hello")


async def test_the_end_of_a_stream_may_come_after_its_last_word(upstream: UpstreamClient) -> None:
    end = asyncio.Event()

    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(CHUNKED + b"5\r\nhello\r\n")
        await end.wait()
        await line.say(b"0\r\n\r\n")
        await line.read_request()
        await line.say(WHOLE)

    async with listening(speak) as engine:
        response = await upstream.post(engine.base_url, "/v1/x", {}, b"{}", stream=True)
        assert response.take() == b"hello"
        response.close(answered=True)
        end.set()
        await until(lambda: response.complete)
        assert await ask(upstream, engine) == (200, b"hello")
        assert len(engine.lines) == 1


async def test_a_stream_whose_end_never_comes_is_closed(upstream: UpstreamClient) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(CHUNKED + b"5\r\nhello\r\n")
        await line.wait_until_closed()

    async with listening(speak) as engine:
        response = await upstream.post(engine.base_url, "/v1/x", {}, b"{}", stream=True)
        response.close(answered=True)
        await until(lambda: engine.lines[0].closed)


@pytest.mark.parametrize("streamed", [True, False])
async def test_whoever_leaves_early_closes_the_connection(upstream: UpstreamClient, streamed: bool) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(CHUNKED + b"5\r\nhello\r\n" if streamed else b"")
        await line.wait_until_closed()

    async with listening(speak) as engine:
        if streamed:
            (await upstream.post(engine.base_url, "/v1/x", {}, b"{}", stream=True)).close()
        else:
            asking = asyncio.ensure_future(ask(upstream, engine))
            await until(lambda: engine.lines and engine.lines[0].heads)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        await until(lambda: engine.lines[0].closed)


async def test_a_connection_that_was_closed_while_it_was_idle_is_replaced(upstream: UpstreamClient) -> None:
    async with listening(saying(WHOLE)) as engine:
        for _ in range(3):
            assert await ask(upstream, engine) == (200, b"hello")
        assert [len(line.heads) for line in engine.lines] == [1, 1, 1]


async def test_a_request_that_meets_a_closing_connection_is_sent_once_more(upstream: UpstreamClient) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(WHOLE)
        if line is engine.lines[0]:
            await line.read_request()  # and closes without a word

    async with listening(speak) as engine:
        assert await ask(upstream, engine, b"1") == (200, b"hello")
        assert await ask(upstream, engine, b"2") == (200, b"hello")
        assert [line.bodies for line in engine.lines] == [[b"1", b"2"], [b"2"]]


async def test_a_request_is_not_sent_a_third_time(upstream: UpstreamClient) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        if line is engine.lines[0]:
            await line.say(WHOLE)
            await line.read_request()

    async with listening(speak) as engine:
        await ask(upstream, engine)
        with pytest.raises(ConnectionLost):
            await ask(upstream, engine)
        assert [len(line.bodies) for line in engine.lines] == [2, 1]


async def test_a_request_whose_answer_began_is_not_sent_again(upstream: UpstreamClient) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(WHOLE)
        await line.read_request()
        await line.say(WHOLE[:-1])

    async with listening(speak) as engine:
        await ask(upstream, engine)
        with pytest.raises(ConnectionLost):
            await ask(upstream, engine)
        assert len(engine.lines) == 1


async def test_an_engine_that_dies_of_a_request_is_said_to_have_had_it(upstream: UpstreamClient) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(WHOLE)
        await line.read_request()
        server.close()
        await asyncio.sleep(0)

    engine = Engine(speak)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await ask(upstream, engine)
    with pytest.raises(ConnectionLost):
        await ask(upstream, engine)
    with pytest.raises(ConnectFailed):
        await ask(upstream, engine)


async def test_an_engine_that_is_silent_for_too_long_is_given_up() -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.say(CHUNKED + b"5\r\nhello\r\n")
        await line.wait_until_closed()

    client = UpstreamClient(connect_seconds=5.0, read_timeout_seconds=0.2)
    async with listening(speak) as engine:
        with pytest.raises(ReadTimeout):
            await ask(client, engine)
        with pytest.raises(ReadTimeout):
            await stream(client, engine)
        await until(lambda: all(line.closed for line in engine.lines))
    await client.close()


async def test_a_client_that_takes_nothing_lets_the_engine_wait(upstream: UpstreamClient) -> None:
    much = 64 << 20
    said = 0

    async def speak(line: Line) -> None:
        nonlocal said
        await line.read_request()
        await line.say(f"HTTP/1.1 200 OK\r\ncontent-length: {much}\r\n\r\n".encode())
        line.writer.transport.set_write_buffer_limits(high=0)
        while said < much:
            await line.say(b"x" * 65536)
            said += 65536

    async with listening(speak) as engine:
        response = await upstream.post(engine.base_url, "/v1/x", {}, b"{}", stream=True)
        await until(lambda: response._size > limits.READ_AHEAD_BYTES)
        before = -1
        while before != said:  # until the buffers of the kernel are full too
            before = said
            await asyncio.sleep(0.3)
        assert said < much
        taken = len(response.take())
        assert taken < 2 * limits.READ_AHEAD_BYTES
        while piece := await response.read():
            taken += len(piece)
        response.close()
    assert taken == much


async def test_an_answer_too_large_to_be_read_whole_is_given_up_with_its_size(
    upstream: UpstreamClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_WHOLE_BYTES", 2 * limits.READ_AHEAD_BYTES)
    body = b"x" * (4 * limits.READ_AHEAD_BYTES)
    async with listening(saying(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode(), body)) as engine:
        with pytest.raises(ResponseTooLarge) as too_large:
            await ask(upstream, engine)
    assert limits.MAX_WHOLE_BYTES < too_large.value.size_bytes <= len(body)


@pytest.mark.parametrize(
    "base_url", ["http://127.0.0.1:1", "http://127.0.0.1:99999", "ftp://127.0.0.1", "nonsense", "http://no.invalid:80"]
)
async def test_an_engine_that_cannot_be_reached_never_had_the_request(upstream: UpstreamClient, base_url: str) -> None:
    with pytest.raises(ConnectFailed):
        await upstream.post(base_url, "/v1/x", {}, b"{}", stream=False)


@pytest.mark.parametrize("value", ["1\r\nx-other: 2", "1\nx-other: 2", "1\r"])
async def test_a_header_cannot_become_two(upstream: UpstreamClient, value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        await upstream.post("http://127.0.0.1:1", "/v1/x", {"x-request-id": value}, b"{}", stream=False)


async def test_closing_the_client_ends_what_runs(upstream: UpstreamClient) -> None:
    async def speak(line: Line) -> None:
        await line.read_request()
        await line.wait_until_closed()

    async with listening(speak) as engine:
        asking = asyncio.ensure_future(ask(upstream, engine))
        await until(lambda: engine.lines and engine.lines[0].heads)
        await upstream.close()
        with pytest.raises(UpstreamError):
            await asking
        await until(lambda: engine.lines[0].closed)
