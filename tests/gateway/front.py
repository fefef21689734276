"""A front on a socket of its own, the pages that it serves, and clients that say it bytes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import uvloop

from gateway.http1 import Application, Front
from gateway.http_connection import Connection
from gateway.http_request import ON_DISCONNECT

Page = Callable[[Any, Any, Any], Awaitable[None]]
#: A busy machine is no failure.
PATIENCE_SECONDS = 60
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")


class Broken(Exception):
    """A body broke off."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as the client sees it."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


@dataclass(slots=True)
class Client:
    """One connection, of which nothing is read but what is asked for."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def say(self, raw: bytes) -> None:
        """Send these bytes."""
        self.writer.write(raw)

    @property
    def transport(self) -> asyncio.Transport:
        """What can be told to read nothing, or be aborted."""
        return cast(asyncio.Transport, self.writer.transport)

    async def head(self) -> Answer:
        """Return the next answer, without its body."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
        version, status, _ = first.split(b" ", 2)
        assert version == b"HTTP/1.1"
        headers = dict(line.split(b": ", 1) for line in lines)
        assert len(headers) == len(lines)
        return Answer(int(status), headers, b"")

    async def answer(self) -> Answer:
        """Return the next answer."""
        head = await self.head()
        if b"transfer-encoding" in head.headers:
            body = await self._chunks()
        else:
            body = await self.reader.readexactly(int(head.headers[b"content-length"]))
        return Answer(head.status, head.headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        assert await self.reader.readexactly(2) == b"\r\n"
        return body

    async def rest(self) -> bytes:
        """Return what comes until the server closes. Raises ConnectionError when it resets the connection."""
        return await self.reader.read()

    async def statuses(self) -> list[int]:
        """Return the status of each answer, in order, until the server closes."""
        return [int(status) for status in _STATUS.findall(await self.rest())]


@dataclass(slots=True)
class Site:
    """Serves pages by path; whatever has none is an echo."""

    pages: dict[str, Page] = field(default_factory=dict)
    scopes: list[Any] = field(default_factory=list)
    front: Front = field(init=False)
    port: int = 0
    _clients: list[Client] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def start(self, *, most_connections: int = 100, send_timeout_seconds: float = 60.0) -> None:
        """Listen on a port that the kernel chooses."""
        application: Application = self._serve
        self.front = Front(application, most_connections=most_connections, send_timeout_seconds=send_timeout_seconds)
        self._server = await asyncio.get_running_loop().create_server(self.front.accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End at once, and fail if something is left."""
        assert self._server is not None
        self._server.close()
        for client in self._clients:
            client.transport.abort()
        self.front.close()
        self.front.abort()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.front.over()

    async def client(self, raw: bytes = b"") -> Client:
        """Connect, and say this."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        client.say(raw)
        return client

    def look(self, later_seconds: float) -> None:
        """Have each connection looked at as if it were later."""
        now = asyncio.get_running_loop().time() + later_seconds
        for connection in (*self.front.connections, *self.front.turned_away):
            connection.look(now)

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [scope["path"] for scope in self.scopes]

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append({**scope, "extensions": None})
        try:
            await self.pages.get(scope["path"], echo)(scope, receive, send)
        except Broken:
            await tell(send, b"broken", status=400)


def served(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Give a test a site, on uvloop, which gateways run on. Fails if a task is left, or the loop tells of a failure."""

    async def work(given: dict[str, Any]) -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        site = Site()
        await site.start()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await test(site=site, **given)
        finally:
            await site.stop()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        assert failures == []

    @functools.wraps(test)
    def run(**given: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(given))

    signature = inspect.signature(test)
    others = [each for name, each in signature.parameters.items() if name != "site"]
    run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return run


async def read(receive: Any) -> bytes:
    """Return the whole body. Raises Broken."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Broken
        pieces.append(message["body"])
        if not message["more_body"]:
            return b"".join(pieces)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Say the path and the body."""
    await tell(send, scope["path"].encode() + b" " + await read(receive))


async def unread(scope: Any, receive: Any, send: Any) -> None:
    """Answer without a look at the body."""
    await tell(send, b"unread")


async def tell(send: Any, body: bytes, *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """Answer with this body."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


def left(scope: Any) -> asyncio.Event:
    """Return what is set when the client leaves before it has its answer."""
    gone = asyncio.Event()
    scope["extensions"][ON_DISCONNECT](gone.set)
    return gone


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not holds():
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail("it does not come to hold")
        await asyncio.sleep(0.002)


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    """Return a piece of an answer's body."""
    return {"type": "http.response.body", "body": body, "more_body": more}


class Stream:
    """A page that says a first piece, and the last one when it may."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.gone = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.gone = left(scope)
        await send(START)
        await send(piece(b"first "))
        await self.go_on.wait()
        await send(piece(b"last"))
        await send(piece(b"", more=False))


async def end_of(client: Client) -> bytes:
    """Return what comes until the server closes or resets the connection."""
    try:
        return await client.rest()
    except ConnectionError:
        return b""


def unsent(connection: Connection) -> int:
    """Return how many bytes this process holds of what was said on a connection."""
    assert connection._transport is not None
    return connection._transport.get_write_buffer_size()
