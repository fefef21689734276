"""What clients send: which bytes are a request, what is refused, and that nothing is hidden behind anything."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.server import connection, request_head
from tests.gateway.fixtures.http_server import Site, echo, read, served, unread, until

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"


def post(body: bytes, *headers: bytes, path: bytes = b"/a") -> bytes:
    """Return a request with a Content-Length."""
    lines = [b"POST " + path + b" HTTP/1.1", b"host: x", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(body: bytes, *headers: bytes) -> bytes:
    """Return a request that comes in chunks, the last one included in ``body``."""
    lines = [b"POST /a HTTP/1.1", b"host: x", b"transfer-encoding: chunked", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@served
async def test_a_connection_carries_one_request_after_the_other(site: Site) -> None:
    client = await site.client()
    for number in range(3):
        client.say(post(b"%d" % number) if number != 1 else chunked(b"1\r\n1\r\n0\r\n\r\n"))
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"/a %d" % number)
        assert b"connection" not in answer.headers
        assert answer.headers[b"date"].endswith(b" GMT")


@served
async def test_hundreds_of_requests_sent_at_once_are_answered_in_order(site: Site) -> None:
    numbers = range(connection.MAX_QUEUED)
    client = await site.client(b"".join(post(b"%d" % number) for number in numbers))
    assert [(await client.answer()).body for _ in numbers] == [b"/a %d" % number for number in numbers]
    client.say(GET)
    assert (await client.answer()).body == b"/a "


@served
async def test_of_more_requests_at_once_than_are_held_the_first_are_answered(site: Site) -> None:
    """One segment of the smallest requests would otherwise hold eighty times its size."""
    client = await site.client(GET * (3 * connection.MAX_QUEUED))
    answers = [await client.answer() for _ in range(connection.MAX_QUEUED + 1)]
    assert answers[-1].headers[b"connection"] == b"close"
    assert await client.rest() == b""
    assert len(site.scopes) == connection.MAX_QUEUED + 1


@served
async def test_the_next_request_waits_until_the_one_before_is_done(site: Site) -> None:
    go_on = asyncio.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await echo(scope, receive, send)

    site.pages["/wait"] = wait
    client = await site.client(post(b"1", path=b"/wait") + GET)
    await until(lambda: site.paths == ["/wait"])
    client.say(GET)
    go_on.set()
    assert [(await client.answer()).body for _ in range(3)] == [b"/wait 1", b"/a ", b"/a "]


@served
async def test_a_broken_request_behind_a_good_one_is_not_answered_but_the_good_one_is(site: Site) -> None:
    client = await site.client(post(b"1") + b"BROKEN\r\n\r\n" + HIDDEN)
    answer = await client.answer()
    assert (answer.body, answer.headers[b"connection"]) == (b"/a 1", b"close")
    assert await client.rest() == b""
    assert site.paths == ["/a"]


BODIES = {
    "two lengths": post(b"", b"content-length: 5"),
    "a list of lengths": post(b"", b"content-length: 5, 5"),
    "length and chunks": post(b"0\r\n\r\n", b"transfer-encoding: chunked"),
    "chunks and length": chunked(b"0\r\n\r\n", b"content-length: 5"),
    "a length of nothing": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n\r\n",
    "a signed length": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: +0\r\n\r\n",
    "a length of 65 bits": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551616\r\n\r\n",
    "a space before the colon": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length : 0\r\n\r\n",
    "chunked is not last": b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": chunked(b"0\r\n\r\n", b"transfer-encoding: x"),
    "a folded header": b"GET /a HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
    "lines without a return": b"GET /a HTTP/1.1\nhost: x\n\n",
    "a return alone": b"GET /a HTTP/1.1\r\nhost: x\r\na: b\rc: d\r\n\r\n",
    "a nothing in a header": b"GET /a HTTP/1.1\r\nhost: x\r\na: \0\r\n\r\n",
    "no name": b"GET /a HTTP/1.1\r\nhost: x\r\n: b\r\n\r\n",
    "a space in a name": b"GET /a HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
    "a line before the version": b"GET /a\r\nHTTP/1.1\r\nhost: x\r\n\r\n",
    "no host": b"GET /a HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /a HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n",
    "two hosts of an old client": b"GET /a HTTP/1.0\r\nhost: x\r\nHost: x\r\n\r\n",
    "version 0.9": b"GET /a\r\n\r\n",
    "version 1.2": b"GET /a HTTP/1.2\r\nhost: x\r\n\r\n",
    "version 2.0": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown method": b"HACK /a HTTP/1.1\r\nhost: x\r\n\r\n",
    "a chunk's size of 65 bits": chunked(b"10000000000000000\r\na\r\n0\r\n\r\n"),
    "a signed chunk": chunked(b"-1\r\na\r\n0\r\n\r\n"),
    "a chunk of 0x1": chunked(b"0x1\r\na\r\n0\r\n\r\n"),
    "a chunk without an end": chunked(b"1\r\nab\r\n0\r\n\r\n"),
    "a line in a chunk's extension": chunked(b"1;a\nb\r\na\r\n0\r\n\r\n"),
    "a space after a chunk's size": chunked(b"1 \r\na\r\n0\r\n\r\n"),
    "a folded trailer": chunked(b"0\r\na: b\r\n c\r\n\r\n"),
}


@pytest.mark.parametrize("raw", BODIES.values(), ids=BODIES.keys())
@served
async def test_what_two_servers_could_read_differently_is_refused_with_all_behind_it(site: Site, raw: bytes) -> None:
    client = await site.client(raw + HIDDEN)
    assert await client.statuses() == [400]
    assert "/hidden" not in site.paths


@pytest.mark.parametrize("at", [1, 7, 40, 60])
@served
async def test_a_request_may_come_in_pieces(site: Site, at: int) -> None:
    raw = chunked(b"3;a=b\r\nabc\r\n0\r\nx-trailer: 1\r\n\r\n", b"x-header: 1")
    client = await site.client(raw[:at])
    await until(lambda: all(each._framing_bytes for each in site.server.connections))
    client.say(raw[at:])
    assert (await client.answer()).body == b"/a abc"
    assert site.scopes[0]["headers"] == [(b"host", b"x"), (b"transfer-encoding", b"chunked"), (b"x-header", b"1")]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/v1/models?a=b%20c?d", "/v1/models", b"a=b%20c?d"),
        (b"/v1/models/a%2Fb%20%C3%A9", "/v1/models/a/b é", b""),
        (b"/v1/models/a%0d%0ab", "/v1/models/a\r\nb", b""),
        (b"/v1%2Fmodels", "/v1%2Fmodels", b""),
        (b"/v1/chat/%63ompletions", "/v1/chat/%63ompletions", b""),
        (b"/v1/%6dodels/a", "/v1/%6dodels/a", b""),
        (b"//x/a", "//x/a", b""),
        (b"http://hearth:8080/v1/models?a=b", "/v1/models", b"a=b"),
        (b"http://hearth", "/", b""),
        (b"http://hearth?a=b", "/", b"a=b"),
        (b"*", "*", b""),
    ],
)
@served
async def test_a_target_is_taken_apart(site: Site, target: bytes, path: str, query: bytes) -> None:
    client = await site.client(b"OPTIONS " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await client.answer()).status == 200
    assert [(scope["path"], scope["query_string"]) for scope in site.scopes] == [(path, query)]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /" + b"a" * request_head.MAX_TARGET_BYTES + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"a" * 500_000, 414),
        (b"GET /a HTTP/1.1\r\na: " + b"a" * request_head.MAX_FRAMING_BYTES + b"\r\n\r\n", 431),
        (b"GET /a HTTP/1.1\r\n" + b"a: b\r\n" * (request_head.MAX_HEADERS + 1) + b"\r\n", 431),
        (b"\r\n" * request_head.MAX_FRAMING_BYTES, 431),
    ],
    ids=["target", "endless target", "header", "headers", "nothing"],
)
@served
async def test_a_head_is_bounded(site: Site, raw: bytes, status: int) -> None:
    client = await site.client(raw)
    assert await client.statuses() == [status]
    assert site.paths == []


@pytest.mark.parametrize("endless", [b"1;" + b"a" * 500_000, b"0\r\n" + b"a: b\r\n" * 100_000])
@served
async def test_extensions_of_chunks_and_trailers_are_bounded(site: Site, endless: bytes) -> None:
    client = await site.client(chunked(endless))
    assert await client.statuses() == [400]


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
@served
async def test_a_client_that_would_speak_something_else_is_answered_in_this(site: Site, upgrade: bytes) -> None:
    """Java's client asks for h2c with each first request, and sends its body at once."""
    ask = (b"connection: upgrade", b"upgrade: " + upgrade)
    requests = [
        post(b"in one", *ask),
        chunked(b"9\r\nin chunks\r\n0\r\n\r\n", *ask),
        post(b"", *ask),
        b"GET /a HTTP/1.1\r\nhost: x\r\n" + b"\r\n".join(ask) + b"\r\n\r\n",
        post(b"as before"),
    ]
    bodies = [b"/a in one", b"/a in chunks", b"/a ", b"/a ", b"/a as before"]
    client = await site.client(b"".join(requests))
    assert [(await client.answer()).body for _ in bodies] == bodies
    for request, body in zip(requests, bodies, strict=True):
        client.say(request)
        assert (await client.answer()).body == body
    dribbling = await site.client()
    for byte in requests[0] + requests[1]:
        dribbling.say(bytes([byte]))
        await asyncio.sleep(0)
    assert [(await dribbling.answer()).body for _ in range(2)] == bodies[:2]


@served
async def test_a_tunnel_is_not_opened(site: Site) -> None:
    client = await site.client(b"CONNECT inside:443 HTTP/1.1\r\nhost: inside:443\r\n\r\n" + HIDDEN)
    answer = await client.answer()
    assert (answer.status, answer.headers[b"connection"]) == (200, b"close")
    assert await client.rest() == b""
    assert site.paths == ["inside:443"]


@served
async def test_an_old_client_is_answered_without_chunks_and_without_a_second_request(site: Site) -> None:
    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"a", b"b", b""):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(piece)})

    site.pages["/a"] = stream
    old = b"POST /a HTTP/1.0\r\nconnection: keep-alive\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
    client = await site.client(old)
    head = await client.head()
    assert (head.status, head.headers[b"connection"]) == (200, b"close")
    assert b"transfer-encoding" not in head.headers
    assert await client.rest() == b"ab"


@pytest.mark.parametrize("length", [b"content-length: 3", b"transfer-encoding: chunked"])
@served
async def test_who_waits_to_be_told_to_send_the_body_is_told_when_it_is_wanted(site: Site, length: bytes) -> None:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\n" + length + b"\r\n\r\n"
    client = await site.client(head % b"/a")
    assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.say(b"abc" if b"length" in length else b"3\r\nabc\r\n0\r\n\r\n")
    assert (await client.answer()).body == b"/a abc"
    site.pages["/unread"] = unread
    client.say(head % b"/unread")
    assert (await client.answer()).headers[b"connection"] == b"close"
    assert await client.rest() == b""


@served
async def test_who_sends_the_body_at_once_is_not_told_to(site: Site) -> None:
    async def wait(scope: Any, receive: Any, send: Any) -> None:
        body = await read(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    site.pages["/wait"] = wait
    client = await site.client(post(b"abc", b"expect: 100-continue", path=b"/wait"))
    await client.head()
    client.writer.write_eof()
    with pytest.raises(asyncio.IncompleteReadError) as broken:
        await client.answer()
    assert b"100 Continue" not in broken.value.partial
