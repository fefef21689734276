"""One HTTP/1.1 response with an engine, and the connection that carries one at a time.

What an engine sends is not trusted. llhttp parses it in its strict mode, with a parser of its own for each answer;
whatever is no body is bounded; and a connection on which more comes than was asked for is closed, never used again.

    UpstreamError
    ├── Unreached   there is no connection: the engine never had the request
    ├── Broken      the connection ended before the answer was whole
    ├── Garbled     what came is no HTTP answer, or too much of one
    └── Silent      nothing came for too long
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

#: Head, chunk lines or trailers in one stretch, bytes; vLLM's heads have about 200.
MAX_FRAMING_BYTES = 64 * 1024
#: An answer that is read whole. The longest that a model of 128k tokens writes, with its log-probabilities, is smaller.
MAX_WHOLE_BYTES = 256 << 20
#: Of a stream that nobody takes so much is read ahead, bytes; then the engine has to wait.
READ_AHEAD_BYTES = 256 * 1024
#: Up to this size head and body travel in one write, for a copy costs less than a second system call.
ONE_WRITE_BYTES = 64 * 1024


class UpstreamError(Exception):
    """A request that an engine did not answer."""


class ConnectFailed(UpstreamError):
    """There is no connection to the engine."""


class ConnectionLost(UpstreamError):
    """The connection ended too early. ``after_first_byte``: after a part of the answer had come."""

    def __init__(self, message: str, *, after_first_byte: bool) -> None:
        super().__init__(message)
        self.after_first_byte = after_first_byte


class ProtocolError(UpstreamError):
    """What came cannot be an answer."""


class ReadTimeout(UpstreamError):
    """Nothing came for longer than an engine may be silent."""


class UpstreamResponse:
    """The answer to one request, as it comes. Whoever has one must :meth:`close` it.

    Lives on one event loop and is read by one task. httptools calls the ``on_`` methods.
    """

    __slots__ = (
        "_by_pieces",
        "_connection",
        "_failure",
        "_framed",
        "_framing_bytes",
        "_parser",
        "_pieces",
        "_size",
        "_waiting",
        "after_first_byte",
        "complete",
        "reusable",
        "status",
    )

    def __init__(self, connection: EngineConnection, *, stream: bool) -> None:
        self.status = 0
        #: The whole answer is here.
        self.complete = False
        #: Any of it is here.
        self.after_first_byte = False
        #: The connection may carry another response after this one.
        self.reusable = False
        self._connection: EngineConnection | None = connection
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._by_pieces = stream
        self._pieces: list[bytes] = []
        #: Bytes of body that came and were not taken.
        self._size = 0
        #: The head says where the body ends; else the connection's end does.
        self._framed = False
        self._framing_bytes = 0
        self._failure: UpstreamError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def started(self) -> None:
        """Wait for the whole answer, or for the first of a body that is read by pieces: a streamed 200's.

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
        """Return what has come of the body since it was taken last."""
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        if self._connection is not None:
            self._connection.read_on()
        return whole

    async def read(self) -> bytes:
        """Return what comes next of the body, b"" at its end. What came before a failure is returned first.

        Raises Broken, Garbled or Silent.
        """
        await self.started()
        return self.take()

    def close(self, *, answered: bool = False) -> None:
        """Let go of the connection; the second call does nothing.

        It is closed unless the answer is complete, which stops the engine. ``answered``: the engine has said its last
        word, and only the end of the message may be missing, for which the connection is given a moment.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release(self, answered=answered)

    def feed(self, data: bytes) -> None:
        """Take what came on the connection."""
        if self._parser is None:  # after the end, or after a failure
            self.reusable = False
            return
        self.after_first_byte = True
        self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.fail(ProtocolError(f"not an HTTP answer: {error}"))
        else:
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self.fail(ProtocolError(f"more than {MAX_FRAMING_BYTES} bytes that are no body"))
            elif self._size > READ_AHEAD_BYTES:
                self._restrain()
        self._wake()

    def ended(self, cause: Exception | None) -> None:
        """Take note that the connection is gone. A body without a length or chunks ends with it."""
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
        """End it, unless it is complete; whoever reads it gets ``failure`` after what came before."""
        self.reusable = False
        self._parser = None
        if not self.complete and self._failure is None:
            self._failure = failure
            self._wake()

    def on_message_begin(self) -> None:
        """A second answer was not asked for."""
        if self.complete:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Only what says where the body ends matters."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """The status is known."""
        if self._parser is not None:
            self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Some of the body came; chunks are taken apart already."""
        if not self.complete:
            self._framing_bytes = 0
            self._pieces.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        """The answer is whole, or was an interim one (1xx)."""
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
        return self.complete or (self._by_pieces and self.status == 200 and bool(self._pieces))

    def _finish(self) -> None:
        self.complete = True
        self._parser = None  # it holds methods of this object: only the garbage collector would find the cycle

    def _restrain(self) -> None:
        if self.complete:
            return
        if not (self._by_pieces and self.status == 200):
            if self._size > MAX_WHOLE_BYTES:
                self.fail(ProtocolError(f"an answer of more than {MAX_WHOLE_BYTES} bytes"))
        elif self._connection is not None:
            self._connection.read_no_more()

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done() and (self._failure is not None or self._ready):
            waiting.set_result(None)


class EngineConnection(asyncio.Protocol):
    """One connection to one engine. ``freed`` and ``lost`` tell its owner that it can be used again, or not any more.

    ``since``: the loop's time when something last came, was sent, or was taken after the reading had to stop; when it
    became idle, or began to linger.
    """

    __slots__ = ("_exchange", "_freed", "_loop", "_lost", "_paused", "_transport", "lingers", "name", "since")

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
        self._exchange: UpstreamResponse | None = None
        self._paused = False
        #: Nobody reads the answer any more; its end is waited for so that the connection can be used again.
        self.lingers = False
        self.since = self._loop.time()

    @property
    def idle(self) -> bool:
        """No answer is awaited."""
        return self._exchange is None

    @property
    def silent_seconds(self) -> float:
        """How long the engine has said nothing; 0 while it is not listened to."""
        return 0.0 if self._paused else self._loop.time() - self.since

    @property
    def usable(self) -> bool:
        """It can carry a request now."""
        return self._exchange is None and self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes, *, stream: bool) -> UpstreamResponse:
        """Send a request. ``stream``: the body of a 200 is read by pieces."""
        assert self._transport is not None and self._exchange is None
        response = self._exchange = UpstreamResponse(self, stream=stream)
        self.since = self._loop.time()
        if len(body) <= ONE_WRITE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return response

    def release(self, response: UpstreamResponse, *, answered: bool) -> None:
        """Be done with an response: be free, wait for its end if it was ``answered``, or be closed."""
        if response is not self._exchange:
            return
        if response.complete:
            self._end(response)
        elif answered:
            response.take()
            self.read_on()
            self.lingers = True
            self.since = self._loop.time()
        else:
            self.abort()

    def read_no_more(self) -> None:
        """Let the engine wait until what came is taken."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Listen again."""
        if self._paused and self._transport is not None:
            self._paused = False
            self.since = self._loop.time()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def fail(self, failure: UpstreamError) -> None:
        """End the response, if there is one, and the connection."""
        if self._exchange is not None:
            self._exchange.fail(failure)
        self.abort()

    def abort(self) -> None:
        """Close at once; what is not sent yet is not sent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop. An engine that speaks without being asked is not listened to again."""
        if not self.lingers:
            self.since = self._loop.time()
        response = self._exchange
        if response is None:
            self.abort()
            return
        response.feed(data)
        if self.lingers:
            self._linger(response, len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop, once."""
        response, self._exchange = self._exchange, None
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
        """Be free for another response, unless something speaks against it."""
        assert self._transport is not None
        self._exchange = None
        self.lingers = False
        if response.reusable and self.usable and not self._transport.get_write_buffer_size():
            self.read_on()
            self.since = self._loop.time()
            self._freed(self)
        else:
            self._transport.abort()
