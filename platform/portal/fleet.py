"""What runs where, as pages and API show it: pools in priority order, their nodes, their replicas; and deployments.

Five queries, whatever the size of the fleet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import F, Window
from django.db.models.functions import Now, RowNumber

from workers.models import Deployment, Node, Pool, Replica, ReplicaEvent

#: Events shown of each replica.
LAST_EVENTS = 6
#: States in which nothing runs any more; such a replica is shown only while it is still wanted.
ENDED = (Replica.State.STOPPED, Replica.State.FAILED, Replica.State.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStatus:
    """One transition."""

    at: datetime
    from_state: str
    to_state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One engine."""

    id: UUID
    deployment: str
    model: str
    node: str | None
    state: str
    since: datetime
    running_requests: int
    waiting_requests: int
    #: 0 to 1.
    kv_usage: float
    startup_seconds: float | None
    generation: int
    port: int | None
    attempts: int
    next_attempt_at: datetime | None
    last_error: str
    events: tuple[EventStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """A place for one engine."""

    index: int
    healthy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A machine with an agent. ``alive`` while the agent renews its lease."""

    id: UUID
    name: str
    alive: bool
    cordoned: bool
    slots: tuple[SlotStatus, ...]
    replicas: tuple[ReplicaStatus, ...]

    @property
    def slot_count(self) -> int:
        """How many engines it has room for."""
        return len(self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """Nodes of one kind."""

    name: str
    kind: str
    region: str
    priority: int
    nodes: tuple[NodeStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStatus:
    """What should run, and how much of it does."""

    name: str
    model: str
    engine: str
    desired: int
    replicas: tuple[ReplicaStatus, ...]

    @property
    def ready(self) -> int:
        """Replicas that answer."""
        return sum(replica.state == Replica.State.READY for replica in self.replicas)

    @property
    def short(self) -> bool:
        """True while fewer answer than should."""
        return self.ready < self.desired


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Everything, read at one moment. ``homeless`` are replicas that have no node yet."""

    deployments: tuple[DeploymentStatus, ...]
    pools: tuple[PoolStatus, ...]
    homeless: tuple[ReplicaStatus, ...]


def read() -> Fleet:
    """Read the fleet as the database knows it."""
    replicas = _replicas()
    nodes = Node.objects.annotate(now=Now()).prefetch_related("slots").order_by("name")
    by_pool: dict[UUID, list[NodeStatus]] = defaultdict(list)
    for node in nodes:
        by_pool[node.pool_id].append(_node(node, [each for each in replicas if each.node == node.name]))
    pools = Pool.objects.order_by("priority", "name")
    deployments = Deployment.objects.filter(archived_at=None).select_related("revision__model").order_by("name")
    return Fleet(
        deployments=tuple(_deployment(deployment, replicas) for deployment in deployments),
        pools=tuple(
            PoolStatus(
                name=pool.name,
                kind=pool.kind,
                region=pool.region,
                priority=pool.priority,
                nodes=tuple(by_pool[pool.id]),
            )
            for pool in pools
        ),
        homeless=tuple(replica for replica in replicas if replica.node is None),
    )


def _replicas() -> list[ReplicaStatus]:
    rows = list(
        Replica.objects.exclude(desired_state=Replica.Desired.STOPPED, state__in=ENDED)
        .select_related("deployment__revision__model", "node")
        .order_by("id")
    )
    events = _events(rows)
    return [_replica(row, events[row.id]) for row in rows]


def _events(replicas: Iterable[Replica]) -> dict[UUID, list[EventStatus]]:
    newest = Window(RowNumber(), partition_by=F("replica_id"), order_by=F("id").desc())
    found: dict[UUID, list[EventStatus]] = defaultdict(list)
    rows = ReplicaEvent.objects.filter(replica__in=list(replicas)).annotate(rank=newest).filter(rank__lte=LAST_EVENTS)
    for row in rows.order_by("replica_id", "-id"):
        found[row.replica_id].append(
            EventStatus(at=row.created_at, from_state=row.from_state, to_state=row.to_state, reason=row.reason)
        )
    return found


def _replica(row: Replica, events: Sequence[EventStatus]) -> ReplicaStatus:
    return ReplicaStatus(
        id=row.id,
        deployment=row.deployment.name,
        model=row.deployment.revision.model.name,
        node=row.node.name if row.node else None,
        state=row.state,
        since=row.state_since,
        running_requests=row.running_requests,
        waiting_requests=row.waiting_requests,
        kv_usage=row.kv_usage,
        startup_seconds=row.startup_seconds,
        generation=row.generation,
        port=row.port,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        last_error=row.last_error,
        events=tuple(events),
    )


def _node(node: Node, replicas: Sequence[ReplicaStatus]) -> NodeStatus:
    now: datetime = getattr(node, "now")  # noqa: B009 - an annotation, unknown to the model's type
    return NodeStatus(
        id=node.id,
        name=node.name,
        alive=node.lease_expires_at is not None and node.lease_expires_at > now,
        cordoned=node.cordoned,
        slots=tuple(
            SlotStatus(index=slot.index, healthy=slot.health == "ok")
            for slot in sorted(node.slots.all(), key=lambda slot: slot.index)
        ),
        replicas=tuple(replicas),
    )


def _deployment(row: Deployment, replicas: Sequence[ReplicaStatus]) -> DeploymentStatus:
    return DeploymentStatus(
        name=row.name,
        model=row.revision.model.name,
        engine=row.revision.engine,
        desired=row.desired_replicas,
        replicas=tuple(replica for replica in replicas if replica.deployment == row.name),
    )
