"""A stored response, and the bytes it is kept as in Redis."""

from __future__ import annotations

import time
import zlib
from uuid import UUID

import msgspec

from tenants.isolation import sealed

#: Larger responses are compressed. For small ones it costs 12 µs, a twentieth of a request, and saves little.
PLAIN_BYTES = 2048
#: First byte of a zlib stream; an uncompressed entry, a msgpack array, begins with another.
_ZLIB = b"\x78"

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


class Entry(msgspec.Struct, frozen=True, array_like=True, tag=2, kw_only=True):
    """A complete, successful response.

    ``body`` is the engine's non-streamed JSON; the tokens are those it used, in disjoint classes.
    """

    body: bytes
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    #: Engine time, milliseconds.
    engine_ms: float
    #: The request that ran, a UUIDv7, and its key.
    source_id: UUID
    key_id: UUID
    #: Unix seconds.
    stored_at: float
    ttl_seconds: int

    def age_seconds(self) -> int:
        """Return its age in whole seconds, for the ``age`` header (RFC 9111)."""
        return max(0, int(time.time() - self.stored_at))


def encode(name: bytes, entry: Entry) -> bytes:
    """Return the bytes to store under ``name``."""
    packed = _encoder.encode(entry)
    if len(packed) > PLAIN_BYTES:
        packed = zlib.compress(packed, level=1)
    return sealed.seal(name, packed)


def decode(name: bytes, stored: bytes) -> Entry | None:
    """Return the entry, or None if it was altered, moved from another name, or has another version."""
    packed = sealed.unseal(name, stored)
    if packed is None:
        return None
    try:
        plain = zlib.decompress(packed) if packed[:1] == _ZLIB else packed
        return msgspec.msgpack.decode(plain, type=Entry)
    except (zlib.error, msgspec.DecodeError):
        return None
