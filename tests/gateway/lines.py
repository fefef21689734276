"""Engines that say byte for byte what a test wants, and how to ask them through the HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from gateway.upstream import Upstream

Speak = Callable[["Line"], Awaitable[None]]

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Line:
    """One connection as the engine sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        #: The other side has closed it.
        self.closed = False

    async def hear(self) -> None:
        """Read one request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        self.bodies.append(await self.reader.readexactly(int(fields[b"content-length"])))
        self.heads.append(head)

    async def say(self, *pieces: bytes) -> None:
        """Write pieces one by one."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def wait_until_closed(self) -> None:
        """Read until the other side closes."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                continue
        self.closed = True


class Engine:
    """A server on a free port. ``speak`` has one connection after another, and ends it by returning."""

    def __init__(self, speak: Speak) -> None:
        self.speak = speak
        self.lines: list[Line] = []
        self.base_url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        line = Line(reader, writer)
        self.lines.append(line)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.speak(line)
        writer.close()


@contextlib.asynccontextmanager
async def listening(speak: Speak) -> AsyncIterator[Engine]:
    """Run an engine for as long as the block lasts."""
    engine = Engine(speak)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        for line in engine.lines:
            line.writer.close()
        await server.wait_closed()


def saying(*pieces: bytes) -> Speak:
    """Answer the first request with these bytes, then close."""

    async def speak(line: Line) -> None:
        await line.hear()
        await line.say(*pieces)

    return speak


def saying_each_time(*pieces: bytes) -> Speak:
    """Answer every request with these bytes."""

    async def speak(line: Line) -> None:
        while True:
            await line.hear()
            await line.say(*pieces)

    return speak


async def ask(upstream: Upstream, engine: Engine, body: bytes = b"{}") -> tuple[int, bytes]:
    """Return status and body of a whole answer."""
    exchange = await upstream.post(engine.base_url, "/v1/x", {"x-request-id": "1"}, body, stream=False)
    answer = exchange.status, exchange.take()
    exchange.close()
    return answer


async def stream(upstream: Upstream, engine: Engine) -> list[bytes]:
    """Return the pieces of a streamed answer."""
    exchange = await upstream.post(engine.base_url, "/v1/x", {}, b"{}", stream=True)
    pieces = [exchange.take()]
    try:
        while piece := await exchange.piece():
            pieces.append(piece)
    finally:
        exchange.close()
    return pieces
