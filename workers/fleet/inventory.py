"""The fleet at one moment, read from the database: what ``celery fleet``, ``celery inspect``, pages and API show.

Pools in priority order, their nodes and slots with what holds them, deployments, and the newest decisions. Eleven
queries, whatever the size of the fleet.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast
from uuid import UUID

from django.db.models import (
    BooleanField,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    Model,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
)
from django.db.models.functions import Now

from workers.fleet import history
from workers.fleet.history import Decision, Transition
from workers.fleet.lookup import short
from workers.models import Deployment, DeploymentPool, Level, Node, Placeholder, Pool, Replica, Slot, SlotLease
from workers.scheduler.placeholder_pools import LEASED_STATES
from workers.scheduler.reconciler import ENDED
from workers.serving import gateway_load, start_times
from workers.serving.gateway_load import DeploymentLoad
from workers.serving.start_times import StartSummary, Summaries

#: Transitions read of each replica, and decisions of all deployments.
LAST_TRANSITIONS = 6
LAST_DECISIONS = 12
_EVICTING = Placeholder.State.EVICTING
_STATE_AGE = ExpressionWrapper(Now() - F("state_since"), output_field=DurationField())


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """A place for one engine rank."""

    id: UUID
    index: int
    device_uuid: str
    memory_bytes: int | None
    health: str
    fault: str

    @property
    def healthy(self) -> bool:
        """Return whether replicas and placeholders may have it."""
        return self.health == Slot.Health.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One engine. ``leaving`` means that it stops once its replacement is ready."""

    id: UUID
    deployment: str
    model: str
    node: str | None
    state: str
    since: dt.datetime
    #: Time in this state, by the database's clock.
    state_seconds: float
    wanted: bool
    leaving: bool
    running_requests: int
    waiting_requests: int
    #: 0 to 1.
    kv_usage: float
    cached_blocks: int | None
    #: Level it was started from, empty until that is known; and why not from a warmer one.
    start_level: str
    start_note: str
    startup_seconds: float | None
    #: The placeholder it was promoted from.
    placeholder: UUID | None
    generation: int
    port: int | None
    attempts: int
    next_attempt_at: dt.datetime | None
    drain_deadline: dt.datetime | None
    last_error: str
    transitions: tuple[Transition, ...]

    @property
    def name(self) -> str:
        """Return its deployment and the end of its id, as lists show it."""
        return f"{self.deployment}/{short(self.id)}"

    @property
    def running(self) -> bool:
        """Return whether it has or will have a process."""
        return self.state not in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimate:
    """Median measured seconds until a placeholder serves ``deployment``; None while no such start was measured."""

    deployment: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderStatus:
    """Warm capacity. ``level`` is its level now; ``deployment`` the one it was warmed for."""

    id: UUID
    node: str
    deployment: str | None
    engine: str
    target_level: str
    level: str
    state: str
    since: dt.datetime
    #: Time in this state, by the database's clock.
    state_seconds: float
    reason: str
    memory_bytes: int | None
    warm_seconds: float | None
    #: Median measured seconds until a replica started from it serves; None while no such start was measured.
    expected_seconds: float | None
    #: Every deployment that it can serve.
    estimates: tuple[StartEstimate, ...]

    @property
    def evictable(self) -> bool:
        """Return whether it has a slot."""
        return self.state in LEASED_STATES

    @property
    def promotable(self) -> bool:
        """Return whether it has a warm process that can become a replica."""
        return (self.state, self.level) == (Placeholder.State.WARM, Level.H2)


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
    def free_count(self) -> int:
        """Return how many slots can be leased."""
        return sum(node.free_count for node in self.nodes)

    @property
    def slot_count(self) -> int:
        """Return how many slots its nodes have, unhealthy ones included."""
        return sum(node.slot_count for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStatus:
    """What should run, and what does."""

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
    #: Requests of all gateways together.
    load: DeploymentLoad
    starts: tuple[StartSummary, ...]

    @property
    def ready(self) -> int:
        """Return how many replicas serve requests."""
        return sum(replica.state == Replica.State.READY for replica in self.replicas)

    @property
    def is_short(self) -> bool:
        """Return whether fewer replicas are ready than desired."""
        return self.ready < self.desired

    @property
    def load_share(self) -> float | None:
        """Return the tokens in flight and queued as a share of the ready replicas' target; None if none is ready."""
        if not self.ready:
            return None
        return (self.load.in_flight_tokens + self.load.queued_tokens) / (self.ready * self.target_tokens_per_replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Everything, read at one moment. ``replicas`` and ``placeholders`` oldest first, ``decisions`` newest first."""

    deployments: tuple[DeploymentStatus, ...]
    pools: tuple[PoolStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    placeholders: tuple[PlaceholderStatus, ...]
    decisions: tuple[Decision, ...]

    @property
    def nodes(self) -> list[NodeStatus]:
        """Return the nodes of all pools by name."""
        return sorted((node for pool in self.pools for node in pool.nodes), key=lambda node: node.name)

    @property
    def unplaced(self) -> tuple[ReplicaStatus, ...]:
        """Return the replicas that wait for a node."""
        return tuple(replica for replica in self.replicas if replica.node is None)

    @property
    def placeholders_warm(self) -> int:
        """Return how many placeholders of all pools are warm."""
        return sum(pool.placeholders_warm for pool in self.pools)

    @property
    def placeholders_wanted(self) -> int:
        """Return how many placeholders all pools keep."""
        return sum(pool.placeholders_wanted for pool in self.pools)

    @property
    def faulty_slots(self) -> int:
        """Return how many slots are quarantined or gone."""
        return sum(not slot.healthy for node in self.nodes for slot in node.slots)


def read(node: str | None = None) -> Fleet:
    """Read the fleet; with ``node``, that node and its pool alone, without deployments, transitions and decisions.

    A replica that has ended is left out once it is not wanted and has no slot, a placeholder once it has no slot and
    is not being evicted.
    """
    whole = node is None
    on_node = Q() if node is None else Q(node__name=node)
    deployments = _deployment_rows(node)
    measured = start_times.summaries({row.revision_id for row in deployments})
    rows = list(_replica_rows(on_node))
    transitions = history.transitions_of(rows, LAST_TRANSITIONS) if whole else {}
    replicas = tuple(_replica(row, transitions.get(row.id, ())) for row in rows)
    placeholders = tuple(
        placeholder_status(row, measured, deployments)
        for row in placeholder_rows().filter(on_node).filter(_holds_slot("placeholder") | Q(state=_EVICTING))
    )
    return Fleet(
        deployments=tuple(_deployments(deployments, replicas, measured)) if whole else (),
        pools=_pools(node, replicas, placeholders),
        replicas=replicas,
        placeholders=placeholders,
        decisions=history.decisions(LAST_DECISIONS) if whole else (),
    )


def placeholder_rows() -> QuerySet[Placeholder]:
    """Return all placeholders, oldest first, with what :func:`placeholder_status` needs."""
    return Placeholder.objects.select_related("node", "deployment").annotate(age=_STATE_AGE).order_by("id")


def placeholder_status(
    row: Placeholder, measured: Summaries, deployments: Sequence[Deployment] = ()
) -> PlaceholderStatus:
    """Return the status of a row of :func:`placeholder_rows`, which can serve those ``deployments`` that suit it."""
    # one that is still warming is used at the level that it is meant to reach
    level = row.level if row.state == Placeholder.State.WARM else row.target_level
    starts = measured.get(row.deployment.revision_id, ()) if row.deployment else ()
    return PlaceholderStatus(
        id=row.id,
        node=row.node.name,
        deployment=row.deployment.name if row.deployment else None,
        engine=row.engine,
        target_level=row.target_level,
        level=row.level,
        state=row.state,
        since=row.state_since,
        state_seconds=_age_seconds(row),
        reason=row.reason,
        memory_bytes=row.memory_bytes,
        warm_seconds=row.warm_seconds,
        expected_seconds=start_times.expected_seconds(starts, level),
        estimates=tuple(
            StartEstimate(
                deployment=each.name,
                seconds=start_times.expected_seconds(measured.get(each.revision_id, ()), level),
            )
            for each in deployments
            if _suits(row, each)
        ),
    )


def _suits(row: Placeholder, deployment: Deployment) -> bool:
    """Return whether the placeholder can serve the deployment: without a process, every one of its pool."""
    if row.level == Level.H2 and row.engine != deployment.revision.engine:
        return False
    return any(link.pool_id == row.node.pool_id for link in deployment.deploymentpool_set.all())


def _deployment_rows(node: str | None) -> list[Deployment]:
    """Return the deployments by name, with their pools in order; of a node, those of its pool."""
    of_node = Q() if node is None else Q(pools__nodes__name=node)
    links = DeploymentPool.objects.select_related("pool").order_by("sequence")
    rows = Deployment.objects.filter(of_node, archived_at=None).select_related("revision__model")
    return list(rows.prefetch_related(Prefetch("deploymentpool_set", queryset=links)).order_by("name"))


def _holds_slot(holder: str) -> Exists:
    return Exists(SlotLease.objects.filter(**{holder: OuterRef("pk")}, released_at=None))


def _replica_rows(on_node: Q) -> QuerySet[Replica]:
    over = Q(desired_state=Replica.Desired.STOPPED, state__in=ENDED) & ~_holds_slot("replica")
    rows = Replica.objects.filter(on_node).exclude(over).select_related("deployment", "revision__model", "node")
    return rows.annotate(age=_STATE_AGE).order_by("id")


def _age_seconds(row: Model) -> float:
    age = cast(dt.timedelta, getattr(row, "age"))  # noqa: B009 - an annotation, unknown to the model's type
    return round(age.total_seconds(), 1)


def _replica(row: Replica, transitions: Sequence[Transition]) -> ReplicaStatus:
    return ReplicaStatus(
        id=row.id,
        deployment=row.deployment.name,
        model=row.revision.model.name,
        node=row.node.name if row.node else None,
        state=row.state,
        since=row.state_since,
        state_seconds=_age_seconds(row),
        wanted=row.desired_state == Replica.Desired.RUNNING,
        leaving=row.leaving,
        running_requests=row.running_requests,
        waiting_requests=row.waiting_requests,
        kv_usage=row.kv_usage,
        cached_blocks=row.cached_blocks,
        start_level=row.start_level,
        start_note=row.start_note,
        startup_seconds=row.startup_seconds,
        placeholder=row.placeholder_id,
        generation=row.generation,
        port=row.port,
        attempts=row.attempts,
        next_attempt_at=row.next_attempt_at,
        drain_deadline=row.drain_deadline,
        last_error=row.last_error,
        transitions=tuple(transitions),
    )


def _pools(
    node: str | None, replicas: Sequence[ReplicaStatus], placeholders: Sequence[PlaceholderStatus]
) -> tuple[PoolStatus, ...]:
    leases = SlotLease.objects.filter(Q() if node is None else Q(slot__node__name=node), released_at=None)
    holders = {
        slot: replica or placeholder
        for slot, replica, placeholder in leases.values_list("slot_id", "replica_id", "placeholder_id")
    }
    nodes = (
        Node.objects.filter(Q() if node is None else Q(name=node))
        .annotate(alive=ExpressionWrapper(Q(lease_expires_at__gt=Now()), BooleanField()))
        .select_related("pool")
        .prefetch_related("slots")
    )
    by_pool: dict[UUID, list[NodeStatus]] = defaultdict(list)
    for row in nodes.order_by("name"):
        there = [each for each in replicas if each.node == row.name]
        warm = [each for each in placeholders if each.node == row.name]
        by_pool[row.pool_id].append(_node(row, there, warm, holders))
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
            nodes=tuple(by_pool[pool.id]),
        )
        for pool in pools
    )


def _node(
    row: Node,
    replicas: Sequence[ReplicaStatus],
    placeholders: Sequence[PlaceholderStatus],
    holders: Mapping[UUID, UUID],
) -> NodeStatus:
    return NodeStatus(
        id=row.id,
        name=row.name,
        pool=row.pool.name,
        address=row.address,
        alive=bool(getattr(row, "alive")),  # noqa: B009 - an annotation, unknown to the model's type
        lease_expires_at=row.lease_expires_at,
        cordoned=row.cordoned,
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
        slot = _slot(row)
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


def _slot(row: Slot) -> SlotStatus:
    return SlotStatus(
        id=row.id,
        index=row.index,
        device_uuid=row.device_uuid,
        memory_bytes=row.memory_bytes,
        health=row.health,
        fault=row.fault,
    )


def _unheld(slot: SlotStatus) -> Literal["free", "quarantined", "gone"]:
    if slot.healthy:
        return "free"
    return "gone" if slot.health == Slot.Health.GONE else "quarantined"


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
