"""Pass an engine's stream on to the client, meter it on the way, and end it exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable

from billing.wal.records import State
from caching.errors import NotReplayable
from caching.single_flight import Flight, Piece
from gateway import metrics
from gateway.errors import EngineFailed, EngineOverran, GatewayError, Unavailable
from gateway.metering.hold_extender import HoldExtender
from gateway.metering.meter import Meter
from gateway.protocols.endpoint import NOTHING, StreamParser, Usage
from gateway.protocols.stream_token_counts import TokenCounts
from gateway.request import RequestContext
from gateway.upstream import sse_splitter
from gateway.upstream.connection import ReadTimeout, UpstreamError
from gateway.upstream.dispatcher import EngineReply

log = logging.getLogger(__name__)

#: The last event of a stream that the engine cut. The tokens that the client received were metered.
STREAM_BROKEN = EngineFailed(
    "The engine failed mid-stream. The tokens already sent are charged. Retry the request.", "engine_failed_mid_stream"
)

#: The same after too long a silence, which the requests that follow must not wait for again.
STREAM_SILENT = EngineOverran(
    "The engine sent nothing for too long. The tokens already sent are charged. Allow fewer tokens, or retry.",
    "engine_failed_mid_stream",
)

#: Receives a stream that came to its end: the response as non-streamed JSON (None when it has no such form), its usage
#: (None when the engine did not report it), and how long an engine worked on it, milliseconds.
OnComplete = Callable[[bytes | None, Usage | None, float], object]


class EngineStream:
    """One stream from an engine to a client. The sender calls :meth:`close` at the end."""

    def __init__(
        self,
        reply: EngineReply,
        parser: StreamParser,
        meter: Meter,
        context: RequestContext,
        *,
        on_complete: OnComplete,
        flight: Flight | None,
    ) -> None:
        """``flight``: receives every event that the client receives, for the requests that follow."""
        self._reply = reply
        self._parser = parser
        self._meter = meter
        self._timeline = context.timeline
        self._include_usage = context.call.include_usage
        self._on_complete = on_complete
        self._flight = flight
        self._began_at = time.perf_counter()
        #: How many tokens each event has; None: an event is a token.
        self._token_counts: TokenCounts | None = None
        self._extender: HoldExtender | None = None
        if meter.cost_reservation is not None:
            self._token_counts = context.call.endpoint.token_counts(context.call.body)
            if meter.reservation is not None:
                self._extender = HoldExtender(meter.reservation, meter, meter.cost_reservation)
        self._ended: GatewayError | None = None
        self._ended_as: State = "engine_error"
        #: The engine was silent for too long: it may have worked on tokens that it did not send.
        self._is_overrun = False

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield whole events. The END is written before the last byte; :meth:`close` writes it for a cut stream."""
        splitter = sse_splitter.EventSplitter()
        parser = self._parser
        try:
            async for piece in sse_splitter.pieces(self._reply.first, self._reply.rest()):
                events, usage, tokens = self._read(splitter, piece)
                if tokens and not await self._may_pass(tokens):  # what came with them is dropped too, even the end
                    yield self._cut()
                    return
                self._share(events, usage, tokens)
                passed = events + usage if self._include_usage else events
                if parser.done:
                    await self._settle(tokens)
                    yield passed + parser.ending
                    return
                if passed:
                    yield passed
                if parser.failed or self._ended is not None:
                    break
            if self._ended is None:
                self._reply.broke()
        except UpstreamError as error:
            if self._ended is None:
                self._reply.broke()
                log.warning("replica %s broke a stream: %s", self._reply.choice.replica_id, error)
                metrics.engine_failed(self._timeline.model, error.reason)
                if isinstance(error, ReadTimeout):
                    self._is_overrun = True
                else:
                    self._reply.failed()
        except Unavailable as error:  # the usage log is full, and unmetered tokens are not sent
            self._end(error, "engine_error")
        except Exception:
            log.exception("request %s failed mid-stream", self._timeline.request_id)
        yield self._cut()

    def end_with(self, error: GatewayError) -> None:
        """Stop the engine and end the stream with this error as its last event.

        Closing the reply makes a pending read of it fail.
        """
        self._end(error, "refused")

    def close(self) -> None:
        """End the stream; if nothing ended it before, the client disconnected. A second call does nothing."""
        self._reply.close(answered=self._parser.done)
        self._end_cut("client_gone")
        if self._flight is not None:
            self._flight.fail()

    def _end(self, error: GatewayError, state: State) -> None:
        self._ended, self._ended_as = error, state
        self._reply.close()

    async def _may_pass(self, tokens: int) -> bool:
        """Count tokens before they are passed on; return False if no budget covers them. Raises Unavailable."""
        if self._extender is not None:
            try:
                await self._extender.cover(self._meter.streamed_tokens + tokens)
            except GatewayError as refusal:
                self.end_with(refusal)
                return False
        try:
            self._meter.streamed(tokens, ends=self._parser.done)
        except Unavailable:
            self._parser.usage = None  # the engine's count includes tokens that are not sent
            raise
        return True

    def _share(self, events: bytes, usage: bytes, tokens: int) -> None:
        if self._flight is not None:
            if events:
                self._flight.add(Piece("content", events, tokens))
            if usage:
                self._flight.add(Piece("usage", usage))

    def _read(self, splitter: sse_splitter.EventSplitter, piece: bytes) -> tuple[bytes, bytes, int]:
        """Return the piece: events for every client, usage events, and tokens. The end and errors are left out."""
        out = []
        usage = b""
        tokens = 0
        for event in splitter.feed(piece):
            content, counted = (event, None) if self._token_counts is None else self._token_counts.take(event)
            kind = self._parser.read(content)
            tokens += kind == "content" if counted is None else counted
            if kind in {"head", "content"}:
                out.append(content + sse_splitter.SEPARATOR)
            elif kind == "usage":
                usage += content + sse_splitter.SEPARATOR
        if (
            self._extender is not None and self._parser.usage is not None
        ):  # it may report more tokens than the events did
            tokens = max(tokens, self._parser.usage.completion_tokens - self._meter.streamed_tokens)
        return b"".join(out), usage, tokens

    async def _settle(self, tokens: int) -> None:
        """Write the END and deliver the complete response. Raises Unavailable; ``tokens`` are then not sent."""
        try:
            await self._finish()
        except Unavailable:
            self._meter.not_sent(tokens)
            if tokens:
                self._parser.usage = None  # as above
            raise

    async def _finish(self) -> None:
        parser = self._parser
        engine_ms = (self._timeline.engine_seconds + time.perf_counter() - self._began_at) * 1000
        whole = None
        if parser.usage is None:
            self._end_cut("complete")
        else:
            self._reply.learn(parser.usage)
            self._meter.finish_reason = parser.finish_reason
            self._meter.end("complete", 200, parser.usage)
            whole = await self._assembled() if parser.keep else None
        if self._flight is not None:
            self._flight.add(Piece("done", parser.ending))
        self._on_complete(whole, parser.usage, engine_ms)
        if parser.usage is not None:
            await self._meter.synced()

    async def _assembled(self) -> bytes | None:
        try:
            return await self._parser.assembled()
        except NotReplayable as reason:
            log.warning("a response is not stored: %s", reason)
            return None

    def _cut(self) -> bytes:
        """Write the END of a cut stream, and return the error event."""
        error = self._ended or (STREAM_SILENT if self._is_overrun else STREAM_BROKEN)
        self._end_cut(self._ended_as, error)
        if self._flight is not None:
            self._flight.fail(error)
        return self._parser.error_event(error)

    def _end_cut(self, state: State, error: GatewayError | None = None) -> None:
        """Write the END: the engine's usage if it reported one, else the estimated prompt and the tokens passed on.

        An engine that failed before its first token costs nothing, unless it was silent for too long: then the prompt.
        A refused stream, or one that a budget covered only in part, never costs more than was passed on.
        """
        usage = self._parser.usage
        if usage is not None and self._extender is not None and usage.completion_tokens > self._meter.streamed_tokens:
            usage = None
        if self._extender is not None:
            self._extender.close()
        if state == "engine_error" and not self._meter.streamed_tokens:
            if self._is_overrun:
                self._meter.give_up(state, 200, self._meter.partial_usage(), source="estimated", error=error)
            else:
                self._meter.give_up(state, 200, NOTHING, source="streamed", error=error)
        elif usage is not None and state != "refused":
            self._meter.give_up(state, 200, usage, error=error)
        else:
            self._meter.give_up(state, 200, self._meter.partial_usage(), source="streamed", error=error)
