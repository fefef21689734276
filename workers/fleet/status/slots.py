"""Slots as lists, pages and the API show them: health, and what the device did when its agent last read it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from uuid import UUID

import msgspec
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet
from django.db.models.functions import Now

from workers.devices.provider import Reading
from workers.models import Slot

#: A reading that is older says nothing about now: its agent is silent, or its driver hangs.
LIFETIME = dt.timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """A place for one engine rank. ``reading`` is None while there is none of the last minute."""

    id: UUID
    index: int
    device_uuid: str
    memory_bytes: int | None
    health: str
    fault: str
    reading: Reading | None = None
    read_at: dt.datetime | None = None

    @property
    def healthy(self) -> bool:
        """Return whether replicas and placeholders may have it."""
        return self.health == Slot.Health.OK


def slot_rows() -> QuerySet[Slot]:
    """Return all slots, each with ``is_read``: whether its reading is of the last minute by the database's clock."""
    is_read = ExpressionWrapper(Q(read_at__gt=Now() - LIFETIME), BooleanField())
    return Slot.objects.annotate(is_read=is_read)


def slot_status(row: Slot) -> SlotStatus:
    """Return a row of :func:`slot_rows` as it is shown."""
    reading = current_reading(row)
    return SlotStatus(
        id=row.id,
        index=row.index,
        device_uuid=row.device_uuid,
        memory_bytes=row.memory_bytes,
        health=row.health,
        fault=row.fault,
        reading=reading,
        read_at=None if reading is None else row.read_at,
    )


def current_reading(row: Slot) -> Reading | None:
    """Return the reading of a row of :func:`slot_rows`; None if it is old, or of a version that wrote another form."""
    if not getattr(row, "is_read"):  # noqa: B009 - an annotation, unknown to the model's type
        return None
    try:
        reading = msgspec.convert(row.reading, Reading)
    except msgspec.ValidationError:
        return None
    return None if reading == Reading() else reading  # as of a share of a CPU without an engine
