"""An HTTP/1.1 response of an engine, and the connection that carries one at a time.

The engine's bytes are not trusted. llhttp parses them in strict mode, with a new parser for each response; all that is
not body is bounded in size; and a connection with bytes beyond the response is closed, never reused.

    UpstreamError
    ├── ConnectFailed    no connection: the engine never received the request
    ├── ConnectionLost   the connection ended before the response was complete
    ├── ProtocolError    the bytes are not a valid HTTP response, or too many
    ├── ReadTimeout      no byte arrived within the read timeout
    └── ResponseTooLarge a response that is read whole exceeds MAX_WHOLE_BYTES
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.metrics import EngineFailure

#: Consecutive bytes of head, chunk lines or trailers; vLLM's heads have about 200.
MAX_FRAMING_BYTES = 64 * 1024
#: A response that is read whole. The longest of a model with 128k tokens, with log-probabilities, is smaller.
MAX_WHOLE_BYTES = 256 << 20
#: Bytes of a stream that are read ahead of the consumer; then the engine must wait.
READ_AHEAD_BYTES = 256 * 1024
#: Up to this size head and body are sent in one write: a copy costs less than a second system call.
ONE_WRITE_BYTES = 64 * 1024


class UpstreamError(Exception):
    """A request without a complete response. ``reason``: the label of the metric that counts it."""

    reason: ClassVar[EngineFailure] = "status"


class ConnectFailed(UpstreamError):
    """No connection to the engine could be opened."""

    reason = "connect"


class ConnectionLost(UpstreamError):
    """The connection ended too early. ``after_first_byte``: a part of the response had arrived."""

    reason = "broken"

    def __init__(self, message: str, *, after_first_byte: bool) -> None:
        super().__init__(message)
        self.after_first_byte = after_first_byte


class ProtocolError(UpstreamError):
    """The bytes are not a valid HTTP response, or too many."""

    reason = "broken"


class ReadTimeout(UpstreamError):
    """No byte arrived for ``seconds``, the read timeout."""

    reason = "timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"silent for {seconds:g} s")
        self.seconds = seconds


class ResponseTooLarge(UpstreamError):
    """A response that is read whole has ``size_bytes``, more than MAX_WHOLE_BYTES."""

    reason = "broken"

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"a response of more than {MAX_WHOLE_BYTES} bytes")
        self.size_bytes = size_bytes


class UpstreamResponse:
    """The response to one request, as it arrives. Its owner must :meth:`close` it.

    Lives on one event loop and is read by one task. httptools calls the ``on_`` methods.
    """

    __slots__ = (
        "_connection",
        "_failure",
        "_framed",
        "_framing_bytes",
        "_parser",
        "_pieces",
        "_size",
        "_streams",
        "_waiting",
        "after_first_byte",
        "complete",
        "reusable",
        "status",
    )

    def __init__(self, connection: EngineConnection, *, stream: bool) -> None:
        self.status = 0
        #: The whole response has arrived.
        self.complete = False
        #: A part of it has arrived.
        self.after_first_byte = False
        #: The connection may carry another response after this one.
        self.reusable = False
        self._connection: EngineConnection | None = connection
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._streams = stream
        self._pieces: list[bytes] = []
        #: Bytes of body that have arrived and were not taken.
        self._size = 0
        #: The head says where the body ends; else it ends with the connection.
        self._framed = False
        self._framing_bytes = 0
        self._failure: UpstreamError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def started(self) -> None:
        """Wait for the whole response, or for the first bytes of the body of a streamed 200.

        Raises Broken, Garbled or Silent.
        """
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def take(self) -> bytes:
        """Return the bytes of the body that have arrived since the last call."""
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._connection is not None:
            self._connection.resume_reading()
        return whole

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end. Bytes that arrived before a failure are returned first.

        Raises Broken, Garbled or Silent.
        """
        await self.started()
        return self.take()

    def close(self, *, answered: bool = False) -> None:
        """Release the connection. Idempotent.

        Unless the response is complete the connection is closed, which stops the engine. ``answered``: the last event
        has arrived, so the connection waits a moment for the end of the message instead.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(self, answered=answered)

    def feed(self, data: bytes) -> None:
        """Parse bytes from the connection."""
        if self._parser is None:  # after the end, or after a failure
            self.reusable = False
            return
        self.after_first_byte = True
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.fail(ProtocolError(f"not an HTTP response: {error}"))
        else:
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self.fail(ProtocolError(f"more than {MAX_FRAMING_BYTES} bytes that are no body"))
            elif self._size > READ_AHEAD_BYTES:
                self._limit_read_ahead()
        self._wake()

    def ended(self, cause: Exception | None) -> None:
        """Handle the end of the connection. A body without a length or chunks ends with it."""
        if self.complete or self._failure is not None:
            return
        if cause is None and self.status and not self._framed:
            self._finish()
            self._wake()
        else:
            self.fail(
                ConnectionLost(
                    f"the connection ended: {cause or 'end of file'}", after_first_byte=self.after_first_byte
                )
            )

    def fail(self, failure: UpstreamError) -> None:
        """End the response, unless it is complete; readers get ``failure`` after the bytes that arrived before."""
        self.reusable = False
        self._parser = None
        if not self.complete and self._failure is None:
            self._failure = failure
            self._wake()

    def on_message_begin(self) -> None:
        """Mark the connection as not reusable if a second response begins."""
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note headers that say where the body ends."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """Read the status."""
        if self._parser is not None:
            self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Take bytes of the body; chunked encoding is already removed."""
        if not self.complete:
            self._framing_bytes = 0
            self._pieces.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        """Complete the response, unless it was an interim one (1xx)."""
        if self._parser is None:
            return
        if self.status < 200:
            self.status = 0
            self._framed = False
            return
        self.reusable = self._parser.should_keep_alive()
        self._finish()

    @property
    def _ready(self) -> bool:
        return self.complete or (self._streams and self.status == 200 and bool(self._pieces))

    def _finish(self) -> None:
        self.complete = True
        self._parser = None  # it refers to this object: only the garbage collector would free the cycle

    def _limit_read_ahead(self) -> None:
        if self.complete:
            return
        if not (self._streams and self.status == 200):
            if self._size > MAX_WHOLE_BYTES:
                self.fail(ResponseTooLarge(self._size))
        elif self._connection is not None:
            self._connection.pause_reading()

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done() and (self._failure is not None or self._ready):
            waiting.set_result(None)


class EngineConnection(asyncio.Protocol):
    """One connection to one engine. ``freed`` is called when it can be reused, ``lost`` when it has ended.

    ``since``: the loop's time when bytes last arrived, were sent, or were taken after reading was paused; when it
    became idle, or began to linger.
    """

    __slots__ = ("_freed", "_loop", "_lost", "_paused", "_response", "_transport", "lingers", "name", "since")

    def __init__(
        self,
        name: str,
        *,
        freed: Callable[[EngineConnection], None],
        lost: Callable[[EngineConnection], None],
    ) -> None:
        self.name = name
        self._freed = freed
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response: UpstreamResponse | None = None
        self._paused = False
        #: The response is closed; the connection waits for its end, to be reused.
        self.lingers = False
        self.since = self._loop.time()

    @property
    def idle(self) -> bool:
        """Whether no response is expected."""
        return self._response is None

    @property
    def silent_seconds(self) -> float:
        """Time without a byte from the engine; 0 while reading is paused."""
        return 0.0 if self._paused else self._loop.time() - self.since

    @property
    def usable(self) -> bool:
        """Whether it can carry a request now."""
        return self._response is None and self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, *, stream: bool) -> UpstreamResponse:
        """Send a request. ``stream``: the body of a 200 is read as it arrives."""
        assert self._transport is not None and self._response is None
        response = self._response = UpstreamResponse(self, stream=stream)
        self.since = self._loop.time()
        if len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return response

    def release(self, response: UpstreamResponse, *, answered: bool) -> None:
        """Release a response: become idle, wait for its end if ``answered``, or close."""
        if response is not self._response:
            return
        if response.complete:
            self._end(response)
        elif answered:
            response.take()
            self.resume_reading()
            self.lingers = True
            self.since = self._loop.time()
        else:
            self.abort()

    def pause_reading(self) -> None:
        """Pause reading until the bytes that arrived are taken."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        if self._paused and self._transport is not None:
            self._paused = False
            self.since = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def fail(self, failure: UpstreamError) -> None:
        """End the response, if there is one, and the connection."""
        if self._response is not None:
            self._response.fail(failure)
        self.abort()

    def abort(self) -> None:
        """Close at once and discard unsent bytes."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the open transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the response; close a connection with bytes outside of one."""
        if not self.lingers:
            self.since = self._loop.time()
        response = self._response
        if response is None:
            self.abort()
            return
        response.feed(data)
        if self.lingers:
            self._linger(response, len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response with the connection."""
        response, self._response = self._response, None
        self._lost(self)
        if response is not None:
            response.ended(exc)

    def _linger(self, response: UpstreamResponse, size: int) -> None:
        if response.complete:
            self._end(response)
        elif size > READ_AHEAD_BYTES:
            self.abort()
        else:
            response.take()

    def _end(self, response: UpstreamResponse) -> None:
        """Become idle for another request, or close if the connection cannot be reused."""
        assert self._transport is not None
        self._response = None
        self.lingers = False
        if response.reusable and self.usable and not self._transport.get_write_buffer_size():
            self.resume_reading()
            self.since = self._loop.time()
            self._freed(self)
        else:
            self._transport.abort()
