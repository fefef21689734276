"""A decision as gateways keep it in Redis and operators read it: ids and numbers, nothing of a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

import msgspec

from routing.explanation import Decision

#: A list in the cache's Redis, newest first.
KEY = b"routing:decisions"

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: msgspec.msgpack.Decoder[Decision] = msgspec.msgpack.Decoder(Decision)


def encode(decision: Decision) -> bytes:
    """Return an item of the list."""
    return _encoder.encode(decision)


def every(items: Iterable[bytes]) -> list[Decision]:
    """Return the decisions, in the order of the items; what another version of Hearth wrote differently is left out."""
    found: list[Decision] = []
    for each in items:
        with suppress(msgspec.ValidationError):
            found.append(_decoder.decode(each))
    return found


def of_request(items: Iterable[bytes], request_id: UUID) -> list[Decision]:
    """Return the decisions for a request, one for each attempt, the first first.

    What another version of Hearth wrote differently is left out.
    """
    found = every(each for each in items if request_id.bytes in each)
    return [each for each in reversed(found) if each.request_id == request_id]
