"""The fleet at one moment, read from the database: what ``celery fleet``, ``celery inspect``, pages and API show.

Pools in priority order, their nodes and slots with what holds them, deployments, and the newest decisions. Fourteen
queries, whatever the size of the fleet.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from django.db.models import (
    BooleanField,
    Exists,
    ExpressionWrapper,
    OuterRef,
    Prefetch,
    Q,
    QuerySet,
)
from django.db.models.functions import Now

from catalogue import routing_policy
from catalogue.routing_policy import Comparison, RoutingPolicy
from workers.engines.driver import named_version
from workers.fleet import engine_versions, history, rollout_status, weights
from workers.fleet.history import Decision, Transition
from workers.fleet.lookup import short
from workers.fleet.placeholders import STATE_AGE, PlaceholderStatus, age_seconds, placeholder_rows, placeholder_status
from workers.fleet.rollout_status import RolloutStatus
from workers.fleet.slots import SlotStatus, slot_rows, slot_status
from workers.fleet.weights import WeightsStatus
from workers.models import Deployment, DeploymentPool, Node, Placeholder, Pool, Replica, Slot, SlotLease
from workers.scheduler.reconciler import ENDED
from workers.serving import gateway_load, start_times
from workers.serving.gateway_load import DeploymentLoad
from workers.serving.start_times import StartSummary, Summaries

#: Transitions read of each replica, and decisions of all deployments.
LAST_TRANSITIONS = 6
LAST_DECISIONS = 12
_EVICTING = Placeholder.State.EVICTING


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
    #: What its rollout's canary found: ``""`` where it needs none; only "" and "passed" get requests.
    canary: str
    running_requests: int
    waiting_requests: int
    #: 0 to 1.
    kv_usage: float
    #: Tokens that its KV cache holds.
    cache_tokens: int | None
    #: Tokens that it keeps in host memory.
    host_cache_tokens: int | None
    #: Requests that its engine runs at once.
    max_requests: int | None
    #: Its longest prompt and completion together.
    context_tokens: int | None
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
    #: Empty: the first one that each node has.
    engine_version: str
    desired: int
    minimum: int
    maximum: int
    slots_per_replica: int
    target_tokens_per_replica: int
    scale_up_delay_seconds: float
    scale_down_delay_seconds: float
    routing: RoutingPolicy
    #: The comparison of two routing policies that runs.
    comparison: Comparison | None
    pools: tuple[str, ...]
    replicas: tuple[ReplicaStatus, ...]
    #: Requests of all gateways together.
    load: DeploymentLoad
    starts: tuple[StartSummary, ...]
    #: Desired replicas that have no slot, and find none on the nodes of its pools now.
    without_slot: int
    #: Which live nodes of its pools lack the version of its engine, or that of its rollout, and what to do; or empty.
    without_engine: str = ""
    #: Its model's files by node; empty if no node has to fetch them.
    weights: tuple[WeightsStatus, ...] = ()
    #: Its open rollout, or its last one if that has ended lately.
    rollout: RolloutStatus | None = None

    @property
    def shortage(self) -> str:
        """Return what is missing for the desired replicas to be placed, or an empty text."""
        if not self.without_slot:
            return ""
        of_them = f"{self.without_slot} of {self.desired}" if self.desired > 1 else "its"
        kind = "replicas" if self.desired > 1 else "replica"
        pools = ", ".join(self.pools) or "no pool"
        return f"no slot is free for {of_them} {kind}; add a node to {pools}, free slots there, or desire fewer"

    @property
    def fetching(self) -> str:
        """Return which nodes do not have the model's files yet, and why, or an empty text."""
        return "; ".join(each.words for each in self.weights if not each.is_ready)

    @property
    def obstacles(self) -> str:
        """Return what keeps desired replicas from being placed: an engine, files, slots, or an empty text."""
        return "; ".join(filter(None, (self.without_engine, self.shortage, self.fetching)))

    @property
    def ready(self) -> int:
        """Return how many replicas serve requests."""
        return sum(each.state == Replica.State.READY and each.canary in Replica.PROVEN for each in self.replicas)

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
    pools = _pools(node, replicas, placeholders)
    return Fleet(
        deployments=tuple(_deployments(deployments, replicas, measured, pools)) if whole else (),
        pools=pools,
        replicas=replicas,
        placeholders=placeholders,
        decisions=history.decisions(LAST_DECISIONS) if whole else (),
    )


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
    return rows.annotate(age=STATE_AGE).order_by("id")


def _replica(row: Replica, transitions: Sequence[Transition]) -> ReplicaStatus:
    return ReplicaStatus(
        id=row.id,
        deployment=row.deployment.name,
        model=row.revision.model.name,
        node=row.node.name if row.node else None,
        state=row.state,
        since=row.state_since,
        state_seconds=age_seconds(row),
        wanted=row.desired_state == Replica.Desired.RUNNING,
        leaving=row.leaving,
        canary=row.canary,
        running_requests=row.running_requests,
        waiting_requests=row.waiting_requests,
        kv_usage=row.kv_usage,
        cache_tokens=row.cache_tokens,
        host_cache_tokens=row.host_cache_tokens,
        max_requests=row.max_requests,
        context_tokens=row.context_tokens,
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
        .prefetch_related(Prefetch("slots", queryset=slot_rows()))
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
        engines=tuple(row.engines) if row.known_engines else (),
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


def _without_engine(row: Deployment, rollout: RolloutStatus | None, pools: Sequence[PoolStatus]) -> str:
    versions = [named_version(row.revision.engine, row.revision.engine_version)]
    if rollout is not None and rollout.is_open:
        versions.append(rollout.engine_version)
    names = {link.pool.name for link in row.deploymentpool_set.all()}
    nodes = {node.name: node.engines for pool in pools if pool.name in names for node in pool.nodes if node.alive}
    return engine_versions.lacking(versions, nodes)


def _running_comparison(row: Deployment) -> Comparison | None:
    comparison = routing_policy.read(row.routing).comparison
    return comparison if comparison is not None and comparison.until > time.time() else None


def _weights_of(
    row: Deployment, rollout: RolloutStatus | None, fetched: Mapping[UUID, tuple[WeightsStatus, ...]]
) -> tuple[WeightsStatus, ...]:
    """Return the files of what the deployment serves, and of what its open rollout brings."""
    revisions = [row.revision_id]
    if rollout is not None and rollout.is_open and rollout.revision_id != row.revision_id:
        revisions.append(rollout.revision_id)
    return tuple(each for revision_id in revisions for each in fetched.get(revision_id, ()))


def obstacles(deployment: str) -> str:
    """Return what keeps a deployment's replicas from being placed, or an empty text; ``DeploymentStatus.obstacles``."""
    return next((each.obstacles for each in read().deployments if each.name == deployment), "")


def _without_slot(row: Deployment, replicas: Sequence[ReplicaStatus], pools: Sequence[PoolStatus]) -> int:
    """Return how many desired replicas have no slots and find none now; placeholders give their slots to replicas."""
    placed = sum(each.wanted and each.running and not each.leaving and each.node is not None for each in replicas)
    names = {link.pool.name for link in row.deploymentpool_set.all()}
    nodes = (node for pool in pools if pool.name in names for node in pool.nodes if node.alive and not node.cordoned)
    version = named_version(row.revision.engine, row.revision.engine_version)
    fitting = (node for node in nodes if not version or version in node.engines)
    room = sum(node.replaceable_count // row.slots_per_replica for node in fitting)
    return max(0, row.desired_replicas - placed - room)


def _deployments(
    rows: Sequence[Deployment],
    replicas: Sequence[ReplicaStatus],
    measured: Summaries,
    pools: Sequence[PoolStatus],
) -> Iterable[DeploymentStatus]:
    demand, fetched, rollouts = gateway_load.demand(), weights.by_revision(), rollout_status.by_deployment()
    by_name: dict[str, list[ReplicaStatus]] = defaultdict(list)
    for replica in replicas:
        by_name[replica.deployment].append(replica)
    for row in rows:
        yield DeploymentStatus(
            name=row.name,
            model=row.revision.model.name,
            engine=row.revision.engine,
            engine_version=row.revision.engine_version,
            desired=row.desired_replicas,
            minimum=row.min_replicas,
            maximum=row.max_replicas,
            slots_per_replica=row.slots_per_replica,
            target_tokens_per_replica=row.target_tokens_per_replica,
            scale_up_delay_seconds=row.scale_up_delay_seconds,
            scale_down_delay_seconds=row.scale_down_delay_seconds,
            routing=routing_policy.read(row.routing).policy,
            comparison=_running_comparison(row),
            pools=tuple(link.pool.name for link in row.deploymentpool_set.all()),
            replicas=tuple(by_name[row.name]),
            load=demand.get(row.id, DeploymentLoad()),
            starts=tuple(measured.get(row.revision_id, ())),
            without_slot=_without_slot(row, by_name[row.name], pools),
            without_engine=_without_engine(row, rollouts.get(row.id), pools),
            weights=_weights_of(row, rollouts.get(row.id), fetched),
            rollout=rollouts.get(row.id),
        )
