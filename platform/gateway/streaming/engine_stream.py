"""Pass a stream on that has begun, meter it as it passes, and end it exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable

from billing.wal.records import State
from caching.errors import NotReplayable
from caching.single_flight import Flight, Piece
from gateway import metrics
from gateway.errors import EngineFailed, GatewayError, Unavailable
from gateway.metering.hold_extender import HoldExtender
from gateway.metering.meter import Meter
from gateway.protocols.endpoint import NOTHING, StreamParser, Usage
from gateway.protocols.stream_token_counts import TokenCounts
from gateway.request import RequestContext
from gateway.upstream import sse_splitter
from gateway.upstream.connection import UpstreamError
from gateway.upstream.dispatcher import EngineReply

log = logging.getLogger(__name__)

#: What a client of a cut stream is told; what it received was metered.
STREAM_BROKEN = EngineFailed("The engine stopped in the middle of its answer.", "engine_failed_mid_stream")

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

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield whole events. The END is written before the last byte; :meth:`close` writes it for a cut stream."""
        splitter = sse_splitter.EventSplitter()
        parser = self._parser
        try:
            async for piece in sse_splitter.pieces(self._reply.first, self._reply.rest()):
                told, usage, tokens = self._read(splitter, piece)
                if tokens and not await self._may_pass(tokens):  # nor is what came with them, be it the end
                    yield self._cut()
                    return
                self._tell(told, usage, tokens)
                passed = told + usage if self._include_usage else told
                if parser.done:
                    await self._settle(tokens)
                    yield passed + parser.ending
                    return
                if passed:
                    yield passed
                if parser.failed or self._ended is not None:
                    break
        except UpstreamError as error:
            if self._ended is None:
                log.warning("replica %s broke a stream: %s", self._reply.choice.replica_id, error)
                metrics.engine_failed(self._timeline.model, error.reason)
        except Unavailable as error:  # the usage log is full: what cannot be metered is not sent
            self._end(error, "engine_error")
        except Exception:
            log.exception("request %s failed in the middle of its stream", self._timeline.request_id)
        yield self._cut()

    def end_with(self, error: GatewayError) -> None:
        """Stop the engine, pass nothing more on, and let the stream tell this error as its last event.

        A reply that is closed fails whoever reads it.
        """
        self._end(error, "refused")

    def close(self) -> None:
        """End the stream for good; if nothing ended it before, its client left. A second call does nothing."""
        self._reply.close(answered=self._parser.done)
        self._end_cut("client_gone")
        if self._flight is not None:
            self._flight.fail()

    def _end(self, error: GatewayError, state: State) -> None:
        self._ended, self._ended_as = error, state
        self._reply.close()

    async def _may_pass(self, tokens: int) -> bool:
        """Count tokens that are about to be passed on; False where no budget pays for them. Raises Unavailable."""
        if self._extender is not None:
            try:
                await self._extender.cover(self._meter.streamed_tokens + tokens)
            except GatewayError as refusal:
                self.end_with(refusal)
                return False
        try:
            self._meter.streamed(tokens, ends=self._parser.done)
        except Unavailable:
            self._parser.usage = None  # the engine's count has what nobody is told
            raise
        return True

    def _tell(self, told: bytes, usage: bytes, tokens: int) -> None:
        if self._flight is not None:
            if told:
                self._flight.add(Piece("content", told, tokens))
            if usage:
                self._flight.add(Piece("usage", usage))

    def _read(self, splitter: sse_splitter.EventSplitter, piece: bytes) -> tuple[bytes, bytes, int]:
        """Return what of this piece every client gets, its usage, and its tokens; its end and errors are told by us."""
        out = []
        usage = b""
        tokens = 0
        for event in splitter.feed(piece):
            told, counted = (event, None) if self._token_counts is None else self._token_counts.take(event)
            kind = self._parser.read(told)
            tokens += kind == "content" if counted is None else counted
            if kind in {"head", "content"}:
                out.append(told + sse_splitter.SEPARATOR)
            elif kind == "usage":
                usage += told + sse_splitter.SEPARATOR
        if self._extender is not None and self._parser.usage is not None:  # it may tell of more than events did
            tokens = max(tokens, self._parser.usage.completion_tokens - self._meter.streamed_tokens)
        return b"".join(out), usage, tokens

    async def _settle(self, tokens: int) -> None:
        """Write the END and let the answer land. Raises Unavailable: the last ``tokens`` are then not passed on."""
        try:
            await self._land_whole()
        except Unavailable:
            self._meter.not_sent(tokens)
            if tokens:
                self._parser.usage = None  # as above
            raise

    async def _land_whole(self) -> None:
        parser = self._parser
        engine_ms = (self._timeline.engine_seconds + time.perf_counter() - self._began_at) * 1000
        whole = None
        if parser.usage is None:
            self._end_cut("complete")
        else:
            self._meter.end("complete", 200, parser.usage)
            whole = await self._whole() if parser.keep else None
        if self._flight is not None:
            self._flight.add(Piece("done", parser.ending))
        self._on_complete(whole, parser.usage, engine_ms)
        if parser.usage is not None:
            await self._meter.synced()

    async def _whole(self) -> bytes | None:
        try:
            return await self._parser.assembled()
        except NotReplayable as part:
            log.warning("an answer is not kept: %s", part)
            return None

    def _cut(self) -> bytes:
        """Write the END of a stream that did not come to its own, and return the event that says why."""
        self._end_cut(self._ended_as)
        if self._flight is not None:
            self._flight.fail(self._ended or STREAM_BROKEN)
        return self._parser.error_event(self._ended or STREAM_BROKEN)

    def _end_cut(self, state: State) -> None:
        """Charge what the engine reported, if it did; else the estimated prompt and what was passed on.

        Nothing of an engine that failed before a token was passed on. Of what was refused, or what a budget has not
        paid for all of, never more than was passed on.
        """
        usage = self._parser.usage
        if usage is not None and self._extender is not None and usage.completion_tokens > self._meter.streamed_tokens:
            usage = None
        if self._extender is not None:
            self._extender.close()
        if state == "engine_error" and not self._meter.streamed_tokens:
            self._meter.give_up(state, 200, NOTHING, source="streamed")
        elif usage is not None and state != "refused":
            self._meter.give_up(state, 200, usage)
        else:
            self._meter.give_up(state, 200, self._meter.partial_usage(), source="streamed")
