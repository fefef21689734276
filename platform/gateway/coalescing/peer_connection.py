"""A connection between two gateway processes of one host, over which the followers of a flight receive its chunks.

A frame is a message in msgpack behind its length, 4 bytes big-endian. Many flights share one connection. Each side
drops the connection after SILENT_HEARTBEATS of its own clock without data from the other, and when the other reads
nothing for STALL_SECONDS: a slow process delays no other.

The socket lies in a folder that only this user can open (``gateway.coalescing.peer_listener``), so frames are neither
signed nor encrypted.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import cast
from uuid import UUID

import msgspec

from caching.entry import Entry
from caching.single_flight import Piece
from gateway import metrics

#: Together less than the lifetime of a lease, and more than a process waits for a processor on a busy machine.
HEARTBEAT_SECONDS = 0.5
SILENT_HEARTBEATS = 8
STALL_SECONDS = 2.0
#: Unsent bytes of one connection above which its flights wait for the other side to read.
UNSENT_BYTES = 1 << 20
MAX_FRAME_BYTES = 16 << 20
_HEAD = struct.Struct(">I")


class FrameTooLarge(Exception):
    """The other side announced a frame above MAX_FRAME_BYTES."""


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Ask for the flight with this name and ``lease``. The subscriber chooses ``number``; replies carry it."""

    number: int
    tenant_id: bytes
    name: bytes
    lease: bytes


class Unsubscribe(msgspec.Struct, frozen=True, array_like=True, tag="unsubscribe"):
    """The last follower in the subscribing process has left."""

    number: int


class Subscribed(msgspec.Struct, frozen=True, array_like=True, tag="subscribed"):
    """The flight exists; its chunks follow."""

    number: int
    source_id: UUID
    key_id: UUID
    streamed: bool


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="chunk"):
    """The next piece of a flight."""

    number: int
    piece: Piece


class Completed(msgspec.Struct, frozen=True, array_like=True, tag="completed"):
    """The flight has ended with a whole response."""

    number: int
    entry: Entry | None


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The flight does not exist, or has ended without a response."""

    number: int
    #: Message, code and status of the error of an engine that took too long or wrote too much: nobody tries again.
    overran: tuple[str, str, int] | None = None


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """The sending process is running."""


Message = Subscribe | Unsubscribe | Subscribed | Chunk | Completed | Failed | Heartbeat
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class PeerConnection(asyncio.Protocol):
    """One side of a connection. ``on_message`` is called with each message, ``on_lost`` once."""

    def __init__(
        self, on_message: Callable[[PeerConnection, Message], None], on_lost: Callable[[PeerConnection], None]
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._received = bytearray()
        self._silent_heartbeats = 0
        self._transport: asyncio.Transport | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.lost = False
        #: The other side sent nothing for too long: its process may be frozen.
        self.timed_out = False

    def send(self, message: Message) -> bool:
        """Send a message; return False if it is too large or the connection is lost."""
        if self.lost or self._transport is None:
            return False
        content = _encoder.encode(message)
        if len(content) > MAX_FRAME_BYTES:
            return False
        self._transport.write(_HEAD.pack(len(content)) + content)
        return True

    async def drain(self) -> None:
        """Wait until the other side has read most of what was sent, or the connection is lost."""
        await self._writable.wait()

    def drop(self) -> None:
        """Close the connection at once."""
        if self.lost:
            return
        self.lost = True
        for timer in (self._heartbeat_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._writable.set()
        if self._transport is not None:
            metrics.PEER_CONNECTIONS.dec()
            self._transport.abort()
        self._on_lost(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to send heartbeats."""
        opened = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        if self.lost:
            opened.abort()
            return
        self._transport = opened
        metrics.PEER_CONNECTIONS.inc()
        opened.set_write_buffer_limits(high=UNSENT_BYTES)
        self._schedule_heartbeat()

    def data_received(self, data: bytes) -> None:
        """Pass on each complete message."""
        if self.lost:
            return
        self._silent_heartbeats = 0
        self._received += data
        try:
            for content in self._frames():
                self._on_message(self, _decoder.decode(content))
                if self.lost:
                    return
        except (FrameTooLarge, msgspec.DecodeError):  # the other side runs another version
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the flights of this connection."""
        self.drop()

    def pause_writing(self) -> None:
        """Make flights wait; drop the connection if the other side reads nothing for STALL_SECONDS."""
        self._writable.clear()
        self._stall_timer = asyncio.get_running_loop().call_later(STALL_SECONDS, self.drop)

    def resume_writing(self) -> None:
        """Let flights continue."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._writable.set()

    def _frames(self) -> Iterator[bytes]:
        while len(self._received) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._received)
            if size > MAX_FRAME_BYTES:
                raise FrameTooLarge
            end = _HEAD.size + size
            if len(self._received) < end:
                return
            content = bytes(self._received[_HEAD.size : end])
            del self._received[:end]
            yield content

    def _schedule_heartbeat(self) -> None:
        self._heartbeat_timer = asyncio.get_running_loop().call_later(HEARTBEAT_SECONDS, self._heartbeat)

    def _heartbeat(self) -> None:
        """Send a heartbeat. Silence is counted in heartbeats: a loop that was busy for long has made only one."""
        self._silent_heartbeats += 1
        if self._silent_heartbeats > SILENT_HEARTBEATS:
            self.timed_out = True
            self.drop()
            return
        self.send(Heartbeat())
        self._schedule_heartbeat()
