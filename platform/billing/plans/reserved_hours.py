"""Read what was measured of a tenant's reserved capacity."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from billing.plans.reserved import ReservedTime
from reserved_capacity import measured


def read(tenant_id: UUID, start: datetime, end: datetime) -> tuple[ReservedTime, ...]:
    """Return a tenant's reservations with the hours that began in a time and are measured."""
    return tuple(
        ReservedTime(
            deployment=each.reservation.deployment,
            model_names=tuple(each.reservation.model_names),
            slots=each.reservation.slots,
            hours=each.hours,
            available_seconds=each.available_seconds,
            currency=each.reservation.currency,
            slot_hour_pico=each.reservation.slot_hour_pico,
            tokens_per_slot_hour=each.reservation.tokens_per_slot_hour,
        )
        for each in measured.in_time(tenant_id, start, end)
    )
