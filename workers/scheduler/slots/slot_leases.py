"""Slot leases: gangs of slots on one node, claimed together, under one fence, never twice.

A claim first locks the node's slots, in order, and only then reads their leases. Reading both in one statement
double-books under READ COMMITTED: PostgreSQL checks the locked rows again, but not the rows joined to them. The partial
unique index on open leases is the second safeguard.

Every transaction locks in one order, because two could otherwise deadlock: node, slots, placeholders, leases, and rows
of one kind by id. A placeholder's lease ends only under the lock of its placeholder, so a transaction with that lock
knows whether the placeholder may still be promoted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from workers.models import Level, Placeholder, Pool, Slot, SlotLease
from workers.serving import promotion

_State = Placeholder.State


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The slots that a replica got, and what happens to the placeholders that had them."""

    fence: int
    slots: tuple[UUID, ...]
    #: The placeholder whose zygote becomes the replica, if there is one.
    promoted: UUID | None
    evicted: tuple[UUID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """The replica that needs slots. ``promote`` requires one particular placeholder; None accepts any."""

    replica_id: UUID
    deployment_id: UUID
    #: Only zygotes of this import class are promoted; see ``workers.serving.promotion``.
    import_class: str
    name: str
    promote: UUID | None = None


@transaction.atomic
def claim(request: SlotRequest, node_id: UUID, count: int) -> Claim | None:
    """Lease ``count`` slots of the node to a replica; return None and change nothing if the node has too few.

    A warm zygote that can become the replica is promoted; then free slots are taken; then the coldest placeholders are
    evicted: the leases of all their slots end at once, and the agent kills their processes before a slot is used.
    """
    slots = _locked(node_id)
    _lock_placeholders(slots)
    open_leases = {lease.slot_id: lease for lease in _open(slots)}
    kind = Pool.objects.values_list("kind", flat=True).get(nodes=node_id)
    promoted = _to_promote(request, list(open_leases.values()), slot_count=promotion.slots_needed(count, kind))
    ranked = sorted(
        (slot for slot in slots if _may_give(open_leases.get(slot.id))),
        key=lambda slot: (*_cost(open_leases.get(slot.id), promoted), slot.index),
    )
    if len(ranked) < count or (request.promote is not None and promoted is None):
        return None
    taken = ranked[:count]
    holders = (open_leases[slot.id].placeholder_id for slot in taken if slot.id in open_leases)
    made_room = {holder for holder in holders if holder is not None}
    SlotLease.objects.filter(placeholder__in=made_room, released_at=None).update(released_at=Now())
    evicted = tuple(sorted(made_room - {promoted}))
    _give_way(evicted, f"its slot is needed by {request.name}")
    if promoted is not None:
        Placeholder.objects.filter(id=promoted).update(
            state=_State.PROMOTED, state_since=Now(), reason=f"promoted for {request.name}"
        )
    fence = next_fence()
    SlotLease.objects.bulk_create(
        SlotLease(slot=slot, kind=SlotLease.Kind.REPLICA, replica_id=request.replica_id, fence=fence) for slot in taken
    )
    return Claim(
        fence=fence,
        slots=tuple(slot.id for slot in taken),
        promoted=promoted,
        evicted=evicted,
    )


@transaction.atomic
def lease_for_placeholder(placeholder_id: UUID, node_id: UUID, count: int = 1) -> int | None:
    """Lease free slots of the node to a placeholder and return the fence; None if too few are free."""
    slots = _locked(node_id)
    taken = set(_open(slots).values_list("slot_id", flat=True))
    free = [slot for slot in slots if slot.id not in taken]
    if len(free) < count:
        return None
    fence = next_fence()
    SlotLease.objects.bulk_create(
        SlotLease(slot=slot, kind=SlotLease.Kind.PLACEHOLDER, placeholder_id=placeholder_id, fence=fence)
        for slot in sorted(free, key=lambda slot: slot.index)[:count]
    )
    return fence


def evict(placeholder_ids: Sequence[UUID], reason: str) -> int:
    """End the leases of placeholders, whose agents then kill their processes; return how many were evicted.

    Placeholders that are already promoted or evicted do not change. Call it inside a transaction.
    """
    rows = Placeholder.objects.filter(
        id__in=placeholder_ids, state__in=(_State.REQUESTED, _State.WARMING, _State.WARM)
    ).select_for_update(no_key=True)
    ids = [row.id for row in rows.order_by("id")]
    SlotLease.objects.filter(placeholder_id__in=ids, released_at=None).update(released_at=Now())
    return _give_way(ids, reason)


def release(*, replica_id: UUID | None = None, placeholder_id: UUID | None = None) -> int:
    """End the open leases of a replica or a placeholder that has no process left; return how many ended.

    Move the holder to its last state first, in the same transaction: that takes the lock that claims wait for.
    """
    leases = SlotLease.objects.filter(released_at=None)
    if replica_id is not None:
        return leases.filter(replica_id=replica_id).update(released_at=Now())
    assert placeholder_id is not None
    return leases.filter(placeholder_id=placeholder_id).update(released_at=Now())


def next_fence() -> int:
    """Return a number larger than every fence before it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('workers_fence_seq')")
        return int(cursor.fetchone()[0])


def _locked(node_id: UUID) -> list[Slot]:
    """Return the healthy slots of the node, locked until the transaction ends."""
    rows = Slot.objects.filter(node_id=node_id, health=Slot.Health.OK).select_for_update(no_key=True)
    return list(rows.order_by("id"))


def _lock_placeholders(slots: Sequence[Slot]) -> None:
    """Wait for transactions that evict or move a placeholder of these slots, and block new ones.

    No other placeholder can get these slots, because the slots are locked.
    """
    ids = _open(slots).exclude(placeholder=None).values_list("placeholder_id", flat=True)
    list(Placeholder.objects.filter(id__in=list(ids)).select_for_update(no_key=True).order_by("id").values_list("id"))


def _open(slots: Sequence[Slot]) -> QuerySet[SlotLease]:
    return (
        SlotLease.objects.filter(slot__in=[slot.id for slot in slots], released_at=None)
        .select_related("placeholder__deployment__revision")
        .order_by("id")
    )


def _may_give(lease: SlotLease | None) -> bool:
    return lease is None or lease.kind == SlotLease.Kind.PLACEHOLDER


def _to_promote(request: SlotRequest, leases: Sequence[SlotLease], *, slot_count: int) -> UUID | None:
    """Return the placeholder to promote: the required one, or the best warm zygote that suits; None without one.

    It has ``slot_count`` slots, all of them healthy.
    """
    healthy = Counter(lease.placeholder_id for lease in leases)
    warm = [
        lease.placeholder
        for lease in leases
        if lease.placeholder is not None
        and _suits(lease.placeholder, request)
        and lease.placeholder.slot_count == slot_count == healthy[lease.placeholder_id]
    ]
    if request.promote is not None:
        return next((row.id for row in warm if row.id == request.promote), None)
    best = min(warm, key=lambda row: (row.deployment_id != request.deployment_id, row.id), default=None)
    return best.id if best else None


def _suits(row: Placeholder, request: SlotRequest) -> bool:
    return (row.state, row.level) == (_State.WARM, Level.H2) and promotion.offered(row) == request.import_class


def _cost(lease: SlotLease | None, promoted: UUID | None) -> tuple[int, int]:
    """Order slots by the cost of taking them: the promoted one's, free ones, level H0, zygotes, warm zygotes last."""
    if lease is None or lease.placeholder is None:
        return (1, 0)
    row = lease.placeholder
    if row.id == promoted:
        return (0, 0)
    return (2, 0) if row.target_level == Level.H0 else (3, row.state == _State.WARM)


def _give_way(placeholder_ids: Sequence[UUID], reason: str) -> int:
    return Placeholder.objects.filter(id__in=placeholder_ids).update(
        state=_State.EVICTING, state_since=Now(), reason=reason[:500]
    )
