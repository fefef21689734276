"""Pass another request's response on as a stream, and end it exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from billing.wal.records import State
from caching.errors import FlightFailed, NotReplayable
from caching.single_flight import MAX_FLIGHT_BYTES, Piece
from caching.stream_resume import ReplayMatcher
from gateway.coalescing.coalescer import Coalescer, Followed
from gateway.errors import EngineFailed, GatewayError, Unavailable, internal_error
from gateway.metering.meter import Meter
from gateway.protocols.endpoint import NOTHING
from gateway.protocols.request_body import Call
from gateway.request import Response
from gateway.streaming.pending_stream import done_within
from gateway.streaming.sender import run_on

log = logging.getLogger(__name__)

#: The followed response was cut, and the retry produced a different one.
DIFFERENT_RETRY = EngineFailed(
    "The engine failed mid-stream and the retry produced a different answer. Retry the request.",
    "engine_failed_mid_stream",
)
FELL_BEHIND = Unavailable(
    "The stream was read too slowly and its next part was dropped from the buffer. Retry, and read faster.",
    "stream_fell_behind",
)

B = TypeVar("B")
#: Responses that run on without their client; asyncio keeps no strong reference to tasks.
_running_on: set[asyncio.Task[None]] = set()


class FollowerStream(Generic[B]):
    """The stream of one follower. The sender calls :meth:`close` at the end."""

    def __init__(
        self,
        followed: Followed,
        coalescer: Coalescer[B],
        call: Call,
        meter: Meter,
        *,
        again: Callable[[], Awaitable[B | Followed]],
        begin: Callable[[B], Response],
    ) -> None:
        """``again`` is called when the flight fails; ``begin`` starts the stream that this request then leads."""
        self._followed: Followed | None = followed
        self._coalescer = coalescer
        self._call = call
        self._meter = meter
        self._again = again
        self._begin = begin
        self._error_event = call.endpoint.stream_parser(keep=False).error_event
        self._sent: list[bytes] = []
        self._sent_bytes = 0
        self._ended: GatewayError | None = None
        self._is_refused = False
        self._work: asyncio.Task[B | Followed] | None = None
        self._own: Response | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield whole events. The END is written before the last byte; :meth:`close` writes it for a cut stream."""
        try:
            async for piece in self._all():
                yield piece
            return
        except GatewayError as error:
            self._ended = self._ended or error
        except NotReplayable:
            self._ended = self._ended or DIFFERENT_RETRY
        except Exception:
            log.exception("a stream that follows another request failed")
            self._ended = internal_error()
        self._end("refused" if self._is_refused else "engine_error")
        yield self._error_event(self._ended)

    def end_with(self, error: GatewayError) -> None:
        """End the stream with this error as its last event."""
        self._ended, self._is_refused = error, True
        if self._own is not None:
            self._own.end_with(error)
        elif self._work is not None:
            self._work.cancel()
        elif self._followed is not None:
            self._followed.flight.notify()

    def close(self) -> None:
        """End the stream; if nothing ended it before, the client disconnected. A second call does nothing."""
        self._leave_flight()
        if self._work is not None:
            self._drop_retry(self._work)
        if self._own is not None:
            own, self._own = self._own, None
            if not self._runs_on(own):
                own.on_close()
        self._end("client_gone")

    async def _all(self) -> AsyncIterator[bytes]:
        matcher = ReplayMatcher([])
        while self._followed is not None:
            try:
                async for piece in self._of_flight(self._followed, matcher):
                    yield piece
                return
            except FlightFailed:
                flight = self._followed.flight
                if not flight.failed:
                    raise FELL_BEHIND from None
            self._leave_flight()
            self._coalescer.flight_failed(flight)
            if self._sent_bytes > MAX_FLIGHT_BYTES:
                raise DIFFERENT_RETRY
            matcher = ReplayMatcher(self._sent)
            found = await self._next()
            if isinstance(found, Followed):
                self._followed = found
            else:
                self._own = self._begin(found)
                if self._ended is not None:  # the reply began at the moment at which the stream was ended
                    self._own.end_with(self._ended)
        assert self._own is not None and self._own.stream is not None
        async for events in self._own.stream:
            new = events if matcher.complete else matcher.new_events(events)
            if new:
                yield new

    async def _next(self) -> B | Followed:
        work = self._work = asyncio.ensure_future(self._again())
        await done_within(work, None)
        self._work = None
        if self._ended is not None and work.cancelled():
            raise self._ended
        return work.result()

    def _drop_retry(self, work: asyncio.Task[B | Followed]) -> None:
        """Cancel the retry, or take its result to close it if it finished just as the client disconnected."""
        if not work.done():
            work.cancel()
        elif not work.cancelled() and not work.exception():
            found = work.result()
            if isinstance(found, Followed):
                self._followed = found
                self._leave_flight()
            else:
                self._own = self._begin(found)

    async def _of_flight(self, followed: Followed, matcher: ReplayMatcher) -> AsyncIterator[bytes]:
        """Yield the new events of a flight; write the END before the last byte. Raises FlightFailed."""
        if self._ended is not None:
            raise self._ended
        if followed.entry is not None:
            new = followed.body if matcher.complete else matcher.new_events(followed.body)
            self._meter.follower_streamed(followed.entry.completion_tokens)
            self._meter.end_follower(followed.entry)
            await self._meter.synced()
            yield new
            return
        flight, number, ending = followed.flight, 0, b""
        while True:
            piece = flight.piece(number)
            if self._ended is not None:
                raise self._ended
            if piece is not None:
                number += 1
                if piece.kind == "done":
                    ending = piece.events
                elif new := self._new(piece, matcher):
                    yield new
            elif flight.completed:
                break
            elif flight.failed:
                raise FlightFailed(number)
            else:
                await flight.changed()
        self._meter.end_follower(flight.entry)
        await self._meter.synced()
        yield ending

    def _new(self, piece: Piece, matcher: ReplayMatcher) -> bytes:
        """Return the events of a piece that are new to the client, and record them."""
        if piece.kind == "usage":
            return piece.events if self._call.include_usage else b""
        new = piece.events if matcher.complete else matcher.new_events(piece.events)
        if new:
            if piece.tokens:
                self._meter.follower_streamed(piece.tokens)
            self._sent_bytes += len(new)
            if self._sent_bytes <= MAX_FLIGHT_BYTES:
                self._sent.append(new)
            else:
                self._sent.clear()
        return new

    def _leave_flight(self) -> None:
        followed, self._followed = self._followed, None
        if followed is not None and followed.entry is None:
            followed.flight.leave()

    def _runs_on(self, own: Response) -> bool:
        """Let the flight that this request leads run on for its followers, though its own client got an error."""
        disconnect = self._coalescer.disconnect
        if self._ended is not DIFFERENT_RETRY or not disconnect.has_followers:
            return False
        disconnect.signal()
        task = asyncio.ensure_future(run_on(own, disconnect))
        _running_on.add(task)
        task.add_done_callback(_running_on.discard)
        return True

    def _end(self, state: State) -> None:
        error = None if state == "client_gone" else self._ended
        self._meter.give_up(state, 200, NOTHING, source="cache", error=error)
