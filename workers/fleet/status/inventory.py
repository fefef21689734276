"""The fleet at one moment, read from the database: what ``celery fleet``, ``celery inspect``, pages and API show.

Pools in priority order, their nodes and slots with what holds them, deployments, and the newest decisions. Fifteen
queries, whatever the size of the fleet.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, Prefetch, Q, Sum
from django.db.models.functions import Now

from catalogue import routing_policy
from catalogue.routing_policy import Comparison, RoutingPolicy
from workers.engines.driver import named_version
from workers.fleet import engine_versions
from workers.fleet.status import history, load_targets, rollout_status, staged, weights
from workers.fleet.status.history import Decision
from workers.fleet.status.load_targets import TargetStatus
from workers.fleet.status.placeholders import PlaceholderStatus, placeholder_rows, placeholder_status
from workers.fleet.status.pool_status import NodeStatus, PoolStatus, pool_statuses
from workers.fleet.status.replica_status import ReplicaStatus, holds_slot, replica_rows, replica_status
from workers.fleet.status.rollout_status import RolloutStatus
from workers.fleet.status.staged import StagedStatus
from workers.fleet.status.weights import WeightsStatus
from workers.models import Deployment, DeploymentPool, Node, Placeholder, Replica, Slot, SlotLease
from workers.scheduler.scaling import scaling_signals
from workers.scheduler.scaling.scaling_signals import Objectives
from workers.serving import gateway_load, pool_requirements, start_times
from workers.serving.gateway_load import DeploymentLoad
from workers.serving.pool_requirements import PoolRequirements
from workers.serving.start_times import UNKNOWN, StartSummary, Summaries

#: Transitions read of each replica, and decisions of all deployments.
LAST_TRANSITIONS = 6
LAST_DECISIONS = 12
_EVICTING = Placeholder.State.EVICTING


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
    #: In its first pool, and whether it is learned; ``targets`` are those of all pools in their order.
    target_tokens_per_replica: int
    learns_target: bool
    targets: tuple[TargetStatus, ...]
    scale_up_delay_seconds: float
    scale_down_delay_seconds: float
    routing: RoutingPolicy
    #: The comparison of two routing policies that runs.
    comparison: Comparison | None
    pools: tuple[str, ...]
    #: The signals of its engines that scaling follows.
    objectives: Objectives
    #: What it requires of its pools, and those that do not have it, each with what it lacks.
    requires: PoolRequirements
    left_out: tuple[str, ...]
    #: What the slots of its replicas cost in an hour, pico-dollars; None if a pool of them has no cost.
    hour_pico: int | None
    replicas: tuple[ReplicaStatus, ...]
    #: Requests of all gateways together.
    load: DeploymentLoad
    starts: tuple[StartSummary, ...]
    #: Desired replicas that have no slot, and find none on the nodes of its pools now.
    without_slot: int
    #: The node whose slots are kept for it while it waits; empty if none is.
    kept_node: str = ""
    #: Which live nodes of its pools lack the version of its engine, or that of its rollout, and what to do; or empty.
    without_engine: str = ""
    #: Its model's files by node; empty if no node has to fetch them.
    weights: tuple[WeightsStatus, ...] = ()
    #: Its model's files in the page cache of nodes that may soon get a replica of it.
    staged: tuple[StagedStatus, ...] = ()
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
        text = f"no slot is free for {of_them} {kind}; add a node to {pools}, free slots there, or desire fewer"
        kept = f"the slots of node {self.kept_node} are kept for it as they become free" if self.kept_node else ""
        return "; ".join(filter(None, (text, *self.left_out, kept)))

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
        return load_targets.share(self.load, self.targets)

    @property
    def target_reasons(self) -> str:
        """Return what the learned targets were learned from, by pool."""
        return "; ".join(f"{each.pool}: {each.reason}" for each in self.targets if each.reason)

    @property
    def target_words(self) -> str:
        """Return the targets of its pools as lists show them: ``700 learned``, or ``700 to 9,000 learned``."""
        return load_targets.words(self.targets)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSummary:
    """How many replicas of a deployment are ready, as :class:`DeploymentStatus` says."""

    name: str
    ready: int
    desired: int

    @property
    def is_short(self) -> bool:
        """Return whether fewer replicas are ready than desired."""
        return self.ready < self.desired


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSummary:
    """What the overview shows of a :class:`Fleet`, in a tenth of its time where there are hundreds of replicas."""

    deployments: tuple[DeploymentSummary, ...]
    placeholders_warm: int
    placeholders_wanted: int
    faulty_slots: int


def summary() -> FleetSummary:
    """Read how many replicas, placeholders and slots there are; four queries, whatever the size of the fleet."""
    ready = Q(replicas__state=Replica.State.READY, replicas__canary__in=Replica.PROVEN)
    rows = Deployment.objects.filter(archived_at=None).annotate(ready=Count("replicas", filter=ready)).order_by("name")
    usable = Node.objects.filter(removed_at=None, cordoned=False, lease_expires_at__gt=Now())
    return FleetSummary(
        deployments=tuple(
            DeploymentSummary(name=name, ready=count, desired=desired)
            for name, count, desired in rows.values_list("name", "ready", "desired_replicas")
        ),
        placeholders_warm=SlotLease.objects.filter(
            released_at=None, placeholder__state=Placeholder.State.WARM, slot__node__removed_at=None
        ).count(),
        placeholders_wanted=usable.aggregate(wanted=Sum("pool__placeholders_per_node", default=0))["wanted"],
        faulty_slots=Slot.objects.filter(node__removed_at=None).exclude(health=Slot.Health.OK).count(),
    )


def read(node: str | None = None, *, with_history: bool = True) -> Fleet:
    """Read the fleet; with ``node``, that node and its pool alone, without deployments.

    Neither then nor without ``with_history`` it has transitions, parts of starts and decisions.
    A replica that has ended is left out once it is not wanted and has no slot, a placeholder once it has no slot and
    is not being evicted.
    """
    whole = node is None
    has_history = whole and with_history
    on_node = Q() if node is None else Q(node__name=node)
    deployments = _deployment_rows(node)
    measured = start_times.summaries({row.revision_id for row in deployments})
    rows = list(replica_rows(on_node))
    transitions = history.transitions_of(rows, LAST_TRANSITIONS) if has_history else {}
    parts = start_times.parts_of([row.id for row in rows]) if has_history else {}
    replicas = tuple(replica_status(row, transitions.get(row.id, ()), parts.get(row.id, UNKNOWN)) for row in rows)
    placeholders = tuple(
        placeholder_status(row, measured, deployments)
        for row in placeholder_rows().filter(on_node).filter(holds_slot("placeholder") | Q(state=_EVICTING))
    )
    pools = pool_statuses(node, replicas, placeholders)
    return Fleet(
        deployments=tuple(_deployments(deployments, replicas, measured, pools)) if whole else (),
        pools=pools,
        replicas=replicas,
        placeholders=placeholders,
        decisions=history.decisions(LAST_DECISIONS) if has_history else (),
    )


def _deployment_rows(node: str | None) -> list[Deployment]:
    """Return the deployments by name, with their pools in order; of a node, those of its pool."""
    of_node = Q() if node is None else Q(pools__nodes__name=node)
    links = DeploymentPool.objects.select_related("pool").order_by("sequence")
    rows = Deployment.objects.filter(of_node, archived_at=None).select_related("revision__model", "kept_node")
    return list(rows.prefetch_related(Prefetch("deploymentpool_set", queryset=links)).order_by("name"))


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
    requires = pool_requirements.read(row.requires)
    names = {
        link.pool.name for link in row.deploymentpool_set.all() if not pool_requirements.unmet(requires, link.pool)
    }
    nodes = (node for pool in pools if pool.name in names for node in pool.nodes if node.alive and not node.cordoned)
    version = named_version(row.revision.engine, row.revision.engine_version)
    fitting = (node for node in nodes if not version or version in node.engines)
    room = sum(node.replaceable_count // row.slots_per_replica for node in fitting)
    return max(0, row.desired_replicas - placed - room)


def _hour_pico(deployment: str, pools: Sequence[PoolStatus]) -> int | None:
    """Return what the slots of a deployment's replicas cost in an hour; None if a pool of them has no cost."""
    used = [(pool.slot_hour_pico, count) for pool in pools if (count := pool.slots_of(deployment))]
    costs = [cost * count for cost, count in used if cost is not None]
    return sum(costs) if len(costs) == len(used) else None


def _deployments(
    rows: Sequence[Deployment],
    replicas: Sequence[ReplicaStatus],
    measured: Summaries,
    pools: Sequence[PoolStatus],
) -> Iterable[DeploymentStatus]:
    demand, fetched, rollouts = gateway_load.demand(), weights.by_revision(), rollout_status.by_deployment()
    in_cache = staged.statuses()
    targets = load_targets.by_deployment(rows, replicas, pools)
    by_name: dict[str, list[ReplicaStatus]] = defaultdict(list)
    for replica in replicas:
        by_name[replica.deployment].append(replica)
    for row in rows:
        requires = pool_requirements.read(row.requires)
        links = row.deploymentpool_set.all()
        yield DeploymentStatus(
            name=row.name,
            model=row.revision.model.name,
            engine=row.revision.engine,
            engine_version=row.revision.engine_version,
            desired=row.desired_replicas,
            minimum=row.min_replicas,
            maximum=row.max_replicas,
            slots_per_replica=row.slots_per_replica,
            target_tokens_per_replica=next((each.tokens for each in targets[row.id]), row.target_tokens_per_replica),
            learns_target=row.learns_target,
            targets=targets[row.id],
            scale_up_delay_seconds=row.scale_up_delay_seconds,
            scale_down_delay_seconds=row.scale_down_delay_seconds,
            routing=routing_policy.read(row.routing).policy,
            comparison=_running_comparison(row),
            pools=tuple(link.pool.name for link in links),
            objectives=scaling_signals.read(row.objectives),
            requires=requires,
            left_out=tuple(why for link in links if (why := pool_requirements.unmet(requires, link.pool))),
            hour_pico=_hour_pico(row.name, pools),
            replicas=tuple(by_name[row.name]),
            load=demand.get(row.id, DeploymentLoad()),
            starts=tuple(measured.get(row.revision_id, ())),
            without_slot=_without_slot(row, by_name[row.name], pools),
            kept_node=row.kept_node.name if row.kept_node else "",
            without_engine=_without_engine(row, rollouts.get(row.id), pools),
            weights=_weights_of(row, rollouts.get(row.id), fetched),
            staged=tuple(each for each in in_cache if each.model == row.revision.model.name),
            rollout=rollouts.get(row.id),
        )
