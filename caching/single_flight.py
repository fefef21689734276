"""Identical requests in flight run once: the first one leads, the others follow it as its answer comes.

A flight is one run at an engine, told to whoever follows from its beginning; a landed one has its entry. Lives on one
event loop; what crosses processes is mirrored into a flight of the same kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import msgspec

from caching.entry import Entry
from caching.errors import FlightFailed

#: What a flight keeps of its pieces for those who follow. Once it has let go of any nobody joins any more.
MAX_FLIGHT_BYTES = 8 << 20
#: The same while nobody follows: larger answers are not stored either.
MAX_UNFOLLOWED_BYTES = 1 << 20
#: How long a landed flight whose answer is kept may still be joined, at least: who looked the answer up just before it
#: was stored comes to ask a moment later. More than a lookup takes.
STAY_SECONDS = 0.5


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some events of a stream that belong together: whole ones, with their separators.

    ``kind`` is theirs as ``gateway.protocols.endpoint.Kind`` says: a ``usage`` piece is only for clients that asked
    for it, and the ``done`` piece is told once the flight has landed.
    """

    kind: str
    events: bytes
    #: Tokens of the answer in it.
    tokens: int = 0


class Flight:
    """One run of a request at an engine, and who listens. ``streamed``: its pieces are worth waiting for."""

    __slots__ = (
        "_lost",
        "_woken",
        "bytes",
        "cause",
        "entry",
        "failed",
        "followers",
        "key_id",
        "landed",
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
        #: The request that leads, whose id the answer has, and its key.
        self.source_id = source_id
        self.key_id = key_id
        self.streamed = streamed
        #: Those that are still here, and their bytes.
        self.pieces: list[Piece] = []
        self.bytes = 0
        #: The whole answer once landed. Without a body it only says what it took; None: not even that.
        self.entry: Entry | None = None
        #: Ended well, or not, and why where whoever leads knew.
        self.landed = False
        self.failed = False
        self.cause: Exception | None = None
        #: Its answer is kept, so that who joins it after it has landed is told no other than the cache would tell.
        self.stays = False
        self.followers = 0
        #: Called when the last follower has left a flight that has not ended.
        self.on_abandoned: Callable[[], None] = _nothing
        #: Called once, when it has ended.
        self.on_end: Callable[[Flight], None] = _nothing_of
        #: How many of its first pieces are gone.
        self._lost = 0
        self._woken: list[asyncio.Future[None]] = []

    @property
    def ended(self) -> bool:
        """True once nothing more comes."""
        return self.landed or self.failed

    @property
    def joinable(self) -> bool:
        """Say whether who joins now still hears all of it."""
        return not self.failed and not self._lost

    @property
    def told(self) -> int:
        """How many pieces it has told until now."""
        return self._lost + len(self.pieces)

    def add(self, piece: Piece) -> None:
        """Tell a piece to everybody who follows. Where they would be too many bytes the oldest are let go of."""
        self.pieces.append(piece)
        self.bytes += len(piece.events)
        most = MAX_FLIGHT_BYTES if self.followers else MAX_UNFOLLOWED_BYTES
        while self.bytes > most:
            self.bytes -= len(self.pieces.pop(0).events)
            self._lost += 1
        self.notify()

    def land(self, entry: Entry | None, *, stays: bool = False) -> None:
        """End it well. Without an entry that has a body who wants the other shape must ask for itself.

        ``stays``: the answer is kept, so that the flight may be joined for a moment longer.
        """
        self.entry, self.landed, self.stays = entry, True, stays
        self._end()

    def fail(self, cause: Exception | None = None) -> None:
        """End it without an answer: one of its followers may try again. Nothing once it has ended."""
        if not self.ended:
            self.failed, self.cause = True, cause
            self._end()

    def piece(self, number: int) -> Piece | None:
        """Return a piece by its number from 0, None while it is to come. Raises FlightFailed for one let go of."""
        if number < self._lost:
            raise FlightFailed(number)
        return self.pieces[number - self._lost] if number < self.told else None

    async def follow(self) -> AsyncIterator[Piece]:
        """Yield every piece from the first on, as they come. Raises FlightFailed."""
        told = 0
        while True:
            while (piece := self.piece(told)) is not None:
                told += 1
                yield piece
            if self.landed:
                return
            if self.failed:
                raise FlightFailed(told)
            await self.changed()

    async def result(self) -> Entry | None:
        """Return its entry once it has landed, None of one without a body. Raises FlightFailed."""
        while not self.ended:
            await self.changed()
        if self.failed:
            raise FlightFailed(0)
        return self.entry if self.entry is not None and self.entry.body else None

    async def started(self) -> None:
        """Return once there is something to tell. Raises FlightFailed if there never is."""
        while not self.told and not self.ended:
            await self.changed()
        if self.failed:
            raise FlightFailed(0)

    def join(self) -> None:
        """Count a follower in; each calls :meth:`leave` once."""
        self.followers += 1

    def leave(self) -> None:
        """Count it out."""
        self.followers -= 1
        if not self.followers and not self.ended:
            self.on_abandoned()

    async def changed(self) -> None:
        """Return when something has come, it has ended, or :meth:`notify` is called."""
        woken = asyncio.get_running_loop().create_future()
        self._woken.append(woken)
        await woken

    def notify(self) -> None:
        """Let every follower look again."""
        if self._woken:
            woken, self._woken = self._woken, []
            for each in woken:
                if not each.done():
                    each.set_result(None)

    def _end(self) -> None:
        self.on_end(self)
        # Whoever leads refers to its flight: only the garbage collector would find the cycle, and the answer in it.
        self.on_abandoned, self.on_end = _nothing, _nothing_of
        self.notify()


class SingleFlight:
    """The flights of one process, by the name of the answer that each will be."""

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight] = {}
        #: Landed ones that are to be forgotten: at the next look, and at the one after that.
        self._leaving: list[Flight] = []
        self._landed: list[Flight] = []

    def find(self, name: bytes) -> Flight | None:
        """Return the flight that may be followed instead of asking again."""
        flight = self._flights.get(name)
        return flight if flight is not None and flight.joinable else None

    def begin(self, flight: Flight) -> None:
        """Let others find it until it ends, or a little longer where it stays."""
        self._flights[flight.name] = flight
        flight.on_end = self.end

    def end(self, flight: Flight) -> None:
        """Take note that it has ended; those who follow it go on."""
        if not flight.stays:
            self.forget(flight)
            return
        if not self._landed and not self._leaving:
            asyncio.get_running_loop().call_later(STAY_SECONDS, self._look)
        self._landed.append(flight)

    def forget(self, flight: Flight) -> None:
        """Let nobody find it any more."""
        if self._flights.get(flight.name) is flight:
            del self._flights[flight.name]

    def _look(self) -> None:
        """Forget those that had landed when this was called last. One timer for all: a flight's own costs it 1 µs."""
        for flight in self._leaving:
            self.forget(flight)
        self._leaving, self._landed = self._landed, []
        if self._leaving:
            asyncio.get_running_loop().call_later(STAY_SECONDS, self._look)


def _nothing() -> None:
    """Nobody is to be told."""


def _nothing_of(flight: Flight) -> None:
    """Nobody is to be told."""
