"""What clients receive, and when their connections end: answers, slow readers, leaving, timeouts, an orderly end."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from gateway.server import connection, request_response
from tests.gateway.fixtures.http_server import START, Site, left, piece, read, served, tell, unread, unsent, until

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
#: Of one write, and far over what all buffers between a page and its client hold.
PIECE_BYTES, ALL_BUFFERS_BYTES = 64 * 1024, 32 << 20


class Flood:
    """A page that says as much as its client takes."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.said_bytes = 0
        self.ended = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.gone = left(scope)
        await send(START)
        while not self.gone.is_set():
            await send(piece(bytes(PIECE_BYTES)))
            self.said_bytes += PIECE_BYTES
        self.ended = True

    async def is_held(self) -> None:
        """Wait until the client stops reading."""
        before = -1
        while before != self.said_bytes:
            before = self.said_bytes
            await asyncio.sleep(0.05)


@served
async def test_a_stream_is_told_piece_by_piece_with_its_head_at_once(site: Site) -> None:
    go_on = asyncio.Event()

    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await go_on.wait()
        for body in (b"one ", b"", b"two"):
            await send(piece(body))
        await send(piece(b"", more=False))

    site.pages["/stream"] = page
    client = await site.client(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
    head = await client.head()
    assert (head.headers[b"transfer-encoding"], head.headers[b"content-type"]) == (b"chunked", b"text/plain")
    go_on.set()
    assert await client.reader.readexactly(22) == b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"
    client.say(GET)
    assert (await client.answer()).body == b"/a "


@pytest.mark.parametrize("stream", [False, True])
@served
async def test_a_head_alone_is_answered_without_a_body_and_the_connection_is_kept(site: Site, stream: bool) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        if stream:
            await send(START)
            await send(piece(b"body"))
            await send(piece(b"", more=False))
        else:
            await tell(send, b"body")

    site.pages["/page"] = page
    client = await site.client(b"HEAD /page HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
    head = await client.head()
    assert (head.status, head.headers.get(b"content-length")) == (200, None if stream else b"4")
    assert b"transfer-encoding" not in head.headers
    assert (await client.answer()).body == b"/a "


@pytest.mark.parametrize("status", [204, 304])
@served
async def test_an_answer_that_has_no_body_gets_none(site: Site, status: int) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send(piece(b"body", more=False))

    site.pages["/page"] = page
    client = await site.client(b"GET /page HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
    assert (await client.head()).status == status
    assert (await client.answer()).body == b"/a "


@pytest.mark.parametrize("bad", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb", b"a\r\n\r\n"])
@served
async def test_a_header_cannot_become_two(site: Site, bad: bytes) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await tell(send, b"", headers=((b"x-request-id", bad),))

    site.pages["/a"] = page
    client = await site.client(GET)
    said = await client.rest()
    assert said.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"set-cookie" not in said


@served
async def test_a_status_without_a_name_can_be_told(site: Site) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await tell(send, b"late", status=529)

    site.pages["/a"] = page
    answer = await (await site.client(GET)).answer()
    assert (answer.status, answer.body) == (529, b"late")


@served
async def test_a_page_that_fails_before_its_answer_is_told_as_500(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the reason")

    async def fail_late(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        raise RuntimeError("the reason")

    async def say_nothing(scope: Any, receive: Any, send: Any) -> None:
        return

    for page in (fail, fail_late, say_nothing):
        site.pages["/a"] = page
        client = await site.client(GET)
        answer = await client.answer()
        assert (answer.status, b'"internal_error"' in answer.body) == (500, True)
        assert await client.rest() == b""
    assert [record.message for record in caplog.records] == ["a request failed in the application"] * 2


@pytest.mark.parametrize("raises", [False, True])
@served
async def test_a_page_that_fails_in_its_answer_does_not_seem_to_have_ended(
    site: Site, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(piece(b"some"))
        if raises:
            raise RuntimeError("the reason")

    site.pages["/a"] = page
    client = await site.client(GET)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await client.answer()
    assert len(caplog.records) == raises


@pytest.mark.parametrize("keeps", [True, False])
@served
async def test_an_answer_arrives_though_the_body_is_not_read(site: Site, keeps: bool) -> None:
    """Eight megabytes more than is read ahead. A reset would take the answer away."""
    site.pages["/unread"] = unread
    length = 3 * request_response.READ_AHEAD_BYTES if keeps else 8 << 20
    client = await site.client(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length)
    client.say(bytes(length))
    answer = await client.answer()
    assert answer.body == b"unread"
    if answer.headers.get(b"connection") == b"close":
        assert await client.rest() == b""
    else:
        client.say(GET)
        assert (await client.answer()).body == b"/a "


@served
async def test_a_refused_client_that_sends_on_is_read_only_now_and_then(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DISCARDS_PER_SECOND", 0.001)
    site.pages["/unread"] = unread
    head = b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (2 * ALL_BUFFERS_BYTES)
    client = await site.client(head + bytes(2 * ALL_BUFFERS_BYTES))
    assert (await client.answer()).body == b"unread"
    assert await client.rest() == b""
    await until(lambda: site.server.discarding == 1)
    assert client.transport.get_write_buffer_size() > 0
    lingering = {id(each) for each in site.server.connections}
    requests = [each for each in gc.get_objects() if type(each) is request_response.RequestResponse]
    assert not [each for each in requests if any(id(user) in lingering for user in gc.get_referrers(each))]
    site.look(connection.LINGER_SECONDS + 1)
    await until(lambda: not site.server.connections)


@served
async def test_a_whole_body_that_nobody_reads_is_in_no_later_requests_way(site: Site) -> None:
    go_on = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await unread(scope, receive, send)

    site.pages["/unread"] = wait
    length = request_response.READ_AHEAD_BYTES + 1
    client = await site.client(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length)
    await until(lambda: site.paths == ["/unread"])
    client.say(bytes(length))
    await until(lambda: all(request.whole for request in site.server.running))
    go_on.set()
    assert b"connection" not in (await client.answer()).headers
    client.say(GET)
    assert (await client.answer()).body == b"/a "


@served
async def test_of_a_body_that_nobody_takes_yet_little_is_read(site: Site) -> None:
    go_on = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await tell(send, b"%d" % len(await read(receive)))

    site.pages["/wait"] = wait
    head = b"POST /wait HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % ALL_BUFFERS_BYTES
    client = await site.client(head + bytes(ALL_BUFFERS_BYTES))
    await until(lambda: any(request._size for request in site.server.running))
    waiting = -1
    while waiting != client.transport.get_write_buffer_size():
        waiting = client.transport.get_write_buffer_size()
        await asyncio.sleep(0.05)
    (request,) = site.server.running
    assert request._size < request_response.READ_AHEAD_BYTES + (1 << 18)
    assert waiting > 0
    go_on.set()
    assert (await client.answer()).body == b"%d" % ALL_BUFFERS_BYTES


@served
async def test_a_client_that_does_not_read_holds_its_page_up_and_nothing_grows(site: Site) -> None:
    flood = site.pages["/a"] = Flood()
    client = await site.client()
    client.transport.pause_reading()
    client.say(GET)
    await until(lambda: bool(flood.said_bytes))
    await flood.is_held()
    held = flood.said_bytes
    assert held < ALL_BUFFERS_BYTES
    (connection,) = site.server.connections
    assert unsent(connection) < 4 * PIECE_BYTES
    client.transport.resume_reading()
    await client.reader.readexactly(2 * held)
    assert flood.said_bytes > held
    client.transport.pause_reading()
    await flood.is_held()
    client.transport.abort()
    await until(lambda: flood.ended)
    assert not site.server.connections


@pytest.mark.parametrize("path", ["/flood", "/whole"])
@served
async def test_a_client_that_reads_nothing_for_too_long_is_cut_off(site: Site, path: str) -> None:
    flood = site.pages["/flood"] = Flood()

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        await tell(send, bytes(ALL_BUFFERS_BYTES))

    site.pages["/whole"] = whole
    client = await site.client()
    client.transport.pause_reading()
    client.say(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
    await until(lambda: any(connection.is_full for connection in site.server.connections))
    await flood.is_held()
    site.look(0)
    site.look(site.server.send_timeout_seconds - 1)
    assert len(site.server.connections) == 1
    site.look(site.server.send_timeout_seconds + 1)
    await until(lambda: not site.server.connections and not site.server.running)
    client.transport.resume_reading()
    with pytest.raises(ConnectionResetError):
        await client.rest()


@served
async def test_a_client_that_reads_slowly_is_not_cut_off(site: Site) -> None:
    async def whole(scope: Any, receive: Any, send: Any) -> None:
        await tell(send, bytes(ALL_BUFFERS_BYTES))

    site.pages["/a"] = whole
    client = await site.client()
    client.transport.pause_reading()
    client.say(GET)
    await until(lambda: any(connection.is_full for connection in site.server.connections))
    site.look(0)
    (connection,) = site.server.connections
    before = unsent(connection)
    client.transport.resume_reading()
    await client.head()
    await client.reader.readexactly(ALL_BUFFERS_BYTES // 4)
    await until(lambda: unsent(connection) < before)
    site.look(1000 * site.server.send_timeout_seconds)
    body = await client.reader.readexactly(ALL_BUFFERS_BYTES - ALL_BUFFERS_BYTES // 4)
    assert len(body) == ALL_BUFFERS_BYTES - ALL_BUFFERS_BYTES // 4
