"""The pools as lists show them: their nodes, the slots of each, and what holds them."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, F, Prefetch, Q
from django.db.models.functions import Now

from workers.devices import gpu_report
from workers.devices.gpu_report import GpuReport
from workers.fleet.lookup import short
from workers.fleet.status.certificate_status import CertificateStatus
from workers.fleet.status.placeholders import PlaceholderStatus
from workers.fleet.status.replica_status import ReplicaStatus
from workers.fleet.status.slots import SlotStatus, slot_rows, slot_status
from workers.models import Deployment, DeploymentPool, Level, Node, Placeholder, Pool, Slot, SlotLease
from workers.serving import promotion_obstacles

_EVICTING = Placeholder.State.EVICTING


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGroup:
    """One or more slots of a node and what holds them; a replica of several slots has one group.

    ``slots`` is empty for a replica that has none: it has ended and is not replaced yet.
    """

    kind: Literal["replica", "placeholder", "free", "quarantined", "gone"]
    slots: tuple[SlotStatus, ...]
    replica: ReplicaStatus | None = None
    placeholder: PlaceholderStatus | None = None

    @property
    def label(self) -> str:
        """Return the numbers of its slots."""
        if not self.slots:
            return "no slot"
        numbers = ", ".join(str(slot.index) for slot in self.slots)
        return f"slot {numbers}" if len(self.slots) == 1 else f"slots {numbers}"

    @property
    def holder(self) -> str:
        """Return ``replica chat/1a2b3c``, ``placeholder 1a2b3c``, or nothing."""
        if self.replica is not None:
            return f"replica {self.replica.name}"
        return f"placeholder {short(self.placeholder.id)}" if self.placeholder is not None else ""

    @property
    def faults(self) -> tuple[str, ...]:
        """Return what is wrong with its slots, one entry for each unhealthy one."""
        return tuple(slot.fault or slot.health for slot in self.slots if not slot.healthy)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A machine with an agent. ``alive`` while the agent renews its lease."""

    id: UUID
    name: str
    pool: str
    address: str
    alive: bool
    #: When its agent's lease ends or ended; None before the first.
    lease_expires_at: dt.datetime | None
    cordoned: bool
    #: The versions of engines that its agent reports; the first of each engine runs revisions that name none.
    engines: tuple[str, ...]
    #: What `hearth gpu-check` last found there; None: nothing is known.
    gpu_check: GpuReport | None
    #: Why placeholders that its pool wants are not kept there, one entry for each deployment.
    promotion_obstacles: tuple[str, ...]
    #: None: its agent has requested none, because its engines speak plain HTTP on loopback.
    certificate: CertificateStatus | None
    slot_groups: tuple[SlotGroup, ...]
    #: Placeholders whose slot already belongs to another holder and whose processes are being killed.
    evicting: tuple[PlaceholderStatus, ...]

    @property
    def slots(self) -> tuple[SlotStatus, ...]:
        """Return its slots, those of one group together."""
        return tuple(slot for group in self.slot_groups for slot in group.slots)

    @property
    def slot_count(self) -> int:
        """Return how many slots it has, unhealthy ones included."""
        return len(self.slots)

    @property
    def free_count(self) -> int:
        """Return how many slots can be leased."""
        return sum(group.kind == "free" for group in self.slot_groups)

    @property
    def replaceable_count(self) -> int:
        """Return how many slots a replica can get: free ones, and those of placeholders, which are evicted for it."""
        return sum(len(group.slots) for group in self.slot_groups if group.kind in {"free", "placeholder"})

    @property
    def warm_count(self) -> int:
        """Return how many of its placeholders are warm."""
        held = (group.placeholder for group in self.slot_groups if group.placeholder is not None)
        return sum(placeholder.state == Placeholder.State.WARM for placeholder in held)

    def health_count(self, health: str) -> int:
        """Return how many of its slots have that health."""
        return sum(slot.health == health for slot in self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """Nodes of one kind. The pool with the lowest priority is filled first."""

    name: str
    kind: str
    region: str
    priority: int
    placeholders_per_node: int
    placeholder_level: str
    #: Shares of a deployment's capacity here at which its next pool is prepared, and released again.
    high_water: float
    low_water: float
    #: Of a node's available memory, for files of models in its page cache.
    staged_share: float
    gpu_type: str
    labels: Mapping[str, str]
    #: What one slot costs in an hour, pico-dollars; None if nobody has said.
    slot_hour_pico: int | None
    nodes: tuple[NodeStatus, ...]

    @property
    def placeholders_wanted(self) -> int:
        """Return how many placeholders its nodes keep while they have slots for them."""
        return self.placeholders_per_node * sum(node.alive and not node.cordoned for node in self.nodes)

    @property
    def placeholders_warm(self) -> int:
        """Return how many placeholders are warm."""
        return sum(node.warm_count for node in self.nodes)

    @property
    def hour_pico(self) -> int | None:
        """Return what all its slots cost in an hour, used or not, pico-dollars; None if it is not set."""
        return None if self.slot_hour_pico is None else self.slot_hour_pico * self.slot_count

    def slots_of(self, deployment: str) -> int:
        """Return how many slots the replicas of a deployment have here."""
        groups = (group for node in self.nodes for group in node.slot_groups if group.replica is not None)
        return sum(len(group.slots) for group in groups if group.replica and group.replica.deployment == deployment)

    @property
    def free_count(self) -> int:
        """Return how many slots can be leased."""
        return sum(node.free_count for node in self.nodes)

    @property
    def slot_count(self) -> int:
        """Return how many slots its nodes have, unhealthy ones included."""
        return sum(node.slot_count for node in self.nodes)


def pool_statuses(
    node: str | None, replicas: Sequence[ReplicaStatus], placeholders: Sequence[PlaceholderStatus]
) -> tuple[PoolStatus, ...]:
    """Return the pools in priority order; with ``node``, its pool with that node alone."""
    leases = SlotLease.objects.filter(Q() if node is None else Q(slot__node__name=node), released_at=None)
    holders = {
        slot: replica or placeholder
        for slot, replica, placeholder in leases.values_list("slot_id", "replica_id", "placeholder_id")
    }
    nodes = (
        Node.objects.filter(Q() if node is None else Q(name=node), removed_at=None)
        .annotate(
            alive=ExpressionWrapper(Q(lease_expires_at__gt=Now()), BooleanField()),
            certificate_of=F("certificate__node_id"),
            certificate_expires_at=F("certificate__expires_at"),
            certificate_refusal=F("certificate__refusal"),
            read_at=Now(),
        )
        .select_related("pool")
        .prefetch_related(Prefetch("slots", queryset=slot_rows()))
        .order_by("name")
    )
    by_pool: dict[UUID, list[NodeStatus]] = defaultdict(list)
    promoted = _promoted(nodes)
    for row in nodes:
        there = [each for each in replicas if each.node == row.name]
        warm = [each for each in placeholders if each.node == row.name]
        by_pool[row.pool_id].append(_node(row, there, warm, holders, promoted.get(row.pool_id, ())))
    pools = Pool.objects.filter(Q() if node is None else Q(id__in=by_pool)).order_by("priority", "name")
    return tuple(
        PoolStatus(
            name=pool.name,
            kind=pool.kind,
            region=pool.region,
            priority=pool.priority,
            placeholders_per_node=pool.placeholders_per_node,
            placeholder_level=pool.placeholder_level,
            high_water=pool.high_water,
            low_water=pool.low_water,
            staged_share=pool.staged_share,
            gpu_type=pool.gpu_type,
            labels=pool.labels,
            slot_hour_pico=pool.slot_hour_pico,
            nodes=tuple(by_pool[pool.id]),
        )
        for pool in pools
    )


def _promoted(nodes: Iterable[Node]) -> dict[UUID, list[Deployment]]:
    """Return the deployments by pool of GPUs that keeps placeholders whose process becomes a replica of them."""
    pools = {row.pool_id for row in nodes if row.pool.kind == "gpu" and row.pool.placeholders_per_node}
    found: dict[UUID, list[Deployment]] = defaultdict(list)
    if pools:
        links = DeploymentPool.objects.filter(
            pool__in=pools, pool__placeholder_level=Level.H2, deployment__archived_at=None
        ).select_related("deployment__revision")
        for link in links.order_by("deployment__name"):
            found[link.pool_id].append(link.deployment)
    return found


def _node(
    row: Node,
    replicas: Sequence[ReplicaStatus],
    placeholders: Sequence[PlaceholderStatus],
    holders: Mapping[UUID, UUID],
    promoted: Sequence[Deployment],
) -> NodeStatus:
    read: Any = row  # with the annotations of ``pool_statuses``, unknown to the model's type
    certificate = CertificateStatus(
        expires_at=read.certificate_expires_at, refusal=read.certificate_refusal or "", read_at=read.read_at
    )
    return NodeStatus(
        id=row.id,
        name=row.name,
        pool=row.pool.name,
        address=row.address,
        alive=bool(read.alive),
        lease_expires_at=row.lease_expires_at,
        cordoned=row.cordoned,
        engines=tuple(row.engines) if row.known_engines else (),
        gpu_check=gpu_report.read(row.gpu_check),
        promotion_obstacles=promotion_obstacles.of_node(row, promoted),
        certificate=certificate if read.certificate_of else None,
        slot_groups=_slot_groups(
            row.slots.all(),
            holders,
            {each.id: each for each in replicas},
            {each.id: each for each in placeholders},
        ),
        evicting=tuple(each for each in placeholders if each.state == _EVICTING),
    )


def _slot_groups(
    slots: Iterable[Slot],
    holders: Mapping[UUID, UUID],
    replicas: Mapping[UUID, ReplicaStatus],
    placeholders: Mapping[UUID, PlaceholderStatus],
) -> tuple[SlotGroup, ...]:
    """Return the groups of a node in the order of its slots, then its replicas without a slot.

    ``holders`` maps a slot to the replica or placeholder with its open lease; the other two are those of the node.
    """
    groups: dict[UUID, SlotGroup] = {}
    for row in sorted(slots, key=lambda slot: slot.index):
        slot = slot_status(row)
        holder = holders.get(slot.id)
        if holder in replicas or holder in placeholders:
            assert holder is not None
            taken = (*groups[holder].slots, slot) if holder in groups else (slot,)
            kind: Literal["replica", "placeholder"] = "replica" if holder in replicas else "placeholder"
            replica, placeholder = replicas.get(holder), placeholders.get(holder)
            groups[holder] = SlotGroup(kind=kind, slots=taken, replica=replica, placeholder=placeholder)
        else:
            groups[slot.id] = SlotGroup(kind=_unheld(slot), slots=(slot,))
    without = [SlotGroup(kind="replica", slots=(), replica=each) for each in replicas.values() if each.id not in groups]
    return (*groups.values(), *without)


def _unheld(slot: SlotStatus) -> Literal["free", "quarantined", "gone"]:
    if slot.healthy:
        return "free"
    return "gone" if slot.health == Slot.Health.GONE else "quarantined"
