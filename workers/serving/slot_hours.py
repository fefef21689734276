"""How long the replicas of each deployment had slots in a period, and what an hour of each costs: from leases alone."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from workers.models import SlotLease


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSlots:
    """The slots of one replica: how many it had, and for how long together, in milliseconds.

    ``slot_hour_pico``: what an hour of a slot of its pool costs now, pico-dollars; None if nobody has said.
    """

    replica_id: UUID
    deployment: str
    pool: str
    slots: int
    slot_ms: int
    slot_hour_pico: int | None


def by_replica(start: dt.datetime, end: dt.datetime) -> tuple[ReplicaSlots, ...]:
    """Return the replicas that had slots from ``start`` to before ``end``, or now, by deployment."""
    until = min(end, timezone.now())
    rows = SlotLease.objects.filter(
        Q(released_at=None) | Q(released_at__gt=start), kind=SlotLease.Kind.REPLICA, acquired_at__lt=until
    ).select_related("replica__deployment", "slot__node__pool")
    leases: defaultdict[UUID, list[SlotLease]] = defaultdict(list)
    for lease in rows.order_by("id"):
        assert lease.replica_id is not None
        leases[lease.replica_id].append(lease)
    found = [_replica(own, start, until) for own in leases.values()]
    return tuple(sorted(found, key=lambda each: (each.deployment, str(each.replica_id))))


def _replica(leases: list[SlotLease], start: dt.datetime, until: dt.datetime) -> ReplicaSlots:
    replica, pool = leases[0].replica, leases[0].slot.node.pool
    assert replica is not None
    spans = [min(lease.released_at or until, until) - max(lease.acquired_at, start) for lease in leases]
    return ReplicaSlots(
        replica_id=replica.id,
        deployment=replica.deployment.name,
        pool=pool.name,
        slots=len({lease.slot_id for lease in leases}),
        slot_ms=sum(max(0, span // dt.timedelta(milliseconds=1)) for span in spans),
        slot_hour_pico=pool.slot_hour_pico,
    )
