"""Decide which replicas a deployment gets and gives up, from facts alone: no database, no clock.

:func:`settle` is for a deployment whose replicas are all alike; ``workers.scheduler.rollout.steps`` for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from workers.serving import promotion

#: The order in which replicas are given up: those that serve no requests first.
STOP_ORDER = ("requested", "reserved", "backoff", "starting", "warming", "suspect", "draining", "ready")

#: States of a replica whose engine has ended, or may have.
GONE = frozenset({"lost", "failed"})

WeightsState = Literal["wanted", "fetching", "ready", "failed"]
StopReason = Literal["surplus", "replaced", "settled", "drained", "crashed", "superseded", "undone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node with a live agent that accepts new replicas, and its healthy slots.

    ``free`` slots have no lease; ``with_placeholder`` counts those leased to one, which is evicted if needed.
    ``warm`` counts the warm zygotes among those by what they offer, see ``promotion.kind_of``. ``replicas`` counts the
    node's replicas.
    """

    id: UUID
    name: str
    pool_id: UUID
    replicas: int
    free: int
    with_placeholder: int = 0
    warm: Mapping[str, int] = field(default_factory=dict)
    #: Zygotes that are on their way to be warm, likewise.
    warming: Mapping[str, int] = field(default_factory=dict)
    #: The versions of engines that it has.
    engines: frozenset[str] = frozenset()
    #: Its healthy slots, whoever holds them.
    size: int = 0
    #: A zygote there sees only the GPUs of its own slots.
    has_gpus: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica that is wanted. While ``failed_recently`` is true, its node is not offered to the deployment again.

    A ``leaving`` replica is being drained by an operator and stops once others serve in its place. A ``crashed`` one
    has served and waits to be started again.
    """

    id: UUID
    state: str
    node_id: UUID | None
    pool_id: UUID | None
    requests: int
    failed_recently: bool = False
    leaving: bool = False
    crashed: bool = False
    #: It leaves because an earlier pool works again: it stops only once others serve in its place.
    moves_back: bool = False
    #: Gateways send it requests; one of an open rollout has passed its canary, too, and has served for a while.
    serves: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """A deployment, its pools in the order to fill them, and its wanted replicas in order of creation.

    ``prepared`` is the least number of replicas of a pool, even if the pools before it have capacity.
    """

    id: UUID
    desired: int
    pool_ids: tuple[UUID, ...]
    replicas: tuple[ReplicaView, ...]
    #: Warm zygotes of this class can become its replicas; see ``workers.serving.promotion``.
    import_class: str
    #: The version of its engine, as nodes report it. Empty: the first one of each node.
    engine_version: str = ""
    slots_per_replica: int = 1
    prepared: Mapping[UUID, int] = field(default_factory=dict)
    #: By node, the state of the model's files there; None if no node has to fetch them.
    weights: Mapping[UUID, WeightsState] | None = None
    #: What replaces the replicas above.
    rollout: RolloutView | None = None
    #: Pools that work again, in order: replicas in later pools may move back to them.
    works_again: tuple[UUID, ...] = ()
    #: How long a replica of it has found no node; None if all have one.
    waited_seconds: float | None = None

    def promotes_on(self, node: NodeView) -> tuple[str, int]:
        """Return what zygote on the node can become its replica, and how many slots that has."""
        slots = promotion.slots_needed(self.slots_per_replica, "gpu" if node.has_gpus else "")
        return promotion.kind_of(self.import_class, slots), slots

    def has_weights(self, node_id: UUID) -> bool:
        """Return whether a replica can start on the node without waiting for files."""
        return self.weights is None or self.weights.get(node_id) == "ready"

    def may_run_on(self, node: NodeView) -> bool:
        """Return whether the node is of its pools and has the version of its engine."""
        return node.pool_id in self.pool_ids and (not self.engine_version or self.engine_version in node.engines)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """An open rollout. ``target`` is the deployment as it will be, with the replicas that the rollout has made.

    ``strays`` are of neither kind: a rollout made them whose place this one took.
    ``proven``: one of those has passed its canary. ``draining`` replicas of the deployment still hold slots.
    ``most_serving``: see ``Rollout``.
    """

    id: UUID
    target: DeploymentView
    state: Literal["running", "paused", "undoing"]
    proven: bool
    max_surge: int
    max_unavailable: int
    most_serving: int
    draining: int = 0
    strays: tuple[ReplicaView, ...] = ()


@dataclass(slots=True, kw_only=True)
class Steps:
    """What changes: (deployment, node) of each replica to create, and each replica to stop with its reason.

    ``move_back``: (deployment, replica, node) of each replica that leaves for one on that node, in an earlier pool;
    ``moved_back``: (deployment, pool) of each pool that has its replicas again.
    ``homeless``: by deployment, how many replicas found no node; ``kept``: the node whose slots are kept for it.
    ``roll``: (deployment, node) of each replica to create for its rollout; ``waits_for``: by rollout, what its next
    step waits for; ``finished``: rollouts that are done or undone.
    """

    place: list[tuple[UUID, UUID]] = field(default_factory=list)
    stop: dict[UUID, StopReason] = field(default_factory=dict)
    roll: list[tuple[UUID, UUID]] = field(default_factory=list)
    move_back: list[tuple[UUID, UUID, UUID]] = field(default_factory=list)
    moved_back: list[tuple[UUID, UUID]] = field(default_factory=list)
    homeless: dict[UUID, int] = field(default_factory=dict)
    kept: dict[UUID, UUID] = field(default_factory=dict)
    waits_for: dict[UUID, str] = field(default_factory=dict)
    finished: set[UUID] = field(default_factory=set)


class FreeSlots:
    """The slots that each node still has while a plan is made."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self.nodes = nodes
        self.replicas = Counter({node.id: node.replicas for node in nodes})
        self.free = Counter({node.id: node.free for node in nodes})
        self.slots = Counter({node.id: node.free + node.with_placeholder for node in nodes})
        self.warm = Counter({(node.id, kind): count for node in nodes for kind, count in node.warm.items()})
        self.warming = Counter({(node.id, kind): count for node in nodes for kind, count in node.warming.items()})

        self.keeping_pools: set[UUID] = set()

    def keep(self, node: NodeView) -> None:
        """Give nothing more of the node, nor keep another one of its pool."""
        self.keeping_pools.add(node.pool_id)
        self.slots[node.id] = self.free[node.id] = 0
        for each in (self.warm, self.warming):
            for key in [key for key in each if key[0] == node.id]:
                each[key] = 0

    def take_warming(self, deployment: DeploymentView) -> bool:
        """Reserve a zygote that will soon be able to become a replica of the deployment; False if there is none."""
        for node in self.nodes:
            offered = deployment.may_run_on(node) and deployment.has_weights(node.id)
            kind, _ = deployment.promotes_on(node)
            if offered and self.warming[node.id, kind]:
                self.warming[node.id, kind] -= 1
                return True
        return False

    def choose(self, deployment: DeploymentView, pool_id: UUID) -> NodeView | None:
        """Return the best node of the pool for a replica.

        First one with a warm placeholder for it, then one where no placeholder must be evicted, then the one with the
        fewest replicas.
        """
        offered = self.offered(deployment, pool_id)
        fitting = [node for node in offered if self.slots[node.id] >= deployment.slots_per_replica]
        return min(fitting, key=lambda node: self._cost(node, deployment), default=None)

    def offered(self, deployment: DeploymentView, pool_id: UUID) -> list[NodeView]:
        """Return the nodes of the pool that could start a replica, whether or not they have slots for it."""
        refused = {replica.node_id for replica in deployment.replicas if replica.failed_recently}
        return [
            node
            for node in self.nodes
            if node.pool_id == pool_id
            and node.id not in refused
            and deployment.may_run_on(node)
            and deployment.has_weights(node.id)
        ]

    def is_fetching(self, deployment: DeploymentView) -> bool:
        """Return whether a node that has slots for a replica lacks only the model's files, and fetches them.

        Where the last attempt failed, nobody knows whether the next one will do better.
        """
        coming = {"wanted", "fetching"}
        return deployment.weights is not None and any(
            deployment.may_run_on(node)
            and self.slots[node.id] >= deployment.slots_per_replica
            and deployment.weights.get(node.id) in coming
            for node in self.nodes
        )

    def take(self, node: NodeView, deployment: DeploymentView) -> None:
        """Subtract a replica's slots from what the node has."""
        self.replicas[node.id] += 1
        self.slots[node.id] -= deployment.slots_per_replica
        from_free = deployment.slots_per_replica
        kind, slots = deployment.promotes_on(node)
        if self.warm[node.id, kind]:
            self.warm[node.id, kind] -= 1
            from_free -= slots
        self.free[node.id] -= min(from_free, self.free[node.id])

    def is_warm(self, node: NodeView, deployment: DeploymentView) -> bool:
        """Return whether a placeholder there can become a replica of the deployment at once."""
        return self.warm[node.id, deployment.promotes_on(node)[0]] > 0

    def must_evict(self, node: NodeView, deployment: DeploymentView) -> bool:
        """Return whether a replica there takes the slot of a placeholder."""
        return self.free[node.id] < deployment.slots_per_replica

    def _cost(self, node: NodeView, deployment: DeploymentView) -> tuple[bool, bool, int, str]:
        evicts = self.must_evict(node, deployment)
        return (not self.is_warm(node, deployment), evicts, self.replicas[node.id], node.name)


def settle(deployment: DeploymentView, free_slots: FreeSlots, steps: Steps) -> None:
    """Add the steps from the present to the desired state. Equal facts give equal steps, in any order of nodes.

    A lost replica stays wanted until its replacement has a node: if its own node comes back first, it continues.
    A failed one keeps its deployment off its node until it has settled; see ``reconciler.FAILED_REST``.
    A crashed one is replaced by a warm placeholder, which serves much sooner; without a placeholder it starts again.
    """
    working = [replica for replica in deployment.replicas if replica.state not in GONE]
    lost = [replica for replica in deployment.replicas if replica.state == "lost"]
    steps.stop |= settled(deployment)
    leaving = [replica for replica in working if replica.leaving]
    working = [replica for replica in working if not replica.leaving]
    revived = revive(deployment, working, free_slots)
    steps.place += [(deployment.id, node.id) for node in revived.values()]
    steps.stop |= dict.fromkeys(revived, "crashed")
    working = [replica for replica in working if replica.id not in revived]
    missing = deployment.desired - len(working) - len(revived)
    chosen, waiting = fill(deployment, working, missing, free_slots, patient=_patient(leaving, missing))
    steps.place += [(deployment.id, node.id) for node in chosen]
    steps.stop |= {replica.id: "replaced" for replica in lost[: len(chosen)]}
    if missing <= 0:
        steps.stop |= {replica.id: "replaced" for replica in lost}
        steps.stop |= {replica.id: "surplus" for replica in surplus(deployment, working, -missing)}
    homeless = missing - len(chosen) - waiting
    if homeless > 0:
        steps.homeless[deployment.id] = homeless
    steps.stop |= {replica.id: "drained" for replica in _drained(deployment, leaving, working, homeless)}


def settled(deployment: DeploymentView) -> dict[UUID, StopReason]:
    """Return the failed replicas that no longer keep the deployment off their nodes."""
    failed = (replica for replica in deployment.replicas if replica.state == "failed")
    return {replica.id: "settled" for replica in failed if not replica.failed_recently}


def revive(deployment: DeploymentView, working: Sequence[ReplicaView], free_slots: FreeSlots) -> dict[UUID, NodeView]:
    """Return the node whose warm placeholder takes over, for each crashed replica that can be replaced so."""
    revived: dict[UUID, NodeView] = {}
    for replica in working:
        if not replica.crashed or replica.pool_id is None:
            continue
        node = free_slots.choose(deployment, replica.pool_id)
        if node is not None and free_slots.is_warm(node, deployment):
            free_slots.take(node, deployment)
            revived[replica.id] = node
    return revived


def _patient(leaving: Sequence[ReplicaView], missing: int) -> int:
    """Return how many of the missing replicas may wait: those that replace one that serves until they are ready."""
    return max(0, min(missing, sum(replica.state == "ready" for replica in leaving)))


def fill(
    deployment: DeploymentView, working: Sequence[ReplicaView], missing: int, free_slots: FreeSlots, *, patient: int
) -> tuple[list[NodeView], int]:
    """Return nodes for the missing replicas, as far as there are any, and how many replicas wait.

    Prepared pools come first, then all in order. A ``patient`` replica that would evict a zygote that is nearly warm
    waits for it instead: a promotion is faster than the cold start on its slot. It waits for the model's files, too.
    """
    there = Counter(replica.pool_id for replica in working)
    prepared = [
        pool_id for pool_id in deployment.pool_ids for _ in range(deployment.prepared.get(pool_id, 0) - there[pool_id])
    ]
    chosen: list[NodeView] = []
    waiting = 0
    while len(chosen) + waiting < missing:
        wanted_pools = [prepared.pop(0)] if prepared else deployment.pool_ids
        node = next((node for pool in wanted_pools if (node := free_slots.choose(deployment, pool))), None)
        if node is not None:
            cold = not free_slots.is_warm(node, deployment) and free_slots.must_evict(node, deployment)
            if cold and waiting < patient and free_slots.take_warming(deployment):
                waiting += 1
                continue
            free_slots.take(node, deployment)
            chosen.append(node)
        elif wanted_pools is deployment.pool_ids:
            waiting = max(waiting, patient) if free_slots.is_fetching(deployment) else waiting
            break
    return chosen, waiting


def surplus(deployment: DeploymentView, working: Sequence[ReplicaView], count: int) -> list[ReplicaView]:
    """Return the replicas to give up: those without requests first, then by last pool, least busy and newest.

    Prepared replicas are given up only if the others are not enough.
    """
    sequence: dict[UUID | None, int] = {pool_id: index for index, pool_id in enumerate(deployment.pool_ids)}
    there = Counter(replica.pool_id for replica in working)
    ranked = sorted(
        working,
        key=lambda replica: (
            STOP_ORDER.index(replica.state),
            -sequence.get(replica.pool_id, len(sequence)),
            replica.requests,
            -replica.id.int,
        ),
    )
    given_up: list[ReplicaView] = []
    prepared: list[ReplicaView] = []
    for replica in ranked:
        floor = deployment.prepared.get(replica.pool_id, 0) if replica.pool_id else 0
        if there[replica.pool_id] > floor:
            there[replica.pool_id] -= 1
            given_up.append(replica)
        else:
            prepared.append(replica)
    return [*given_up, *prepared][: max(0, count)]


def _drained(
    deployment: DeploymentView, leaving: Sequence[ReplicaView], others: Sequence[ReplicaView], homeless: int
) -> list[ReplicaView]:
    """Return the leaving replicas that stop now: those that are not ready, and as many as others serve in place of.

    For each of the ``homeless`` replacements, which found no node, one stops nevertheless, because the operator wants
    its slots. This does not apply while replacements fail to start: a working replica would be lost for nothing. Nor
    does it apply to those that move back to an earlier pool, whose slots nobody wants.
    """
    needed = max(0, deployment.desired - sum(replica.state == "ready" for replica in others))
    serving = sorted((replica for replica in leaving if replica.state == "ready"), key=lambda each: -each.requests)
    kept = {replica.id for replica in serving[:needed]}
    if not any(replica.failed_recently for replica in deployment.replicas):
        wanted_slots = [each.id for each in serving[max(0, needed - max(0, homeless)) : needed] if not each.moves_back]
        kept.difference_update(wanted_slots)
    return [replica for replica in leaving if replica.id not in kept]
