"""One client's connection: its bytes become requests, whose responses are sent in order.

The client's bytes are not trusted. llhttp parses them in strict mode; all that is not body is bounded in size and time;
and a connection with bytes that cannot be parsed gets at most one more response, and is closed.

Requests of one connection run one after the other; while one runs, no more is read than arrived with the next one.
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

#: Requests of one connection that wait for the one before. Each uses eighty times the memory of its bytes.
MAX_QUEUED = 16
#: Maximum time for a head, and without a next request, seconds.
HEAD_SECONDS = 10.0
IDLE_SECONDS = 75.0
#: How long bytes are read and discarded after the last response, seconds: a client that is still sending when its
#: connection is closed may lose the response.
LINGER_SECONDS = 2.0
#: Reads of discarded bytes in a second, of all connections of a process together. Each takes 256 KB at most, so clients
#: that send on after their refusal get 128 MB/s. Without this bound a refused body of 10 MB was read almost whole.
DISCARDS_PER_SECOND = 500
#: A client that has closed its sending side may still read. It counts as disconnected after this time, seconds.
HALF_CLOSED_SECONDS = 0.1
_NO_LINGER = struct.pack("ii", 1, 0)


class Shared(Protocol):
    """What connections use of the server (``gateway.server.server.Server``)."""

    #: Connections are closed after their current response.
    closing: bool
    #: The ``date`` header line.
    date: bytes
    send_timeout_seconds: float
    render: Render
    #: Connections that wait to discard more bytes.
    discarding: int

    def opened(self, connection: ClientConnection) -> None:
        """Register a connection, which is idle."""

    def idle(self, connection: ClientConnection) -> None:
        """Note that a connection waits for its next request or for the rest of one."""

    def busy(self, connection: ClientConnection) -> None:
        """Note that a connection has a whole request."""

    def begin(self, request: RequestResponse) -> None:
        """Run the application for a request."""

    def lost(self, connection: ClientConnection) -> None:
        """Unregister a connection."""


class ClientConnection(asyncio.Protocol):
    """One connection. The loop calls the methods of asyncio.Protocol, httptools the ``on_`` methods."""

    __slots__ = (
        "_discards",
        "_drains",
        "_error",
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
        "_running",
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
        #: None once no more bytes are parsed.
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._target = b""
        self._headers: Headers = []
        self._expects = False
        #: A head is being read, or expected.
        self._in_head = True
        self._framing_bytes = 0
        #: The error in it.
        self._error: Rejection | None = None
        #: The request whose body is arriving; the one that runs; and those that run next.
        self._incoming: RequestResponse | None = None
        self._running: RequestResponse | None = None
        self._queue: deque[RequestResponse] = deque()
        self._paused = False
        #: No more responses can be sent.
        self._shut = False
        #: It waits to discard more bytes.
        self._discards = False
        #: The loop's time when it was opened, a head began, a response was sent, or it was shut.
        self._since = self._loop.time()
        #: The write buffer is full and senders must wait; its size, and since when it has not changed.
        self.is_full = False
        self._unsent_bytes = 0
        self._taken_at = 0.0
        self._drains: list[asyncio.Future[None]] = []

    @property
    def address(self) -> str:
        """The client's IP address, or its proxy's; empty when it is unknown."""
        return self._peer[0] if self._peer is not None else ""

    @property
    def date(self) -> bytes:
        """The ``date`` header line."""
        return self._server.date

    @property
    def stays_open(self) -> bool:
        """Whether it stays open after the current response."""
        return not self._server.closing and (self._parser is not None or bool(self._queue))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None and not self._shut:
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the client has read most of the unsent bytes, or has disconnected."""
        waiting = self._loop.create_future()
        self._drains.append(waiting)
        await waiting

    def resume_reading(self) -> None:
        """Resume reading, unless the next request has arrived already."""
        if self._paused and not self._queue and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def finished(self, request: RequestResponse) -> None:
        """Continue with the next request after the application has finished one."""
        self._running = None
        if not request.responded:
            if request.started:
                self.abort()
            else:
                self._send_error(Rejection(500, "internal_error", "The request failed; nothing was charged."))
        elif request.keeps and self._queue:
            following = self._queue.popleft()
            if not following.whole:
                self._server.idle(self)
            self._begin(following)
            self.resume_reading()
        elif not self.stays_open or not request.keeps:
            self._shut_down(lingers=True)
        else:
            self._since = self._loop.time()
            self._server.idle(self)
            self.resume_reading()

    def displace(self) -> None:
        """Close an idle connection in favour of another."""
        self._shut_down()

    def close(self) -> None:
        """Close, after the response of a request that runs or has begun to arrive."""
        if self._running is None and not (self._in_head and self._framing_bytes):
            self._shut_down()

    def abort(self) -> None:
        """Close at once and discard unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    def reject(self, error: Rejection) -> None:
        """Stop reading and send the error, unless a response is in progress.

        If a request body was being read, the application decides how to respond.
        """
        self._parser = None
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.break_off()
        elif self._running is None:
            self._send_error(error)

    def check_timeouts(self, now: float) -> None:
        """Close if silent for too long. ``now``: the loop's time, seconds."""
        silent_seconds = now - self._since
        if self.is_full and self._is_stuck(now):
            self._reset()
        elif self._shut:
            if silent_seconds >= IDLE_SECONDS and not self.is_full:
                self.abort()
            elif silent_seconds >= LINGER_SECONDS and self._transport is not None:
                self._transport.close()
        elif self._running is not None:
            return
        elif self._in_head and silent_seconds >= HEAD_SECONDS:
            if self._framing_bytes:
                self.reject(
                    Rejection(408, "head_too_slow", f"The request head did not arrive within {HEAD_SECONDS:g} s.")
                )
            else:
                self._shut_down()
        elif silent_seconds >= IDLE_SECONDS:
            self._shut_down()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the open connection."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = (peer[0], peer[1]) if peer else None
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client."""
        parser = self._parser
        if parser is None:
            self._discard_later()
            return
        self._framing_bytes += len(data)
        try:
            self._parse(parser, data)
        except HttpParserError as error:
            if isinstance(error, HttpParserCallbackError):
                log.exception("a request could not be parsed")
            self.reject(self._error or Rejection(400, "bad_http", f"This is not an HTTP/1.1 request: {error}."))
            return
        if self._error is None and self._framing_bytes > request_head.MAX_FRAMING_BYTES:
            self._error = request_head.too_large(self._target)
        if self._error is not None:
            self.reject(self._error)

    def eof_received(self) -> bool:
        """Handle the end of the client's bytes; return whether a response may still be sent."""
        self._parser = None
        if self._incoming is not None:
            self._incoming.break_off()
            self._incoming = None
        if self._running is None:
            return False
        self._loop.call_later(HALF_CLOSED_SECONDS, self._disconnected)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the requests of a closed connection."""
        self._server.lost(self)
        self._parser = self._transport = None
        self._disconnected()

    def pause_writing(self) -> None:
        """Make senders wait."""
        self.is_full = True
        self._taken_at = self._loop.time()

    def resume_writing(self) -> None:
        """Let senders continue."""
        self.is_full = False
        drains, self._drains = self._drains, []
        for waiting in drains:
            if not waiting.done():
                waiting.set_result(None)

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._target = b""
        self._headers = []
        self._expects = False
        self._in_head = True
        self._since = self._loop.time()

    def on_url(self, target: bytes) -> None:
        """Add a part of the target."""
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are ignored."""
        if not self._in_head:
            return
        name = name.lower()
        if name == b"expect":
            self._expects = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the head and run its request, or queue it behind the one that runs."""
        parser = self._parser
        self._in_head = False
        if parser is None or self._error is not None:
            return
        version = parser.get_http_version()
        self._error = request_head.find_error(version, self._target, self._headers, self._framing_bytes)
        self._framing_bytes = 0
        if self._error is None and len(self._queue) >= MAX_QUEUED:
            self._error = Rejection(503, "too_many_at_once", "Too many requests were sent at once on one connection.")
        if self._error is not None:
            return
        scope = request_head.scope(version, parser.get_method(), self._target, self._headers, self._peer)
        keeps = version == "1.1" and parser.should_keep_alive()
        request = self._incoming = RequestResponse(self, scope, keeps=keeps, expects=self._expects and version == "1.1")
        scope["extensions"] = {ON_DISCONNECT: request.on_disconnect}
        if self._running is None:
            self._server.idle(self)  # until its body is complete, which may take long
            self._begin(request)
        else:
            self._queue.append(request)
            self._pause()

    def on_body(self, piece: bytes) -> None:
        """Pass on a part of the body; chunked encoding is already removed."""
        self._framing_bytes = 0
        if self._incoming is not None and not self._incoming.feed(piece):
            self._pause()

    def on_message_complete(self) -> None:
        """Complete the request, unless the parser stopped for an upgrade to another protocol."""
        self._framing_bytes = 0
        if self._incoming is not None and not (self._parser is not None and self._parser.should_upgrade()):
            self._incoming.end()
            self._incoming = None
            self._server.busy(self)

    def _parse(self, parser: HttpRequestParser, data: bytes) -> None:
        """Parse bytes. Raises HttpParserError."""
        while True:
            try:
                parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            if self._error is not None or parser.get_method() == b"CONNECT":
                self._parser = None
                self.on_message_complete()
                return
            parser = self._parser = self._parser_of_body()

    def _parser_of_body(self) -> HttpRequestParser:
        """Return a parser for the bytes after a head that asks for an upgrade, which is not supported.

        They are this request's body, as its head says (RFC 9110, 7.8), and further requests. httptools cannot continue
        there, so a new parser first gets a head with the same framing, while callbacks are ignored.
        """
        self._parser = None
        parser = HttpRequestParser(self)
        parser.feed_data(request_head.framing(self._headers))
        return parser

    def _is_stuck(self, now: float) -> bool:
        """Return whether the client has read nothing for too long."""
        unsent_bytes = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._taken_at = unsent_bytes, now
        return now - self._taken_at >= self._server.send_timeout_seconds

    def _reset(self) -> None:
        """Close with a reset, so that the kernel frees the unread bytes, some 4 MB, at once."""
        if self._transport is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()

    def _begin(self, request: RequestResponse) -> None:
        self._running = request
        self._server.begin(request)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _send_error(self, error: Rejection) -> None:
        headers, body = self._server.render(error)
        self.write(request_head.rejection_response(error.status, self.date, headers, body))
        self._shut_down(lingers=True)

    def _shut_down(self, *, lingers: bool = False) -> None:
        """Close once the written bytes are sent. ``lingers``: first give the client time to close."""
        self._parser = None
        self._incoming = None  # it holds the bytes that were read ahead
        self._since = self._loop.time()
        if self._transport is None or self._shut:
            return
        self._shut = True
        self._drop_queue()
        if lingers and not self._transport.is_closing():
            self._transport.write_eof()
            if self._paused:  # there is more to discard, unless the client closes now
                self._discard_later()
        else:
            self._transport.close()

    def _discard_later(self) -> None:
        """Read no more until it is this connection's turn to discard bytes."""
        self._pause()
        if self._paused and not self._discards:
            self._discards = True
            self._server.discarding += 1
            self._loop.call_later(self._server.discarding / DISCARDS_PER_SECOND, self._discard_next)

    def _discard_next(self) -> None:
        self._discards = False
        self._server.discarding -= 1
        self.resume_reading()

    def _disconnected(self) -> None:
        """Pass the client's disconnect to the running and the queued requests."""
        running, self._running = self._running, None
        if running is not None:
            running.disconnected()
        self._drop_queue()
        self._incoming = None
        self.resume_writing()
        self._shut_down()

    def _drop_queue(self) -> None:
        """Drop the queued requests."""
        while self._queue:
            request = self._queue.popleft()
            request.disconnected()
            request.finished()
