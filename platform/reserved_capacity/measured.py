"""Hours that were measured, and what they come to in a month."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Max, Sum

from reserved_capacity import registry
from reserved_capacity.models import CapacityReservation, ReservedHour
from reserved_capacity.models.hours import HOUR, HOUR_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTime:
    """The hours of a reservation that began in a time and were measured; ``available_seconds`` of all their slots."""

    reservation: CapacityReservation
    hours: int
    available_seconds: int


def in_time(tenant_id: UUID, start: dt.datetime, end: dt.datetime) -> tuple[MeasuredTime, ...]:
    """Return what was measured of a tenant's reservations, in the order in which they were made; none without hours."""
    rows = ReservedHour.objects.filter(tenant_id=tenant_id, starts_at__gte=start, starts_at__lt=end)
    sums = rows.values("reservation").annotate(hours=Count("id"), seconds=Sum("available_seconds")).order_by()
    by_id = {row["reservation"]: row for row in sums}
    found = CapacityReservation.objects.filter(id__in=by_id).select_related("tenant").order_by("id")
    return tuple(
        MeasuredTime(reservation=row, hours=by_id[row.id]["hours"], available_seconds=by_id[row.id]["seconds"])
        for row in found
    )


def first_missing(tenant_id: UUID, start: dt.datetime, end: dt.datetime) -> dt.datetime | None:
    """Return the first hour in a time that a tenant had reserved and that was not measured; None without one."""
    missing: list[dt.datetime] = []
    for row in CapacityReservation.objects.filter(tenant_id=tenant_id, starts_at__lt=end).select_related("tenant"):
        hours = registry.hours_between(row, start, end)
        there = set(row.hours.filter(starts_at__gte=start, starts_at__lt=end).values_list("starts_at", flat=True))
        missing += [hour for hour in hours if hour not in there]
    return min(missing, default=None)


def since(start: dt.datetime) -> dict[UUID, tuple[int, int]]:
    """Return, by reservation, the seconds of slots that were available and that were reserved from a moment on."""
    rows = ReservedHour.objects.filter(starts_at__gte=start).values_list("reservation").order_by()
    sums = rows.annotate(available=Sum("available_seconds"), reserved=Sum("slots") * HOUR_SECONDS)
    return {identity: (int(available), int(reserved)) for identity, available, reserved in sums}


def due(now: dt.datetime) -> dict[CapacityReservation, Sequence[dt.datetime]]:
    """Return the hours of each reservation that ended by ``now`` and are not measured yet."""
    last = dict(ReservedHour.objects.values_list("reservation").annotate(last=Max("starts_at")).order_by())
    found: dict[CapacityReservation, Sequence[dt.datetime]] = {}
    for row in CapacityReservation.objects.filter(starts_at__lt=now).select_related("tenant").order_by("id"):
        begin = last[row.id] + HOUR if row.id in last else row.starts_at
        if hours := [hour for hour in registry.hours_between(row, begin, now) if hour + HOUR <= now]:
            found[row] = hours
    return found


def store(hours: Iterable[ReservedHour]) -> int:
    """Store hours that are not there yet; return how many were given."""
    return len(ReservedHour.objects.bulk_create(hours, ignore_conflicts=True, batch_size=1000))
