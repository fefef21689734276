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
from gateway.protocols.endpoint import StreamParser
from gateway.protocols.stream_token_counts import TokenCounts
from gateway.protocols.usage import NOTHING, Usage
from gateway.request import RequestTimeline
from gateway.upstream import sse_splitter
from gateway.upstream.connection import UpstreamError
from gateway.upstream.dispatcher import EngineReply

log = logging.getLogger(__name__)

#: What a client of a cut stream is told; what it received was metered.
STREAM_BROKEN = EngineFailed("The engine stopped in the middle of its answer.", "engine_failed_mid_stream")

#: Takes a stream that came to its end: its answer as non-streamed JSON, None of one that cannot be told so, its usage,
#: None where it was not told, and for how long an engine worked on it, milliseconds.
Land = Callable[[bytes | None, Usage | None, float], object]


class EngineStream:
    """One stream on its way from an engine to a client. Whoever sends it calls :meth:`close` at the end."""

    def __init__(
        self,
        reply: EngineReply,
        reader: StreamParser,
        meter: Meter,
        timeline: RequestTimeline,
        *,
        include_usage: bool,
        counts: TokenCounts | None,
        land: Land,
        flight: Flight | None,
    ) -> None:
        """``counts`` None: an event is a token. ``flight``: who follows it is told what the client is told."""
        self._reply = reply
        self._meter = meter
        self._timeline = timeline
        self._include_usage = include_usage
        self._counts = counts
        self._land = land
        self._flight = flight
        self._begun_at = time.perf_counter()
        self._reader = reader
        self._advance: HoldExtender | None = None
        if meter.cost_reservation is not None and meter.reservation is not None:
            self._advance = HoldExtender(meter.reservation, meter, meter.cost_reservation)
        self._ended: GatewayError | None = None
        self._ended_as: State = "engine_error"

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield whole events. The END is written before the last byte; :meth:`close` writes it for a cut stream."""
        splitter = sse_splitter.EventSplitter()
        reader = self._reader
        try:
            async for piece in sse_splitter.pieces(self._reply.first, self._reply.rest()):
                told, usage, tokens = self._read(splitter, piece)
                if tokens and not await self._may_pass(tokens):  # nor is what came with them, be it the end
                    yield self._cut()
                    return
                self._tell(told, usage, tokens)
                passed = told + usage if self._include_usage else told
                if reader.done:
                    await self._settle(tokens)
                    yield passed + reader.ending
                    return
                if passed:
                    yield passed
                if reader.failed or self._ended is not None:
                    break
        except UpstreamError as error:
            if self._ended is None:
                log.warning("replica %s broke a stream: %s", self._reply.choice.replica_id, error)
                metrics.engine_failed(self._timeline.model, error)
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
        self._reply.close(answered=self._reader.done)
        self._end_cut("client_gone")
        if self._flight is not None:
            self._flight.fail()

    def _end(self, error: GatewayError, state: State) -> None:
        self._ended, self._ended_as = error, state
        self._reply.close()

    async def _may_pass(self, tokens: int) -> bool:
        """Count tokens that are about to be passed on; False where no budget pays for them. Raises Unavailable."""
        if self._advance is not None:
            try:
                await self._advance.cover(self._meter.streamed_tokens + tokens)
            except GatewayError as refusal:
                self.end_with(refusal)
                return False
        try:
            self._meter.streamed(tokens, ends=self._reader.done)
        except Unavailable:
            self._reader.usage = None  # the engine's count has what nobody is told
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
            told, counted = (event, None) if self._counts is None else self._counts.take(event)
            kind = self._reader.read(told)
            tokens += kind == "content" if counted is None else counted
            if kind in {"head", "content"}:
                out.append(told + sse_splitter.SEPARATOR)
            elif kind == "usage":
                usage += told + sse_splitter.SEPARATOR
        if self._advance is not None and self._reader.usage is not None:  # it may tell of more than events did
            tokens = max(tokens, self._reader.usage.completion_tokens - self._meter.streamed_tokens)
        return b"".join(out), usage, tokens

    async def _settle(self, tokens: int) -> None:
        """Write the END and let the answer land. Raises Unavailable: the last ``tokens`` are then not passed on."""
        try:
            await self._land_whole()
        except Unavailable:
            self._meter.withheld(tokens)
            if tokens:
                self._reader.usage = None  # as above
            raise

    async def _land_whole(self) -> None:
        reader = self._reader
        engine_ms = (self._timeline.engine_seconds + time.perf_counter() - self._begun_at) * 1000
        whole = None
        if reader.usage is None:
            self._end_cut("complete")
        else:
            self._meter.end("complete", 200, reader.usage)
            whole = await self._whole() if reader.keep else None
        if self._flight is not None:
            self._flight.add(Piece("done", reader.ending))
        self._land(whole, reader.usage, engine_ms)
        if reader.usage is not None:
            await self._meter.synced()

    async def _whole(self) -> bytes | None:
        try:
            return await self._reader.assembled()
        except NotReplayable as part:
            log.warning("an answer is not kept: %s", part)
            return None

    def _cut(self) -> bytes:
        """Write the END of a stream that did not come to its own, and return the event that says why."""
        self._end_cut(self._ended_as)
        if self._flight is not None:
            self._flight.fail(self._ended or STREAM_BROKEN)
        return self._reader.error_event(self._ended or STREAM_BROKEN)

    def _end_cut(self, state: State) -> None:
        """Charge what the engine reported, if it did; else the estimated prompt and what was passed on.

        Nothing of an engine that failed before a token was passed on. Of what was refused, or what a budget has not
        paid for all of, never more than was passed on.
        """
        usage = self._reader.usage
        if usage is not None and self._advance is not None and usage.completion_tokens > self._meter.streamed_tokens:
            usage = None
        if self._advance is not None:
            self._advance.close()
        if state == "engine_error" and not self._meter.streamed_tokens:
            self._meter.give_up(state, 200, NOTHING, source="streamed")
        elif usage is not None and state != "refused":
            self._meter.give_up(state, 200, usage)
        else:
            self._meter.give_up(state, 200, self._meter.delivered(), source="streamed")
