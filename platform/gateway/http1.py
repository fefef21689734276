"""Connections of clients: HTTP/1.1 in, ASGI out, on one event loop and no other thread.

What a client sends is not trusted. llhttp parses it in its strict mode; whatever is no body is bounded in size and in
time; and a connection on which something came that cannot be understood is answered once more at most, and closed.

Requests of one connection are answered one after the other; beyond what came with the next one nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, cast
from urllib.parse import unquote

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
    parse_url,
)

from gateway import telemetry
from gateway.errors import (
    BadRequest,
    GatewayError,
    HeadTooLarge,
    HeadTooSlow,
    TargetTooLong,
    Unavailable,
    internal_error,
)
from gateway.http_request import CLOSE, ON_DISCONNECT, Headers, Message, Request, head

log = logging.getLogger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]

#: Of the target of a request; of its head, or any other stretch without a body, bytes.
MAX_TARGET_BYTES = 16 * 1024
MAX_FRAMING_BYTES = 64 * 1024
MAX_HEADERS = 100
#: A head may take so long, and so long a connection may wait for its next request, seconds.
HEAD_SECONDS = 10.0
IDLE_SECONDS = 75.0
#: After the last answer what still comes is read and thrown away for so long, seconds: a client that is not done
#: sending when its connection is closed may lose the answer.
LINGER_SECONDS = 2.0
#: Whoever will send no more may listen still, or have left. So long it is answered as if it listened, seconds.
HALF_CLOSED_SECONDS = 0.1


class Front:
    """What the connections of a process share. :meth:`look` is to be called each second."""

    def __init__(self, application: Application, *, most_connections: int) -> None:
        self.application = application
        self.connections: set[Connection] = set()
        #: What runs, for clients and, once those have left, for whoever follows.
        self.running: set[Request] = set()
        #: Connections are closed with the answer that they wait for.
        self.closing = False
        self.date = b""
        self._most_connections = most_connections
        self._over = asyncio.Event()
        self._tell_time()

    @property
    def is_full(self) -> bool:
        """More connections are open than may be."""
        return len(self.connections) > self._most_connections

    def accept(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self)

    def begin(self, request: Request) -> None:
        """Have a request answered."""
        self.running.add(request)
        request.task = asyncio.get_running_loop().create_task(self._run(request))

    def look(self) -> None:
        """Close what is silent for too long."""
        self._tell_time()
        now = asyncio.get_running_loop().time()
        for connection in tuple(self.connections):
            connection.look(now)

    def close(self) -> None:
        """Close each connection, those that wait for an answer once they have it."""
        self.closing = True
        for connection in tuple(self.connections):
            connection.close()
        self._see_whether_over()

    async def over(self) -> None:
        """Wait until nothing runs and no connection is open. Close it first."""
        await self._over.wait()

    def lost(self, connection: Connection) -> None:
        """Take note that a connection is gone."""
        self.connections.discard(connection)
        self._see_whether_over()

    def abort(self) -> None:
        """Close each connection at once, and stop all that runs."""
        for connection in tuple(self.connections):
            connection.abort()
        for request in self.running:
            if request.task is not None:
                request.task.cancel()

    async def _run(self, request: Request) -> None:
        try:
            await self.application(request.scope, request.receive, request.send)
        except Exception:
            log.exception("a request failed in the application")
        finally:
            self.running.discard(request)
            request.ran()
            self._see_whether_over()

    def _see_whether_over(self) -> None:
        if self.closing and not self.running and not self.connections:
            self._over.set()

    def _tell_time(self) -> None:
        self.date = b"date: " + formatdate(usegmt=True).encode()


class Connection(asyncio.Protocol):
    """One connection of one client. The loop calls what asyncio.Protocol has, httptools the other ``on_`` methods."""

    __slots__ = (
        "_answering",
        "_drains",
        "_expects",
        "_framing_bytes",
        "_front",
        "_headers",
        "_in_head",
        "_incoming",
        "_loop",
        "_parser",
        "_paused",
        "_peer",
        "_queue",
        "_refusal",
        "_shut",
        "_since",
        "_target",
        "_transport",
        "is_full",
    )

    def __init__(self, front: Front) -> None:
        self._front = front
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._peer: tuple[str, int] | None = None
        #: None once nothing more is heard.
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._target = b""
        self._headers: Headers = []
        self._expects = False
        #: A head is being read, or waited for.
        self._in_head = True
        self._framing_bytes = 0
        #: What is wrong with it.
        self._refusal: GatewayError | None = None
        #: Whose body comes; who is answered; and who is to be answered next.
        self._incoming: Request | None = None
        self._answering: Request | None = None
        self._queue: deque[Request] = deque()
        self._paused = False
        #: It takes no more answers.
        self._shut = False
        #: The loop's time when it was opened, a head began, an answer was given, or it was shut.
        self._since = self._loop.time()
        #: So much is unsent that whoever sends has to wait.
        self.is_full = False
        self._drains: list[asyncio.Future[None]] = []

    @property
    def date(self) -> bytes:
        """The header line that tells the time."""
        return self._front.date

    @property
    def stays_open(self) -> bool:
        """It will not be closed with the answer that is given now."""
        return not self._front.closing and (self._parser is not None or bool(self._queue))

    def write(self, data: bytes) -> None:
        """Send this."""
        if self._transport is not None and not self._shut:
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the client has read most of what was sent, or has left."""
        waiting = self._loop.create_future()
        self._drains.append(waiting)
        await waiting

    def read_on(self) -> None:
        """Listen again, unless the next request is here already."""
        if self._paused and not self._queue and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def ran(self, request: Request) -> None:
        """Take note that the application is done with a request, and go on to the next."""
        self._answering = None
        if not request.answered:
            if request.told:
                self.abort()
            else:
                self._answer_refusal(internal_error())
        elif not request.keeps:
            self._shut_down(lingers=not request.whole)
        elif self._queue:
            self._begin(self._queue.popleft())
            self.read_on()
        elif self._parser is None or self._front.closing:
            self._shut_down()
        else:
            self._since = self._loop.time()

    def close(self) -> None:
        """Close it, once who is answered has the answer."""
        if self._answering is None:
            self._shut_down()

    def abort(self) -> None:
        """Close it at once; what is not sent yet is not sent."""
        if self._transport is not None:
            self._transport.abort()

    def look(self, now: float) -> None:
        """Close it if it is silent for too long. ``now``: the loop's time, seconds."""
        silent_seconds = now - self._since
        if self._shut:
            if silent_seconds >= IDLE_SECONDS:
                self.abort()
            elif silent_seconds >= LINGER_SECONDS and self._transport is not None:
                self._transport.close()
        elif self._answering is not None:
            return
        elif self._in_head and silent_seconds >= HEAD_SECONDS:
            if self._framing_bytes:
                self._refuse(HeadTooSlow(f"The head did not arrive within {HEAD_SECONDS:g} s.", "head_too_slow"))
            else:
                self._shut_down()
        elif silent_seconds >= IDLE_SECONDS:
            self._shut_down()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = (peer[0], peer[1]) if peer else None
        self._front.connections.add(self)
        if self._front.is_full:
            self._refuse(Unavailable("Too many connections are open; try again.", "too_many_connections"))

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        parser = self._parser
        if parser is None:
            return
        self._framing_bytes += len(data)
        try:
            parser.feed_data(data)
        except HttpParserUpgrade:  # what would be spoken after this request is not spoken here
            self._parser = None
        except HttpParserError as error:
            if isinstance(error, HttpParserCallbackError):
                log.exception("a request could not be read")
            self._refuse(self._refusal or BadRequest(f"This is no HTTP/1.1 request: {error}.", "bad_http"))
            return
        if self._refusal is None and self._framing_bytes > MAX_FRAMING_BYTES:
            self._refusal = self._too_large()
        if self._refusal is not None:
            self._refuse(self._refusal)

    def eof_received(self) -> bool:
        """Called by the loop: the client will send no more. Return whether it may be sent something."""
        self._parser = None
        if self._incoming is not None:
            self._incoming.break_off()
            self._incoming = None
        if self._answering is None:
            return False
        self._loop.call_later(HALF_CLOSED_SECONDS, self._leave)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop, once."""
        self._front.lost(self)
        self._parser = self._transport = None
        self._leave()

    def pause_writing(self) -> None:
        """Called by the loop."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.is_full = False
        drains, self._drains = self._drains, []
        for waiting in drains:
            if not waiting.done():
                waiting.set_result(None)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._target = b""
        self._headers = []
        self._expects = False
        self._in_head = True
        self._since = self._loop.time()

    def on_url(self, target: bytes) -> None:
        """Some of the target came."""
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header came, or a trailer, of which nothing is kept."""
        if not self._in_head:
            return
        name = name.lower()
        if name == b"expect":
            self._expects = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole, and its request begins, unless another is still answered."""
        parser = self._parser
        self._in_head = False
        if parser is None or self._refusal is not None:
            return
        version = parser.get_http_version()
        self._refusal = self._wrong_head(version)
        self._framing_bytes = 0
        if self._refusal is not None:
            return
        path, query = _split(self._target)
        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "scheme": "http",
            "path": path,
            "raw_path": self._target.partition(b"?")[0],
            "query_string": query,
            "root_path": "",
            "headers": self._headers,
            "client": self._peer,
            "server": None,
        }
        keeps = version == "1.1" and parser.should_keep_alive()
        request = self._incoming = Request(self, scope, keeps=keeps, expects=self._expects)
        scope["extensions"] = {ON_DISCONNECT: request.on_disconnect}
        if self._answering is None:
            self._begin(request)
        else:
            self._queue.append(request)
            self._pause()

    def on_body(self, piece: bytes) -> None:
        """Some of a body came; chunks are taken apart already."""
        self._framing_bytes = 0
        if self._incoming is not None and not self._incoming.feed(piece):
            self._pause()

    def on_message_complete(self) -> None:
        """A request is whole."""
        self._framing_bytes = 0
        if self._incoming is not None:
            self._incoming.end()
            self._incoming = None

    def _begin(self, request: Request) -> None:
        self._answering = request
        self._front.begin(request)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _wrong_head(self, version: str) -> GatewayError | None:
        """Return what is wrong with the head that has come."""
        if version not in {"1.0", "1.1"}:
            return BadRequest(f"HTTP/{version} is not spoken here, but HTTP/1.1.", "bad_http")
        if len(self._target) > MAX_TARGET_BYTES:
            return self._too_large()
        # only then can it be too long
        long = self._framing_bytes > MAX_FRAMING_BYTES
        if long and sum(len(name) + len(value) for name, value in self._headers) > MAX_FRAMING_BYTES:
            return self._too_large()
        return self._too_large() if len(self._headers) > MAX_HEADERS else None

    def _too_large(self) -> GatewayError:
        if len(self._target) > MAX_TARGET_BYTES:
            return TargetTooLong(f"The target is longer than the {MAX_TARGET_BYTES} bytes allowed.", "target_too_long")
        return HeadTooLarge(
            f"The head is larger than the {MAX_FRAMING_BYTES} bytes allowed, or has more than {MAX_HEADERS} headers.",
            "head_too_large",
        )

    def _refuse(self, error: GatewayError) -> None:
        """Hear no more; tell why, unless somebody is answered. Of whom that is the body, the application decides."""
        self._parser = None
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.break_off()
        elif self._answering is None:
            self._answer_refusal(error)

    def _answer_refusal(self, error: GatewayError) -> None:
        telemetry.answered("unread", "", error.status)
        body = error.body()
        length = (b"content-length", b"%d" % len(body))
        headers = [(b"content-type", b"application/json"), length, CLOSE, *error.headers]
        self.write(head(error.status, self.date, headers) + b"\r\n\r\n" + body)
        self._shut_down(lingers=True)

    def _shut_down(self, *, lingers: bool = False) -> None:
        """Close it when what was written is sent. ``lingers``: and not before its client has, or had time to."""
        self._parser = None
        self._since = self._loop.time()
        if self._transport is None or self._shut:
            return
        self._shut = True
        if lingers and not self._transport.is_closing():
            self._transport.write_eof()
            self.read_on()
        else:
            self._transport.close()

    def _leave(self) -> None:
        """Tell whoever is answered, or would be, that the client has left."""
        answering, self._answering = self._answering, None
        queue, self._queue = self._queue, deque()
        for request in (answering, *queue):
            if request is not None:
                request.left()
        self._incoming = None
        self.resume_writing()
        if self._transport is not None:
            self._transport.close()


def _split(target: bytes) -> tuple[str, bytes]:
    """Return the path, decoded, and the query of a target. It may name a whole URL (RFC 9112, 3.2.2)."""
    if target[:1] == b"/":
        path, _, query = target.partition(b"?")
    else:
        try:
            url = parse_url(target)
        except HttpParserError:  # an asterisk, or an authority
            path, query = target, b""
        else:
            path, query = url.path or b"/", url.query or b""
    text = path.decode("latin-1")
    return unquote(text) if "%" in text else text, query
