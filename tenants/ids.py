"""Ids: UUIDv7, which sort by creation time; one type per kind of object."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NewType
from uuid import UUID

from uuid_utils.compat import uuid7

TenantId = NewType("TenantId", UUID)
ProjectId = NewType("ProjectId", UUID)
KeyId = NewType("KeyId", UUID)
RequestId = NewType("RequestId", UUID)
RevisionId = NewType("RevisionId", UUID)
ReplicaId = NewType("ReplicaId", UUID)

#: The built-in tenant that pays for canaries and pre-warming.
PLATFORM_SLUG = "platform"

# Integer milliseconds throughout: with floats, up to 6 % of a year's moments come out one too low.
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def new_id() -> UUID:
    """Return a fresh UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits."""
    return uuid7()


def created_at(value: UUID) -> datetime:
    """Return the UTC time in a UUIDv7, exact to the millisecond. Raises ValueError for other versions."""
    if value.version != 7:
        raise ValueError(f"not a UUIDv7: {value}")
    return _UNIX_EPOCH + milliseconds_of(value) * _MILLISECOND


def milliseconds_of(value: UUID) -> int:
    """Return the Unix milliseconds in a UUIDv7."""
    return value.int >> 80


def first_millisecond(moment: datetime) -> int:
    """Return the first Unix millisecond at or after an aware moment."""
    return -((_UNIX_EPOCH - moment) // _MILLISECOND)


def first_id_at(moment: datetime) -> UUID:
    """Return the smallest UUIDv7 of an aware moment's millisecond: the lower bound of a range of ids."""
    return UUID(int=(((moment - _UNIX_EPOCH) // _MILLISECOND) << 80) | (0x7 << 76) | (0x2 << 62))
