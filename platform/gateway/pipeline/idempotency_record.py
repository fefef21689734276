"""The record under an ``Idempotency-Key``: the claim of a running request, or its response. Sealed and scoped.

The text of the key and the request are not stored, only MACs of them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgspec

from tenants.isolation import keyspace, sealed
from tenants.snapshot.snapshot import Caller

MAX_RESPONSE_BYTES = 1 << 20


class Claim(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The request with this MAC is running; ``fence`` distinguishes this claim from all others."""

    request: bytes
    fence: bytes


class StoredResponse(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The response to the request with this MAC; a stream's body is all its events."""

    request: bytes
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_stream: bool


class NotStored(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The response to the request with this MAC exceeds the limit of one response or of the tenant's hour."""

    request: bytes


Record = Claim | StoredResponse | NotStored
_decoder = msgspec.msgpack.Decoder(Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySlot:
    """Where a key is stored, and its request. ``name`` and ``request`` are MACs.

    ``volume_key`` is the prefix of the Redis key that counts the tenant's stored bytes; the hour follows.
    """

    redis_key: str
    volume_key: str
    name: bytes
    request: bytes

    @classmethod
    def of(cls, caller: Caller, path: str, text: str, request: tuple[bytes, ...]) -> KeySlot:
        """Return the slot of a key's text at one endpoint; every API key has slots of its own."""
        name = keyspace.idempotency_name(caller, path, text)
        return cls(
            redis_key=keyspace.redis_key(caller, "idempotency", name.hex()),
            volume_key=keyspace.redis_key(caller, "idempotency-bytes"),
            name=name,
            request=keyspace.request_mac(name, *request),
        )

    def seal(self, record: Record) -> bytes:
        """Return the bytes to store."""
        packed = zlib.compress(msgspec.msgpack.encode(record), level=1)
        return sealed.seal(self.name, packed)

    def open(self, stored: bytes) -> Record | None:
        """Return the stored record; None when it was altered, copied from another key, or has another version."""
        packed = sealed.unseal(self.name, stored)
        if packed is None:
            return None
        try:
            found: Record = _decoder.decode(zlib.decompress(packed))
        except (zlib.error, msgspec.DecodeError):
            return None
        return found
