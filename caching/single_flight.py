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

#: What a flight keeps for those who join it later; beyond this nobody joins any more.
MAX_FLIGHT_BYTES = 8 << 20


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some events of a stream that belong together: whole ones, with their separators.

    ``kind`` is theirs as ``gateway.wire.base.Kind`` says: a ``usage`` piece is only for clients that asked for it.
    """

    kind: str
    events: bytes
    #: Tokens of the answer in it.
    tokens: int = 0


class Flight:
    """One run of a request at an engine, and who listens. ``streamed``: its pieces are worth waiting for."""

    def __init__(self, name: bytes, source_id: UUID, *, streamed: bool) -> None:
        self.name = name
        #: The request that leads: whose id the answer has.
        self.source_id = source_id
        self.streamed = streamed
        self.pieces: list[Piece] = []
        self.bytes = 0
        #: The whole answer once landed; None of one that cannot be told in both shapes.
        self.entry: Entry | None = None
        #: Ended well, or not.
        self.landed = False
        self.failed = False
        self.followers = 0
        #: Called when the last follower has left.
        self.on_alone: Callable[[], None] = lambda: None
        self._woken: list[asyncio.Future[None]] = []

    @property
    def ended(self) -> bool:
        """True once nothing more comes."""
        return self.landed or self.failed

    @property
    def joinable(self) -> bool:
        """Say whether who joins now still hears all of it."""
        return not self.failed and self.bytes <= MAX_FLIGHT_BYTES

    def add(self, piece: Piece) -> None:
        """Tell a piece to everybody who follows."""
        self.pieces.append(piece)
        self.bytes += len(piece.events)
        self._wake()

    def land(self, entry: Entry | None) -> None:
        """End it well. ``entry`` None: who wants the other shape must ask for itself."""
        self.entry, self.landed = entry, True
        self._wake()

    def fail(self) -> None:
        """End it without an answer: one of its followers may try again. Nothing once it has landed."""
        self.failed = not self.landed
        self._wake()

    async def follow(self) -> AsyncIterator[Piece]:
        """Yield every piece from the first on, as they come. Raises FlightFailed."""
        told = 0
        while True:
            while told < len(self.pieces):
                piece = self.pieces[told]
                told += 1
                yield piece
            if self.landed:
                return
            if self.failed:
                raise FlightFailed(told)
            await self._more()

    async def whole(self) -> Entry | None:
        """Return its entry once it has landed. Raises FlightFailed."""
        while not self.ended:
            await self._more()
        if self.failed:
            raise FlightFailed(0)
        return self.entry

    def join(self) -> None:
        """Count a follower in; each calls :meth:`leave` once."""
        self.followers += 1

    def leave(self) -> None:
        """Count it out."""
        self.followers -= 1
        if not self.followers:
            self.on_alone()

    async def _more(self) -> None:
        woken = asyncio.get_running_loop().create_future()
        self._woken.append(woken)
        await woken

    def _wake(self) -> None:
        woken, self._woken = self._woken, []
        for each in woken:
            if not each.done():
                each.set_result(None)


class SingleFlight:
    """The flights of one process, by the name of the answer that each will be."""

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight] = {}

    def find(self, name: bytes) -> Flight | None:
        """Return the flight that may be followed instead of asking again."""
        flight = self._flights.get(name)
        return flight if flight is not None and flight.joinable else None

    def begin(self, flight: Flight) -> None:
        """Let others follow it until :meth:`end`."""
        self._flights[flight.name] = flight

    def end(self, flight: Flight) -> None:
        """Forget it; those who follow it go on."""
        if self._flights.get(flight.name) is flight:
            del self._flights[flight.name]
