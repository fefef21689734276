"""What runs where, how warm, and what comes next: pools in priority order, their nodes' slots, deployments, decisions.

Ten queries, whatever the size of the fleet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F, Prefetch, Window
from django.db.models.functions import Now, RowNumber

from portal.fleet import capacity
from portal.fleet.capacity import EventStatus, Place, PlaceholderStatus, ReplicaStatus
from workers.models import (
    Deployment,
    DeploymentPool,
    Node,
    Placeholder,
    Pool,
    Replica,
    ReplicaEvent,
    ScaleDecision,
    SlotLease,
)
from workers.serving import gateway_load, start_times
from workers.serving.gateway_load import DeploymentLoad
from workers.serving.start_times import StartSummary, Summaries

#: Events shown of each replica.
LAST_EVENTS = 6
#: Decisions shown.
LAST_DECISIONS = 12
#: States in which nothing runs any more; such a replica is shown only while it is still wanted.
ENDED = (Replica.State.STOPPED, Replica.State.FAILED, Replica.State.LOST)
#: States in which a placeholder has nothing any more.
OVER = (Placeholder.State.PROMOTED, Placeholder.State.EVICTED, Placeholder.State.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A machine with an agent. ``alive`` while the agent renews its lease."""

    id: UUID
    name: str
    address: str
    alive: bool
    #: When its agent's lease ends, or ended; None before the first.
    lease_expires_at: datetime | None
    cordoned: bool
    places: tuple[Place, ...]
    #: Placeholders whose slot is somebody else's already, and whose processes are being killed.
    evicting: tuple[PlaceholderStatus, ...]

    @property
    def slot_count(self) -> int:
        """How many engine ranks it has room for."""
        return sum(len(place.slots) for place in self.places)

    @property
    def free_count(self) -> int:
        """Slots that nothing has."""
        return sum(place.kind == "free" for place in self.places)

    @property
    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """Its replicas, in the order of their slots."""
        return tuple(place.replica for place in self.places if place.replica is not None)

    @property
    def placeholders(self) -> tuple[PlaceholderStatus, ...]:
        """Its placeholders, in the order of their slots."""
        return tuple(place.placeholder for place in self.places if place.placeholder is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """Nodes of one kind; the pool with the lowest priority is filled first."""

    name: str
    kind: str
    region: str
    priority: int
    #: Placeholders that each node keeps, and how warm.
    placeholders_per_node: int
    placeholder_level: str
    #: Shares of a deployment's capacity here at which its next pool is prepared, and given up again.
    high_water: float
    low_water: float
    nodes: tuple[NodeStatus, ...]

    @property
    def placeholders_wanted(self) -> int:
        """Placeholders that its nodes keep together while they have slots for them."""
        return self.placeholders_per_node * sum(node.alive and not node.cordoned for node in self.nodes)

    @property
    def placeholders_warm(self) -> int:
        """Placeholders that are ready to give way or to become a replica."""
        return sum(each.state == Placeholder.State.WARM for node in self.nodes for each in node.placeholders)

    @property
    def free_count(self) -> int:
        """Slots that nothing has."""
        return sum(node.free_count for node in self.nodes)

    @property
    def slot_count(self) -> int:
        """How many engine ranks it has room for."""
        return sum(node.slot_count for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionStatus:
    """One change of what is desired. ``pool`` is the one that is prepared or released."""

    id: UUID
    at: datetime
    deployment: str
    pool: str | None
    action: str
    from_replicas: int
    to_replicas: int
    reason: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStatus:
    """What should run, and how much of it does."""

    name: str
    model: str
    engine: str
    desired: int
    minimum: int
    maximum: int
    slots_per_replica: int
    target_tokens_per_replica: int
    scale_up_delay_seconds: float
    scale_down_delay_seconds: float
    pools: tuple[str, ...]
    replicas: tuple[ReplicaStatus, ...]
    #: What all gateways together have of it now.
    load: DeploymentLoad
    starts: tuple[StartSummary, ...]

    @property
    def ready(self) -> int:
        """Replicas that answer."""
        return sum(replica.state == Replica.State.READY for replica in self.replicas)

    @property
    def short(self) -> bool:
        """True while fewer answer than should."""
        return self.ready < self.desired

    @property
    def load_share(self) -> float | None:
        """Tokens in flight and held, as a share of what the ready replicas are meant to have; None without any."""
        if not self.ready:
            return None
        return (self.load.in_flight_tokens + self.load.queued_tokens) / (self.ready * self.target_tokens_per_replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Everything, read at one moment. ``homeless`` are replicas that have no node yet; ``decisions`` newest first."""

    deployments: tuple[DeploymentStatus, ...]
    pools: tuple[PoolStatus, ...]
    homeless: tuple[ReplicaStatus, ...]
    decisions: tuple[DecisionStatus, ...]

    @property
    def placeholders_warm(self) -> int:
        """Warm placeholders of all pools."""
        return sum(pool.placeholders_warm for pool in self.pools)

    @property
    def placeholders_wanted(self) -> int:
        """Placeholders that all pools want."""
        return sum(pool.placeholders_wanted for pool in self.pools)

    @property
    def faulty_slots(self) -> int:
        """Slots that are quarantined or gone."""
        places = (place for pool in self.pools for node in pool.nodes for place in node.places)
        return sum(len(place.faults) for place in places)


def read() -> Fleet:
    """Read the fleet as the database knows it."""
    sequence = DeploymentPool.objects.select_related("pool").order_by("sequence")
    deployments = list(
        Deployment.objects.filter(archived_at=None)
        .select_related("revision__model")
        .prefetch_related(Prefetch("deploymentpool_set", queryset=sequence))
        .order_by("name")
    )
    measured = start_times.summaries({row.revision_id for row in deployments})
    replicas = _replicas()
    return Fleet(
        deployments=tuple(_deployments(deployments, replicas, measured)),
        pools=_pools(replicas, _placeholders(measured)),
        homeless=tuple(replica for replica in replicas if replica.node is None),
        decisions=tuple(_decisions()),
    )


def decision_of(row: ScaleDecision) -> DecisionStatus:
    """Return the decision as it is shown; its deployment and pool are read with it."""
    return DecisionStatus(
        id=row.id,
        at=row.created_at,
        deployment=row.deployment.name,
        pool=row.pool.name if row.pool else None,
        action=row.action,
        from_replicas=row.from_replicas,
        to_replicas=row.to_replicas,
        reason=row.reason,
        inputs=row.inputs,
    )


def _decisions() -> list[DecisionStatus]:
    rows = ScaleDecision.objects.select_related("deployment", "pool").order_by("-id")
    return [decision_of(row) for row in rows[:LAST_DECISIONS]]


def _replicas() -> list[ReplicaStatus]:
    rows = list(
        Replica.objects.exclude(desired_state=Replica.Desired.STOPPED, state__in=ENDED)
        .select_related("deployment", "revision__model", "node")
        .order_by("id")
    )
    events = _events(rows)
    return [capacity.replica_of(row, events[row.id]) for row in rows]


def _events(replicas: Iterable[Replica]) -> dict[UUID, list[EventStatus]]:
    newest = Window(RowNumber(), partition_by=F("replica_id"), order_by=F("id").desc())
    found: dict[UUID, list[EventStatus]] = defaultdict(list)
    rows = ReplicaEvent.objects.filter(replica__in=list(replicas)).annotate(rank=newest).filter(rank__lte=LAST_EVENTS)
    for row in rows.order_by("replica_id", "-id"):
        found[row.replica_id].append(capacity.event_of(row))
    return found


def _placeholders(measured: Summaries) -> list[PlaceholderStatus]:
    rows = Placeholder.objects.exclude(state__in=OVER).select_related("node", "deployment").order_by("id")
    return [capacity.placeholder_of(row, measured) for row in rows]


def _pools(replicas: Sequence[ReplicaStatus], placeholders: Sequence[PlaceholderStatus]) -> tuple[PoolStatus, ...]:
    leases = SlotLease.objects.filter(released_at=None).values_list("slot_id", "replica_id", "placeholder_id")
    holders = {slot: replica or placeholder for slot, replica, placeholder in leases if replica or placeholder}
    nodes = Node.objects.annotate(now=Now()).prefetch_related("slots").order_by("name")
    by_pool: dict[UUID, list[NodeStatus]] = defaultdict(list)
    for row in nodes:
        there = [each for each in replicas if each.node == row.name]
        held = [each for each in placeholders if each.node == row.name]
        by_pool[row.pool_id].append(_node(row, there, held, holders))
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
            nodes=tuple(by_pool[pool.id]),
        )
        for pool in Pool.objects.order_by("priority", "name")
    )


def _node(
    row: Node,
    replicas: Sequence[ReplicaStatus],
    placeholders: Sequence[PlaceholderStatus],
    holders: Mapping[UUID, UUID],
) -> NodeStatus:
    now: datetime = getattr(row, "now")  # noqa: B009 - an annotation, unknown to the model's type
    return NodeStatus(
        id=row.id,
        name=row.name,
        address=row.address,
        alive=row.lease_expires_at is not None and row.lease_expires_at > now,
        lease_expires_at=row.lease_expires_at,
        cordoned=row.cordoned,
        places=capacity.places(
            [capacity.slot_of(slot) for slot in row.slots.all()],
            holders,
            {each.id: each for each in replicas},
            {each.id: each for each in placeholders},
        ),
        evicting=tuple(each for each in placeholders if each.state == Placeholder.State.EVICTING),
    )


def _deployments(
    rows: Sequence[Deployment], replicas: Sequence[ReplicaStatus], measured: Summaries
) -> Iterable[DeploymentStatus]:
    demand = gateway_load.demand()
    by_name: dict[str, list[ReplicaStatus]] = defaultdict(list)
    for replica in replicas:
        by_name[replica.deployment].append(replica)
    for row in rows:
        yield DeploymentStatus(
            name=row.name,
            model=row.revision.model.name,
            engine=row.revision.engine,
            desired=row.desired_replicas,
            minimum=row.min_replicas,
            maximum=row.max_replicas,
            slots_per_replica=row.slots_per_replica,
            target_tokens_per_replica=row.target_tokens_per_replica,
            scale_up_delay_seconds=row.scale_up_delay_seconds,
            scale_down_delay_seconds=row.scale_down_delay_seconds,
            pools=tuple(link.pool.name for link in row.deploymentpool_set.all()),
            replicas=tuple(by_name[row.name]),
            load=demand.get(row.id, DeploymentLoad()),
            starts=tuple(measured.get(row.revision_id, ())),
        )
