"""Reservations as they are shown: their state, and how far their slots were available."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.utils import timezone

from reserved_capacity import measured, registry
from reserved_capacity.models import CapacityReservation

#: The days whose availability is shown.
DAYS = 30
State = Literal["scheduled", "current", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A reservation; ``available`` is the share of the last 30 days in which its slots were; None before an hour."""

    reservation: CapacityReservation
    state: State
    ends_at: dt.datetime | None
    available: float | None

    @property
    def id(self) -> UUID:
        """The reservation's."""
        return self.reservation.id


def read(tenant_ids: Collection[UUID] | None = None, *, with_ended: bool = True) -> list[Listed]:
    """Return the reservations of these tenants, of all by default, the newest first."""
    now = timezone.now()
    times = measured.since(now - dt.timedelta(days=DAYS))
    rows = [_listed(row, now, times) for row in registry.listed(tenant_ids)]
    return [each for each in rows if with_ended or each.state != "ended"]


def one(row: CapacityReservation) -> Listed:
    """Return a single reservation."""
    now = timezone.now()
    return _listed(row, now, measured.since(now - dt.timedelta(days=DAYS)))


def _listed(row: CapacityReservation, now: dt.datetime, times: dict[UUID, tuple[int, int]]) -> Listed:
    available, reserved = times.get(row.id, (0, 0))
    ends_at = registry.end_of(row)
    state: State = "current" if row.starts_at <= now else "scheduled"
    if ends_at is not None and (ends_at <= now or ends_at <= row.starts_at):
        state = "ended"
    return Listed(reservation=row, state=state, ends_at=ends_at, available=available / reserved if reserved else None)
