"""A connection between two gateway processes, which tells flights; see ``gateway.coalescing.peer_handshake`` for who
may ask.

Many flights share one connection. Either side that is silent for SILENT_BEATS of the other's clock, or takes nothing
for STALL_SECONDS, is given up: a slow process slows nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast
from uuid import UUID

import msgspec

from caching.entry import Entry
from caching.single_flight import Piece
from gateway import metrics
from gateway.coalescing.peer_handshake import MAX_FRAME_BYTES, NotProved, Proof, Side

#: Together less than a lease lasts, and more than a process waits for its turn on a machine that is busy.
BEAT_SECONDS = 0.5
SILENT_BEATS = 8
STALL_SECONDS = 2.0
#: Of one link, beyond which its flights wait for the other side to read.
UNSENT_BYTES = 1 << 20


class Wish(msgspec.Struct, frozen=True, array_like=True, tag="wish"):
    """Asks to follow the flight of this name, which ``lease`` says is there. ``number`` is the asker's own."""

    number: int
    tenant_id: bytes
    name: bytes
    lease: bytes


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """Nobody follows it here any more."""

    number: int


class Following(msgspec.Struct, frozen=True, array_like=True, tag="following"):
    """There is such a flight; its pieces come."""

    number: int
    source_id: UUID
    key_id: UUID
    streamed: bool


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """One more piece of it."""

    number: int
    piece: Piece


class Landed(msgspec.Struct, frozen=True, array_like=True, tag="landed"):
    """It has ended well."""

    number: int
    entry: Entry | None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """It has ended without an answer, or there is none."""

    number: int


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """Nothing; only that the process goes on."""


Message = Wish | Leave | Following | Told | Landed | Failed | Beat
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Link(asyncio.Protocol):
    """One side of a connection. ``on_message`` hears whom it has proved; ``on_lost`` is called once."""

    def __init__(
        self,
        side: Side,
        address: str,
        on_message: Callable[[Link, Message], None],
        on_lost: Callable[[Link], None],
    ) -> None:
        self._proof = Proof(side, address)
        self._on_message = on_message
        self._on_lost = on_lost
        self._silent_beats = 0
        self._transport: asyncio.Transport | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._room = asyncio.Event()
        self._room.set()
        #: True once the other side has proved itself; False of a link on which it never did.
        self.proved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.lost = False
        #: It said nothing for too long: its process may have stopped in the middle.
        self.went_silent = False

    def send(self, message: Message) -> bool:
        """Send a message; False where it is too large, or the link is lost."""
        if self.lost or self._transport is None:
            return False
        content = _encoder.encode(message)
        if len(content) > MAX_FRAME_BYTES:
            return False
        self._transport.write(self._proof.seal(content))
        return True

    async def room(self) -> None:
        """Wait until the other side has read most of what was sent, or the link is lost."""
        await self._room.wait()

    def drop(self) -> None:
        """Close it at once."""
        if self.lost:
            return
        self.lost = True
        for timer in (self._beating, self._stalled):
            if timer is not None:
                timer.cancel()
        self._room.set()
        if self._proof.done:
            metrics.FLIGHT_LINKS.dec()
        if not self.proved.done():
            self.proved.set_result(False)
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the listener alone speaks unasked, and says nothing but a nonce."""
        opened = self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        if self.lost:
            opened.abort()
            return
        opened.set_write_buffer_limits(high=UNSENT_BYTES)
        opened.write(self._proof.opening())
        self._beat_later()

    def data_received(self, data: bytes) -> None:
        """Take what came: proofs first, then frames."""
        if self.lost or self._transport is None:
            return
        self._silent_beats = 0 if self._proof.done else self._silent_beats
        try:
            self._transport.write(self._proof.feed(data))
            if self._proof.done and not self.proved.done():
                self.proved.set_result(True)
                metrics.FLIGHT_LINKS.inc()
            for content in self._proof.frames():
                self._on_message(self, _decoder.decode(content))
                if self.lost:
                    return
        except (NotProved, msgspec.DecodeError):  # a stranger, or a gateway of another version
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the connection."""
        self.drop()

    def pause_writing(self) -> None:
        """Let flights wait; who reads nothing at all is dropped."""
        self._room.clear()
        self._stalled = asyncio.get_running_loop().call_later(STALL_SECONDS, self.drop)

    def resume_writing(self) -> None:
        """Go on."""
        if self._stalled is not None:
            self._stalled.cancel()
        self._room.set()

    def _beat_later(self) -> None:
        self._beating = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        """Be heard. Silence is counted in beats, of which a loop that was busy for long has made only one."""
        self._silent_beats += 1
        if self._silent_beats > SILENT_BEATS:
            self.went_silent = True
            self.drop()
            return
        if self._proof.done:
            self.send(Beat())
        self._beat_later()
