"""The fleet as operators list it: pools, nodes, slots, replicas, placeholders and deployments, as the database has it.

Each list can be had of one node; agents keep theirs in memory for ``celery -A hearth inspect``. Ended replicas and
placeholders are left out.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from django.db.models import DurationField, ExpressionWrapper, F, FilteredRelation, Model, Q
from django.db.models.functions import Now

from workers.fleet.lookup import short
from workers.models import Deployment, DeploymentPool, Level, Node, Placeholder, Pool, Replica, Slot
from workers.scheduler.placeholder_pools import HELD
from workers.scheduler.reconciler import ENDED
from workers.serving import start_times

#: Placeholders that still have a slot, or a process that is about to be killed.
SHOWN = (*HELD, Placeholder.State.EVICTING)
_AGE = ExpressionWrapper(Now() - F("state_since"), output_field=DurationField())


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLine:
    """A pool and what it has. ``placeholders`` are warm ones; ``placeholders_wanted`` counts all live nodes' share."""

    pool: str
    kind: str
    region: str
    priority: int
    nodes: int
    alive: int
    slots: int
    free: int
    replicas: int
    placeholders: int
    placeholders_wanted: int
    level: str
    high_water: float
    low_water: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """A node. ``alive`` while its agent renews its lease; ``slots`` are healthy ones."""

    node: str
    pool: str
    address: str
    alive: bool
    cordoned: bool
    slots: int
    free: int
    quarantined: int
    replicas: int
    placeholders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLine:
    """A slot and who has it: ``replica chat/1a2b3c``, ``placeholder 1a2b3c``, or nobody."""

    node: str
    device: str
    index: int
    health: str
    fault: str
    holder: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLine:
    """A replica. ``seconds`` is how long it has been in its state; ``leaving`` once an operator drains it."""

    id: str
    replica: str
    deployment: str
    node: str
    state: str
    seconds: float
    wanted: bool
    leaving: bool
    generation: int
    port: int | None
    start_level: str
    start_note: str
    startup_seconds: float | None
    running_requests: int
    waiting_requests: int
    cached_blocks: int | None
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """How long a placeholder takes to answer as a deployment: the measured median, and in words."""

    deployment: str
    seconds: float | None
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderLine:
    """A placeholder: how warm it is and should be, and what it can become how fast."""

    id: str
    placeholder: str
    node: str
    state: str
    seconds: float
    level: str
    target_level: str
    engine: str
    warmed_for: str
    memory_bytes: int | None
    warm_seconds: float | None
    reason: str
    promotes: tuple[Promise, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentLine:
    """A deployment: what is desired, between which bounds, and how many answer."""

    deployment: str
    model: str
    engine: str
    minimum: int
    maximum: int
    desired: int
    ready: int
    replicas: int
    pools: tuple[str, ...]
    slots_per_replica: int
    target_tokens_per_replica: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLists:
    """All that one agent knows of its node."""

    pools: tuple[PoolLine, ...] = ()
    slots: tuple[SlotLine, ...] = ()
    replicas: tuple[ReplicaLine, ...] = ()
    placeholders: tuple[PlaceholderLine, ...] = ()


def of_node(name: str) -> NodeLists:
    """Read what an agent keeps of its node."""
    return NodeLists(pools=pools(name), slots=slots(name), replicas=replicas(name), placeholders=placeholders(name))


def pools(node: str | None = None) -> tuple[PoolLine, ...]:
    """Return the pools in the order in which they are filled; of one node: its pool, counted on that node alone."""
    found = nodes(node)
    rows = Pool.objects.filter(Q() if node is None else Q(nodes__name=node)).order_by("priority", "name")
    return tuple(_pool(row, [node for node in found if node.pool == row.name]) for row in rows)


def nodes(node: str | None = None) -> tuple[NodeLine, ...]:
    """Return the nodes by name, with what they have."""
    alive = set(Node.objects.filter(lease_expires_at__gt=Now()).values_list("id", flat=True))
    rows = Node.objects.filter(Q() if node is None else Q(name=node)).select_related("pool").order_by("name")
    lease = FilteredRelation("leases", condition=Q(leases__released_at=None))  # not those of years before
    held = Slot.objects.filter(_on(node)).annotate(lease=lease).values_list("node_id", "health", "lease__id")
    slots_of = Counter((node_id, health, lease_id is not None) for node_id, health, lease_id in held)
    running = Replica.objects.filter(_on(node)).exclude(state__in=ENDED)
    replicas_of = Counter(running.values_list("node_id", flat=True))
    warm = Placeholder.objects.filter(_on(node), state=Placeholder.State.WARM)
    placeholders_of = Counter(warm.values_list("node_id", flat=True))
    ok, bad = Slot.Health.OK, Slot.Health.QUARANTINED
    return tuple(
        NodeLine(
            node=row.name,
            pool=row.pool.name,
            address=row.address,
            alive=row.id in alive,
            cordoned=row.cordoned,
            slots=slots_of[row.id, ok, True] + slots_of[row.id, ok, False],
            free=slots_of[row.id, ok, False],
            quarantined=slots_of[row.id, bad, True] + slots_of[row.id, bad, False],
            replicas=replicas_of[row.id],
            placeholders=placeholders_of[row.id],
        )
        for row in rows
    )


def slots(node: str | None = None) -> tuple[SlotLine, ...]:
    """Return the slots by node and index, each with its holder."""
    rows = (
        Slot.objects.filter(_on(node))
        .annotate(lease=FilteredRelation("leases", condition=Q(leases__released_at=None)))
        .annotate(replica=F("lease__replica_id"), deployment=F("lease__replica__deployment__name"))
        .annotate(placeholder=F("lease__placeholder_id"))
        .select_related("node")
        .order_by("node__name", "index")
    )
    return tuple(
        SlotLine(
            node=row.node.name,
            device=row.device_uuid,
            index=row.index,
            health=row.health,
            fault=row.fault,
            holder=_holder(row.replica, row.deployment, row.placeholder),
            memory_bytes=row.memory_bytes,
        )
        for row in rows
    )


def replicas(node: str | None = None) -> tuple[ReplicaLine, ...]:
    """Return the replicas that run, shall run, or were lost while wanted, oldest first."""
    over = Q(desired_state=Replica.Desired.STOPPED, state__in=ENDED) | Q(state=Replica.State.STOPPED)
    rows = Replica.objects.filter(_on(node)).exclude(over).select_related("deployment", "node").annotate(age=_AGE)
    return tuple(
        ReplicaLine(
            id=str(row.id),
            replica=f"{row.deployment.name}/{short(row.id)}",
            deployment=row.deployment.name,
            node=row.node.name if row.node else "",
            state=row.state,
            seconds=_seconds(row),
            wanted=row.desired_state == Replica.Desired.RUNNING,
            leaving=row.leaving,
            generation=row.generation,
            port=row.port,
            start_level=row.start_level,
            start_note=row.start_note,
            startup_seconds=row.startup_seconds,
            running_requests=row.running_requests,
            waiting_requests=row.waiting_requests,
            cached_blocks=row.cached_blocks,
            last_error=row.last_error,
        )
        for row in rows.order_by("id")
    )


def placeholders(node: str | None = None) -> tuple[PlaceholderLine, ...]:
    """Return the placeholders by node, oldest first, each with what it can become."""
    rows = (
        Placeholder.objects.filter(_on(node), state__in=SHOWN)
        .select_related("deployment", "node")
        .annotate(age=_AGE)
        .order_by("node__name", "id")
    )
    links = list(
        DeploymentPool.objects.filter(deployment__archived_at=None, pool__nodes__in={row.node_id for row in rows})
        .select_related("deployment__revision")
        .order_by("deployment__name")
        .distinct()
    )
    measured = start_times.summaries({link.deployment.revision_id for link in links})
    return tuple(
        PlaceholderLine(
            id=str(row.id),
            placeholder=short(row.id),
            node=row.node.name,
            state=row.state,
            seconds=_seconds(row),
            level=row.level,
            target_level=row.target_level,
            engine=row.engine,
            warmed_for=row.deployment.name if row.deployment else "",
            memory_bytes=row.memory_bytes,
            warm_seconds=row.warm_seconds,
            reason=row.reason,
            promotes=tuple(_promises(row, links, measured)),
        )
        for row in rows
    )


def deployments() -> tuple[DeploymentLine, ...]:
    """Return the deployments by name."""
    rows = Deployment.objects.filter(archived_at=None).select_related("revision__model").order_by("name")
    links = DeploymentPool.objects.select_related("pool").order_by("sequence")
    running = Replica.objects.filter(desired_state=Replica.Desired.RUNNING).exclude(state__in=ENDED)
    states = Counter(running.values_list("deployment_id", "state"))
    return tuple(
        DeploymentLine(
            deployment=row.name,
            model=row.revision.model.name,
            engine=row.revision.engine,
            minimum=row.min_replicas,
            maximum=row.max_replicas,
            desired=row.desired_replicas,
            ready=states[row.id, Replica.State.READY],
            replicas=sum(count for (owner, _), count in states.items() if owner == row.id),
            pools=tuple(link.pool.name for link in links if link.deployment_id == row.id),
            slots_per_replica=row.slots_per_replica,
            target_tokens_per_replica=row.target_tokens_per_replica,
        )
        for row in rows
    )


def _on(node: str | None) -> Q:
    return Q() if node is None else Q(node__name=node)


def _seconds(row: Model) -> float:
    """Return the age of the row's state, by the database's clock."""
    age = cast(dt.timedelta, getattr(row, "age"))  # noqa: B009 - an annotation, unknown to the model's type
    return round(age.total_seconds(), 1)


def _holder(replica: UUID | None, deployment: str | None, placeholder: UUID | None) -> str:
    if replica is not None:
        return f"replica {deployment}/{short(replica)}"
    return f"placeholder {short(placeholder)}" if placeholder is not None else ""


def _pool(row: Pool, found: Sequence[NodeLine]) -> PoolLine:
    return PoolLine(
        pool=row.name,
        kind=row.kind,
        region=row.region,
        priority=row.priority,
        nodes=len(found),
        alive=sum(node.alive for node in found),
        slots=sum(node.slots for node in found),
        free=sum(node.free for node in found),
        replicas=sum(node.replicas for node in found),
        placeholders=sum(node.placeholders for node in found),
        placeholders_wanted=row.placeholders_per_node * sum(node.alive and not node.cordoned for node in found),
        level=row.placeholder_level,
        high_water=row.high_water,
        low_water=row.low_water,
    )


def _promises(
    row: Placeholder, links: Sequence[DeploymentPool], measured: Mapping[UUID, Sequence[start_times.StartSummary]]
) -> list[Promise]:
    """Return what the placeholder can become; one without a process can become anything that its pool serves."""
    promises = []
    for link in links:
        revision = link.deployment.revision
        suits = link.pool_id == row.node.pool_id and (row.level != Level.H2 or revision.engine == row.engine)
        if suits:
            seconds = start_times.expected_seconds(measured.get(revision.id, ()), row.level)
            promises.append(
                Promise(deployment=link.deployment.name, seconds=seconds, words=start_times.start_time_text(seconds))
            )
    return promises
