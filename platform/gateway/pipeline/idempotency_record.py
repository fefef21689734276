"""What is kept under an ``Idempotency-Key``: who runs its request, or how it was answered. Sealed and scoped.

The key's own text and the request are kept nowhere, only MACs of them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec

from tenants import keyspace, sealed
from tenants.snapshot import Caller

MAX_ANSWER_BYTES = 1 << 20


class Claim(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Somebody runs the request of this MAC; ``fence`` tells his claim from all others."""

    request: bytes
    fence: bytes


class StoredResponse(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to the request of this MAC; a stream's body is all its events."""

    request: bytes
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_stream: bool


class NotStored(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The request of this MAC was answered with more than is kept, of one answer or of a tenant's in an hour."""

    request: bytes


Record = Claim | StoredResponse | NotStored
_decoder = msgspec.msgpack.Decoder(Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySlot:
    """Where a key is kept, and which request came with it. ``name`` and ``request`` are MACs.

    ``volume_key`` begins the name of the count of bytes that its tenant keeps; the hour follows.
    """

    redis_key: str
    volume_key: str
    name: bytes
    request: bytes

    @classmethod
    def of(cls, caller: Caller, path: str, text: str, request: tuple[bytes, ...]) -> KeySlot:
        """Return the slot of a key's text at one endpoint; nobody but this very API key has the same."""
        name = keyspace.idempotency_name(caller, path, text)
        return cls(
            redis_key=keyspace.redis_key(caller, "idempotency", name.hex()),
            volume_key=keyspace.redis_key(caller, "idempotency-bytes"),
            name=name,
            request=keyspace.request_mac(name, *request),
        )

    def seal(self, record: Record) -> bytes:
        """Return the bytes to keep."""
        packed = zlib.compress(msgspec.msgpack.encode(record), level=1)
        return sealed.seal(self.name, packed)

    def open(self, stored: bytes) -> Record | None:
        """Return what was kept, or None when it was altered, moved from another key, or is of another version."""
        packed = sealed.unseal(self.name, stored)
        if packed is None:
            return None
        try:
            found: Record = _decoder.decode(zlib.decompress(packed))
        except (zlib.error, msgspec.DecodeError):
            return None
        return found
