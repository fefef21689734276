"""How far reserved slots were available in each hour, from the transitions of replicas.

A slot is available while a replica of the deployment that has it is ready and may get requests. Reservations of one
deployment share what is available in proportion to their slots, moment by moment, and none has more than it reserved.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from uuid import UUID

from reserved_capacity import measured, registry
from reserved_capacity.models import CapacityReservation, ReservedHour
from reserved_capacity.models.hours import HOUR
from workers.models import Replica, ReplicaEvent, SlotLease

#: An hour is measured once it is over for as long: a transition is stored within seconds.
SETTLED = dt.timedelta(minutes=2)
_ENDED = (Replica.State.STOPPED, Replica.State.FAILED, Replica.State.LOST)
_MICROSECOND = dt.timedelta(microseconds=1)
_Span = tuple[dt.datetime, dt.datetime]


def measure(now: dt.datetime) -> int:
    """Store the hours that are over and not measured yet; return how many. Repeating it stores nothing more."""
    due = measured.due(now - SETTLED)
    by_deployment: dict[str, dict[dt.datetime, list[CapacityReservation]]] = defaultdict(lambda: defaultdict(list))
    for row, hours in due.items():
        for hour in hours:
            by_deployment[row.deployment][hour].append(row)
    return measured.store(
        each for deployment, rows in by_deployment.items() for each in _of_deployment(deployment, rows)
    )


def _of_deployment(deployment: str, due: Mapping[dt.datetime, Sequence[CapacityReservation]]) -> Iterator[ReservedHour]:
    reserved = {hour: _reserved_in(deployment, hour) for hour in due}
    ready = _ready(deployment, min(due), max(due) + HOUR)
    for hour, rows in sorted(due.items()):
        slot_time = _slot_time(ready, hour, reserved[hour])
        for row in rows:
            share = Fraction(slot_time, 10**6) * row.slots / reserved[hour]
            yield ReservedHour(
                reservation=row,
                tenant_id=row.tenant_id,
                starts_at=hour,
                slots=row.slots,
                available_seconds=round(share),
            )


def _reserved_in(deployment: str, hour: dt.datetime) -> int:
    """Return how many slots of the deployment are reserved in an hour, by all tenants."""
    rows = CapacityReservation.objects.filter(deployment=deployment, starts_at__lte=hour).select_related("tenant")
    return sum(row.slots for row in rows if registry.hours_between(row, hour, hour + HOUR))


def _slot_time(ready: Iterable[tuple[_Span, int]], hour: dt.datetime, most: int) -> int:
    """Return slots times microseconds of an hour in which slots were ready, at most ``most`` at a time."""
    changes: dict[dt.datetime, int] = defaultdict(int)
    for (began_at, ended_at), slots in ready:
        start, end = max(began_at, hour), min(ended_at, hour + HOUR)
        if start < end:
            changes[start] += slots
            changes[end] -= slots
    total, slots, since = 0, 0, hour
    for moment, change in sorted(changes.items()):
        total += min(slots, most) * ((moment - since) // _MICROSECOND)
        slots, since = slots + change, moment
    return total


def _ready(deployment: str, start: dt.datetime, end: dt.datetime) -> list[tuple[_Span, int]]:
    """Return when replicas were ready in a time, each span with the slots of the replica."""
    rows = Replica.objects.filter(deployment__name=deployment, created_at__lt=end, canary__in=Replica.PROVEN)
    rows = rows.exclude(state__in=_ENDED, state_since__lt=start)
    replicas = {row.id: row for row in rows.only("id", "state", "canary", "canary_at")}
    events: dict[UUID, list[ReplicaEvent]] = defaultdict(list)
    for event in ReplicaEvent.objects.filter(replica__in=replicas, created_at__gte=start).order_by("created_at", "id"):
        events[event.replica_id].append(event)
    leases = SlotLease.objects.filter(replica__in=replicas, kind=SlotLease.Kind.REPLICA, acquired_at__lt=end)
    held: dict[UUID, list[SlotLease]] = defaultdict(list)
    for lease in leases:
        assert lease.replica_id is not None
        held[lease.replica_id].append(lease)
    return [
        (span, slots)
        for row in replicas.values()
        for span in _spans(row, events[row.id], start, end)
        if (slots := sum(int(_has(lease, span[0])) for lease in held[row.id]))
    ]


def _spans(row: Replica, events: Sequence[ReplicaEvent], start: dt.datetime, end: dt.datetime) -> Iterator[_Span]:
    """Yield when a replica was ready, by its transitions since ``start``: what each came from holds until then."""
    proven = max(start, row.canary_at) if row.canary == Replica.Canary.PASSED and row.canary_at else start
    since, state = start, events[0].from_state if events else row.state
    for event in events:
        if state == Replica.State.READY and max(since, proven) < min(event.created_at, end):
            yield max(since, proven), min(event.created_at, end)
        since, state = event.created_at, event.to_state
    if state == Replica.State.READY and max(since, proven) < end:
        yield max(since, proven), end


def _has(lease: SlotLease, moment: dt.datetime) -> bool:
    return lease.acquired_at <= moment and (lease.released_at is None or lease.released_at > moment)
