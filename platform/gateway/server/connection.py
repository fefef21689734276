"""One client's connection: what is heard on it becomes requests, whose answers are sent in their order.

What a client sends is not trusted. llhttp parses it in its strict mode; whatever is no body is bounded in size and in
time; and a connection on which something came that cannot be understood is answered once more at most, and closed.

Requests of one connection are answered one after the other; beyond what came with the next one nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from typing import Protocol, cast

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from gateway.server import request_head
from gateway.server.rejection import Rejection, Render
from gateway.server.request_response import ON_DISCONNECT, Headers, RequestResponse

log = logging.getLogger(__name__)

#: Requests of one connection that wait for the one before them. Each holds eighty times what its bytes do.
MAX_QUEUED = 256
#: A head may take so long, and so long a connection may wait for its next request, seconds.
HEAD_SECONDS = 10.0
IDLE_SECONDS = 75.0
#: After the last answer what still comes is read and thrown away for so long, seconds: a client that is not done
#: sending when its connection is closed may lose the answer.
LINGER_SECONDS = 2.0
#: Whoever will send no more may listen still, or have left. So long it is answered as if it listened, seconds.
HALF_CLOSED_SECONDS = 0.1
_NO_LINGER = struct.pack("ii", 1, 0)


class Shared(Protocol):
    """What the connections of a process share (``gateway.server.server.Front``)."""

    #: Connections are closed with the answer that they wait for.
    closing: bool
    #: The header line that tells the time.
    date: bytes
    send_timeout_seconds: float
    render: Render

    def opened(self, connection: ClientConnection) -> None:
        """Take note that a connection is there."""

    def begin(self, request: RequestResponse) -> None:
        """Have a request answered."""

    def lost(self, connection: ClientConnection) -> None:
        """Take note that a connection is gone."""


class ClientConnection(asyncio.Protocol):
    """One connection. The loop calls what asyncio.Protocol has, httptools the other ``on_`` methods."""

    __slots__ = (
        "_answering",
        "_drains",
        "_expects",
        "_framing_bytes",
        "_headers",
        "_in_head",
        "_incoming",
        "_loop",
        "_parser",
        "_paused",
        "_peer",
        "_queue",
        "_refusal",
        "_server",
        "_shut",
        "_since",
        "_taken_at",
        "_target",
        "_transport",
        "_unsent_bytes",
        "is_full",
    )

    def __init__(self, server: Shared) -> None:
        self._server = server
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
        self._refusal: Rejection | None = None
        #: Whose body comes; who is answered; and who is to be answered next.
        self._incoming: RequestResponse | None = None
        self._answering: RequestResponse | None = None
        self._queue: deque[RequestResponse] = deque()
        self._paused = False
        #: It takes no more answers.
        self._shut = False
        #: The loop's time when it was opened, a head began, an answer was given, or it was shut.
        self._since = self._loop.time()
        #: So much is unsent that whoever sends has to wait; what was unsent, and since when.
        self.is_full = False
        self._unsent_bytes = 0
        self._taken_at = 0.0
        self._drains: list[asyncio.Future[None]] = []

    @property
    def date(self) -> bytes:
        """The header line that tells the time."""
        return self._server.date

    @property
    def stays_open(self) -> bool:
        """It will not be closed with the answer that is given now."""
        return not self._server.closing and (self._parser is not None or bool(self._queue))

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

    def finished(self, request: RequestResponse) -> None:
        """Take note that the application is done with a request, and go on to the next."""
        self._answering = None
        if not request.answered:
            if request.started:
                self.abort()
            else:
                self._answer_refusal(Rejection(500, "internal_error", "The request failed; nothing was charged."))
        elif request.keeps and self._queue:
            self._begin(self._queue.popleft())
            self.read_on()
        elif not self.stays_open or not request.keeps:
            self._shut_down(lingers=True)
        else:
            self._since = self._loop.time()
            self.read_on()

    def close(self) -> None:
        """Close it, once whoever is answered, or is heard already, has the answer."""
        if self._answering is None and not (self._in_head and self._framing_bytes):
            self._shut_down()

    def abort(self) -> None:
        """Close it at once; what is not sent yet is not sent."""
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, error: Rejection) -> None:
        """Hear no more; tell why, unless somebody is answered. Of whom that is the body, the application decides."""
        self._parser = None
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.break_off()
        elif self._answering is None:
            self._answer_refusal(error)

    def check_timeouts(self, now: float) -> None:
        """Close it if it is silent for too long. ``now``: the loop's time, seconds."""
        silent_seconds = now - self._since
        if self.is_full and self._is_stuck(now):
            self._reset()
        elif self._shut:
            if silent_seconds >= IDLE_SECONDS and not self.is_full:
                self.abort()
            elif silent_seconds >= LINGER_SECONDS and self._transport is not None:
                self._transport.close()
        elif self._answering is not None:
            return
        elif self._in_head and silent_seconds >= HEAD_SECONDS:
            if self._framing_bytes:
                self.refuse(Rejection(408, "head_too_slow", f"The head did not arrive within {HEAD_SECONDS:g} s."))
            else:
                self._shut_down()
        elif silent_seconds >= IDLE_SECONDS:
            self._shut_down()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = (peer[0], peer[1]) if peer else None
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        parser = self._parser
        if parser is None:
            return
        self._framing_bytes += len(data)
        try:
            self._hear(parser, data)
        except HttpParserError as error:
            if isinstance(error, HttpParserCallbackError):
                log.exception("a request could not be read")
            self.refuse(self._refusal or Rejection(400, "bad_http", f"This is not an HTTP/1.1 request: {error}."))
            return
        if self._refusal is None and self._framing_bytes > request_head.MAX_FRAMING_BYTES:
            self._refusal = request_head.too_large(self._target)
        if self._refusal is not None:
            self.refuse(self._refusal)

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
        self._server.lost(self)
        self._parser = self._transport = None
        self._leave()

    def pause_writing(self) -> None:
        """Called by the loop."""
        self.is_full = True
        self._taken_at = self._loop.time()

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
        self._refusal = request_head.fault(version, self._target, self._headers, self._framing_bytes)
        self._framing_bytes = 0
        if self._refusal is None and len(self._queue) >= MAX_QUEUED:
            self._refusal = Rejection(503, "too_many_at_once", "Too many requests were sent at once on one connection.")
        if self._refusal is not None:
            return
        scope = request_head.scope(version, parser.get_method(), self._target, self._headers, self._peer)
        keeps = version == "1.1" and parser.should_keep_alive()
        request = self._incoming = RequestResponse(self, scope, keeps=keeps, expects=self._expects and version == "1.1")
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
        """A request is whole, or the parser would leave the rest of it to another protocol."""
        self._framing_bytes = 0
        if self._incoming is not None and not (self._parser is not None and self._parser.should_upgrade()):
            self._incoming.end()
            self._incoming = None

    def _hear(self, parser: HttpRequestParser, data: bytes) -> None:
        """Parse this. Raises HttpParserError."""
        while True:
            try:
                parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            if self._refusal is not None or parser.get_method() == b"CONNECT":
                self._parser = None
                self.on_message_complete()
                return
            parser = self._parser = self._parser_of_body()

    def _parser_of_body(self) -> HttpRequestParser:
        """Return a parser for what follows a head that asks for another protocol, which is not spoken here.

        What follows is this request's body, as its head says (RFC 9110, 7.8), and further requests. httptools cannot
        read on there, so another parser is told how the body is framed, while nobody listens.
        """
        self._parser = None
        parser = HttpRequestParser(self)
        parser.feed_data(request_head.framing(self._headers))
        return parser

    def _is_stuck(self, now: float) -> bool:
        """Say whether the client has taken nothing of what is sent for too long."""
        unsent_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._taken_at = unsent_bytes, now
        return now - self._taken_at >= self._server.send_timeout_seconds

    def _reset(self) -> None:
        """Close it at once, and have the kernel forget what was not taken: some 4 MB that only a client can free."""
        if self._transport is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()

    def _begin(self, request: RequestResponse) -> None:
        self._answering = request
        self._server.begin(request)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _answer_refusal(self, error: Rejection) -> None:
        headers, body = self._server.render(error)
        self.write(request_head.rejection_response(error.status, self.date, headers, body))
        self._shut_down(lingers=True)

    def _shut_down(self, *, lingers: bool = False) -> None:
        """Close it when what was written is sent. ``lingers``: and not before its client has, or had time to."""
        self._parser = None
        self._since = self._loop.time()
        if self._transport is None or self._shut:
            return
        self._shut = True
        self._drop_queue()
        if lingers and not self._transport.is_closing():
            self._transport.write_eof()
            self.read_on()
        else:
            self._transport.close()

    def _leave(self) -> None:
        """Tell whoever is answered, or would be, that the client has left."""
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.disconnected()
        self._drop_queue()
        self._incoming = None
        self.resume_writing()
        self._shut_down()

    def _drop_queue(self) -> None:
        """Forget the requests that will not be answered."""
        while self._queue:
            request = self._queue.popleft()
            request.disconnected()
            request.finished()
