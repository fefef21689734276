"""The relay's protocol: length-prefixed MessagePack with block hashes only.

A follower sends one line, ``follow``, and receives for each engine process a snapshot, then its changes in order. A
client that sends ``count`` receives one JSON object, the number of blocks by replica. Token ids, salts and session
names never leave the node.
"""

from __future__ import annotations

import asyncio
import json
import socket as sockets
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

FOLLOW = b"follow\n"
COUNT = b"count\n"
MAX_FRAME_BYTES = 1 << 30


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """All blocks that one engine process has now; it replaces everything known about the replica."""

    replica_id: str
    generation: int
    #: Sequence number of the next batch.
    sequence: int
    hashes: list[bytes]


class Delta(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """What changed; everything is dropped first if ``cleared``."""

    replica_id: str
    generation: int
    sequence: int
    cleared: bool
    stored: list[bytes]
    removed: list[bytes]


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The engine process has ended."""

    replica_id: str
    generation: int


Message = Snapshot | Delta | Gone
_decoder = msgspec.msgpack.Decoder(Message)


def frame(message: Message) -> bytes:
    """Return the bytes of one message: its length in four bytes, big-endian, then MessagePack."""
    payload = msgspec.msgpack.encode(message)
    return len(payload).to_bytes(4, "big") + payload


async def follow(socket: Path) -> AsyncIterator[Message]:
    """Yield the relay's messages until it ends. Raises OSError if there is none; call again for a new snapshot."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(FOLLOW)
        await writer.drain()
        while True:
            try:
                length = int.from_bytes(await reader.readexactly(4), "big")
                yield _decoder.decode(await reader.readexactly(length))
            except asyncio.IncompleteReadError:
                return
    finally:
        writer.close()


def count(socket: Path, *, timeout_seconds: float) -> dict[str, int]:
    """Return how many blocks each replica has cached, by its id. Raises OSError if no relay answers in time."""
    with sockets.socket(sockets.AF_UNIX) as connection:
        connection.settimeout(timeout_seconds)
        connection.connect(str(socket))
        connection.sendall(COUNT)
        with connection.makefile("rb") as response:
            counts = response.read()
    try:
        return {str(replica): int(blocks) for replica, blocks in json.loads(counts).items()}
    except ValueError as error:
        raise OSError(f"the relay sent an incomplete response: {error}") from None
