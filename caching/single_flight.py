"""Identical concurrent requests run once: the first one leads, the others follow its response as it arrives.

A flight is one run at an engine; each follower receives it from the beginning. A completed flight has its entry. Lives
on one event loop; a flight of another process is copied into a flight of the same class.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import msgspec

from caching.entry import Entry
from caching.errors import FlightFailed

#: Most bytes of pieces that a flight keeps for followers. Once it has dropped any, it cannot be joined.
MAX_FLIGHT_BYTES = 8 << 20
#: The same without followers. Larger responses are not stored in the cache either.
MAX_UNFOLLOWED_BYTES = 1 << 20
#: Shortest time for which a completed flight with a stored response can still be joined: a request that looked it up
#: just before it was stored arrives a moment later. Longer than a lookup takes.
STAY_SECONDS = 0.5


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive whole events of a stream, with their separators.

    ``kind`` is that of ``gateway.protocols.endpoint.Kind``: a ``usage`` piece is only for clients that requested it,
    and the ``done`` piece is sent when the flight has completed.
    """

    kind: str
    events: bytes
    #: Completion tokens in it.
    tokens: int = 0


class Flight:
    """One run of a request at an engine, and its followers. ``streamed``: pieces arrive before the end."""

    __slots__ = (
        "_dropped",
        "_woken",
        "bytes",
        "cause",
        "completed",
        "entry",
        "failed",
        "followers",
        "key_id",
        "name",
        "on_abandoned",
        "on_end",
        "pieces",
        "source_id",
        "stays",
        "streamed",
    )

    def __init__(self, name: bytes, source_id: UUID, key_id: UUID, *, streamed: bool) -> None:
        self.name = name
        #: The leading request, whose id the response has, and its key.
        self.source_id = source_id
        self.key_id = key_id
        self.streamed = streamed
        #: The pieces not dropped yet, and their total bytes.
        self.pieces: list[Piece] = []
        self.bytes = 0
        #: The complete response. Without a body it has only the usage; None: unknown.
        self.entry: Entry | None = None
        #: Whether it completed or failed, and the cause of the failure if the leader knows it.
        self.completed = False
        self.failed = False
        self.cause: Exception | None = None
        #: Its response is in the cache, so a request that joins after completion gets the same as from the cache.
        self.stays = False
        self.followers = 0
        #: Called when the last follower leaves a flight that has not ended.
        self.on_abandoned: Callable[[], None] = _nothing
        #: Called once, when it ends.
        self.on_end: Callable[[Flight], None] = _nothing_of
        #: Number of leading pieces dropped.
        self._dropped = 0
        self._woken: list[asyncio.Future[None]] = []

    @property
    def ended(self) -> bool:
        """Whether it has completed or failed."""
        return self.completed or self.failed

    @property
    def joinable(self) -> bool:
        """Whether a follower that joins now receives all of it."""
        return not self.failed and not self._dropped

    @property
    def sent(self) -> int:
        """Number of pieces sent so far."""
        return self._dropped + len(self.pieces)

    def add(self, piece: Piece) -> None:
        """Send a piece to all followers. Drop the oldest pieces beyond the byte limit."""
        self.pieces.append(piece)
        self.bytes += len(piece.events)
        most = MAX_FLIGHT_BYTES if self.followers else MAX_UNFOLLOWED_BYTES
        while self.bytes > most:
            self.bytes -= len(self.pieces.pop(0).events)
            self._dropped += 1
        self.notify()

    def complete(self, entry: Entry | None, *, stays: bool = False) -> None:
        """Complete it. Without a body in the entry, followers that need the other form must run their own request.

        ``stays``: the response is in the cache, so the flight may be joined for a moment longer.
        """
        self.entry, self.completed, self.stays = entry, True, stays
        self._end()

    def fail(self, cause: Exception | None = None) -> None:
        """End it without a response; a follower may then retry. No effect after its end."""
        if not self.ended:
            self.failed, self.cause = True, cause
            self._end()

    def piece(self, number: int) -> Piece | None:
        """Return a piece by number from 0; None if not sent yet. Raises FlightFailed for a dropped one."""
        if number < self._dropped:
            raise FlightFailed(number)
        return self.pieces[number - self._dropped] if number < self.sent else None

    async def follow(self) -> AsyncIterator[Piece]:
        """Yield every piece from the first on, as they arrive. Raises FlightFailed."""
        sent = 0
        while True:
            while (piece := self.piece(sent)) is not None:
                sent += 1
                yield piece
            if self.completed:
                return
            if self.failed:
                raise FlightFailed(sent)
            await self.changed()

    async def result(self) -> Entry | None:
        """Return its entry once it has completed; None without a body. Raises FlightFailed."""
        while not self.ended:
            await self.changed()
        if self.failed:
            raise FlightFailed(0)
        return self.entry if self.entry is not None and self.entry.body else None

    async def started(self) -> None:
        """Return when the first piece was sent or it has completed. Raises FlightFailed."""
        while not self.sent and not self.ended:
            await self.changed()
        if self.failed:
            raise FlightFailed(0)

    def join(self) -> None:
        """Add a follower, which must call :meth:`leave` once."""
        self.followers += 1

    def leave(self) -> None:
        """Remove a follower."""
        self.followers -= 1
        if not self.followers and not self.ended:
            self.on_abandoned()

    async def changed(self) -> None:
        """Return on the next piece, on its end, or when :meth:`notify` is called."""
        woken = asyncio.get_running_loop().create_future()
        self._woken.append(woken)
        await woken

    def notify(self) -> None:
        """Wake all followers."""
        if self._woken:
            woken, self._woken = self._woken, []
            for each in woken:
                if not each.done():
                    each.set_result(None)

    def _end(self) -> None:
        self.on_end(self)
        # The leader refers to its flight: otherwise only the garbage collector would free the cycle and the response.
        self.on_abandoned, self.on_end = _nothing, _nothing_of
        self.notify()


class SingleFlight:
    """The flights of one process, by the name of their response."""

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight] = {}
        #: Completed flights to remove: at the next timer, and at the one after that.
        self._leaving: list[Flight] = []
        self._completed: list[Flight] = []

    def find(self, name: bytes) -> Flight | None:
        """Return a flight with this name that can be joined."""
        flight = self._flights.get(name)
        return flight if flight is not None and flight.joinable else None

    def begin(self, flight: Flight) -> None:
        """Publish a flight until it ends, or STAY_SECONDS longer if it stays."""
        self._flights[flight.name] = flight
        flight.on_end = self.end

    def end(self, flight: Flight) -> None:
        """Remove an ended flight, at once or after STAY_SECONDS. Its followers continue."""
        if not flight.stays:
            self.forget(flight)
            return
        if not self._completed and not self._leaving:
            asyncio.get_running_loop().call_later(STAY_SECONDS, self._expire)
        self._completed.append(flight)

    def forget(self, flight: Flight) -> None:
        """Withdraw a flight, so that it cannot be found."""
        if self._flights.get(flight.name) is flight:
            del self._flights[flight.name]

    def _expire(self) -> None:
        """Remove those that had completed at the last timer. One timer for all: one per flight would cost it 1 µs."""
        for flight in self._leaving:
            self.forget(flight)
        self._leaving, self._completed = self._completed, []
        if self._leaving:
            asyncio.get_running_loop().call_later(STAY_SECONDS, self._expire)


def _nothing() -> None:
    """Default callback: do nothing."""


def _nothing_of(flight: Flight) -> None:
    """Default callback: do nothing."""
