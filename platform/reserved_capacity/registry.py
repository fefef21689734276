"""Make, end and list reservations, and what they ask of a deployment.

Times are full hours of UTC, so that an hour has one set of reservations. ``workers.fleet.reserved_capacity`` checks a
new one against its deployment and makes it.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from reserved_capacity.errors import ReservationRefused
from reserved_capacity.models import CapacityReservation
from reserved_capacity.models.hours import HOUR
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.models import Tenant

#: Replicas start this long before a reservation begins, so that they are ready when it does.
LEAD = dt.timedelta(minutes=15)
#: The most replicas times the most slots of one.
MOST_SLOTS = 16_000
#: A million a slot and hour.
HIGHEST_SLOT_HOUR_PICO = 10**18
MOST_TOKENS_PER_SLOT_HOUR = 10**12
#: The last years of the calendar cannot be stored in every time zone.
LAST_YEAR = 2199


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A reservation to make. ``ends_at`` None: until it is ended."""

    deployment: str
    slots: int
    starts_at: dt.datetime
    ends_at: dt.datetime | None
    slot_hour_pico: int
    tokens_per_slot_hour: int = 0


@transaction.atomic
def reserve(actor: Actor, tenant: Tenant, wanted: Wanted, model_name: str) -> CapacityReservation:
    """Make a reservation for a tenant. Raises ReservationRefused."""
    _check(wanted, timezone.now())
    locked = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    if locked.archived_at is not None:
        raise ReservationRefused("tenant", f"{tenant.slug} is archived.", "Restore it first.")
    _require_alone(locked, wanted)
    made = CapacityReservation.objects.create(
        tenant=locked,
        deployment=wanted.deployment,
        model_names=[model_name],
        slots=wanted.slots,
        starts_at=wanted.starts_at,
        ends_at=wanted.ends_at,
        currency=locked.currency,
        slot_hour_pico=wanted.slot_hour_pico,
        tokens_per_slot_hour=wanted.tokens_per_slot_hour,
    )
    after = {
        "deployment": made.deployment,
        "slots": made.slots,
        "from": made.starts_at.isoformat(),
        "until": made.ends_at.isoformat() if made.ends_at else None,
        "currency": made.currency,
        "slot_hour_pico": made.slot_hour_pico,
        "tokens_per_slot_hour": made.tokens_per_slot_hour,
    }
    audit.record(actor, "reservation.set", ("reservation", made.id), tenant=locked, after=after)
    return made


@transaction.atomic
def end(actor: Actor, reservation_id: UUID, at: dt.datetime | None = None) -> CapacityReservation:
    """End a reservation at a full hour to come, by default the next; one that has not begun is never in force.

    Raises NotFound, ReservationRefused.
    """
    now = timezone.now()
    rows = CapacityReservation.objects.select_for_update(no_key=True, of=("self",)).select_related("tenant")
    found = rows.filter(id=reservation_id).first()
    if found is None:
        raise NotFound("reservation", str(reservation_id))
    at = next_hour(now) if at is None else at
    _require_hour("at", at)
    if at < now:
        raise ReservationRefused("at", f"{at.isoformat()} is past.", "Use an hour to come.")
    moment = max(found.starts_at, at)
    if found.ends_at is not None and (found.ends_at <= now or moment > found.ends_at):
        ends = f"It ends at {found.ends_at.isoformat()}."
        raise ReservationRefused("at", ends, "Use an earlier hour to come; make a new one for a longer time.")
    before, found.ends_at = found.ends_at, moment
    if before != moment:
        found.save(update_fields=["ends_at"])
        audit.record(
            actor,
            "reservation.ended",
            ("reservation", found.id),
            tenant=found.tenant,
            before={"until": before.isoformat() if before else None},
            after={"until": moment.isoformat()},
        )
    return found


def listed(tenant_ids: Collection[UUID] | None = None) -> QuerySet[CapacityReservation]:
    """Return the reservations of these tenants, of all by default, the newest first."""
    rows = CapacityReservation.objects.select_related("tenant").order_by("-id")
    return rows if tenant_ids is None else rows.filter(tenant_id__in=tenant_ids)


def slots_now(now: dt.datetime) -> dict[str, int]:
    """Return how many slots of each deployment are reserved now or within the lead."""
    rows = _in_force().filter(starts_at__lte=now + LEAD).filter(_ends_after(now))
    found: Counter[str] = Counter()
    for deployment, slots in rows.values_list("deployment", "slots"):
        found[deployment] += slots
    return dict(found)


def most_slots(deployment: str, start: dt.datetime, end: dt.datetime | None = None) -> int:
    """Return the most slots of a deployment that are reserved at once in a time; the lead counts."""
    rows = _in_force().filter(_ends_after(start), deployment=deployment)
    if end is not None:
        rows = rows.filter(starts_at__lt=end + LEAD)
    spans = [(max(start, row.starts_at - LEAD), row.ends_at, row.slots) for row in rows]
    return max((_at(spans, begins_at) for begins_at, _, _ in spans), default=0)


def add_name(old_name: str, new_name: str) -> None:
    """Let the reservations of a renamed model include the tokens of both names."""
    for row in _in_force().filter(_ends_after(timezone.now()), model_names__contains=[old_name]):
        names = list(dict.fromkeys([*row.model_names, new_name]))
        CapacityReservation.objects.filter(id=row.id).update(model_names=names)


def next_hour(moment: dt.datetime) -> dt.datetime:
    """Return the moment, or the full hour after it."""
    hour = moment.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)
    return hour if hour == moment else hour + HOUR


def end_of(row: CapacityReservation) -> dt.datetime | None:
    """Return when a reservation ends: no later than the hour in which its tenant was archived begins."""
    archived_at = row.tenant.archived_at
    if archived_at is None:
        return row.ends_at
    hour = archived_at.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)
    return max(row.starts_at, hour if row.ends_at is None else min(row.ends_at, hour))


def hours_between(row: CapacityReservation, start: dt.datetime, end: dt.datetime) -> Sequence[dt.datetime]:
    """Return the hours of a reservation that begin in a time."""
    first, last = max(next_hour(start), row.starts_at), end_of(row)
    behind = end if last is None else min(end, last)
    count = max(0, -((first - behind) // HOUR))
    return [first + HOUR * number for number in range(count)]


def _in_force() -> QuerySet[CapacityReservation]:
    return CapacityReservation.objects.filter(tenant__archived_at=None)


def _ends_after(moment: dt.datetime) -> Q:
    return Q(ends_at=None) | Q(ends_at__gt=moment) & Q(ends_at__gt=F("starts_at"))


def _at(spans: Iterable[tuple[dt.datetime, dt.datetime | None, int]], moment: dt.datetime) -> int:
    return sum(slots for first, behind, slots in spans if first <= moment and (behind is None or moment < behind))


def _check(wanted: Wanted, now: dt.datetime) -> None:
    for field, value, smallest, largest in (
        ("slots", wanted.slots, 1, MOST_SLOTS),
        ("slot_hour_pico", wanted.slot_hour_pico, 0, HIGHEST_SLOT_HOUR_PICO),
        ("tokens_per_slot_hour", wanted.tokens_per_slot_hour, 0, MOST_TOKENS_PER_SLOT_HOUR),
    ):
        if not smallest <= value <= largest:
            raise ReservationRefused(field, f"{value} is out of range.", f"Use {smallest} to {largest}.")
    _require_hour("starts_at", wanted.starts_at)
    if wanted.starts_at < now:
        raise ReservationRefused("starts_at", f"{wanted.starts_at.isoformat()} is past.", "Use an hour to come.")
    if wanted.ends_at is not None:
        _require_hour("ends_at", wanted.ends_at)
        if wanted.ends_at <= wanted.starts_at:
            raise ReservationRefused("ends_at", "It would end before it begins.", "Use a later hour.")


def _require_hour(field: str, moment: dt.datetime) -> None:
    if moment.year > LAST_YEAR or next_hour(moment) != moment:
        raise ReservationRefused(field, f"{moment.isoformat()} is no full hour of UTC.", "Use one, as 12:00Z.")


def _require_alone(tenant: Tenant, wanted: Wanted) -> None:
    rows = CapacityReservation.objects.filter(_ends_after(wanted.starts_at), tenant=tenant)
    if wanted.ends_at is not None:
        rows = rows.filter(starts_at__lt=wanted.ends_at)
    if (other := rows.filter(deployment=wanted.deployment).first()) is not None:
        there = f"{other.slots} slots of {wanted.deployment} reserved from {other.starts_at.isoformat()}"
        raise ReservationRefused(
            "deployment", f"{tenant.slug} has {there}.", "End that reservation first, or reserve for when it has ended."
        )
