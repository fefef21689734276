"""Decide what to start and what to stop, from facts alone: no database, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

#: Which replicas to give up first: those that serve nobody.
STOP_ORDER = ("requested", "reserved", "backoff", "starting", "warming", "suspect", "draining", "ready")

StopReason = Literal["surplus", "replaced", "settled", "drained", "crashed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node with a live agent that takes new replicas, and its healthy slots.

    ``free`` slots have no holder; ``held`` ones have a placeholder, which makes room at once. ``warm`` counts, by
    engine, the zygotes among those. ``replicas`` counts the replicas it has.
    """

    id: UUID
    name: str
    pool_id: UUID
    replicas: int
    free: int
    held: int = 0
    warm: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica that is wanted. ``failed_recently`` holds for the time its node is not offered again.

    ``leaving`` ones are drained by an operator: they stop once others serve in their place. ``crashed`` ones served and
    wait to be started again.
    """

    id: UUID
    state: str
    node_id: UUID | None
    pool_id: UUID | None
    requests: int
    failed_recently: bool = False
    leaving: bool = False
    crashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """A deployment, its pools in the order to fill them, and its wanted replicas in order of creation.

    ``prepared`` says how many replicas a pool has at least, whatever the pools before it have room for.
    """

    id: UUID
    desired: int
    pool_ids: tuple[UUID, ...]
    replicas: tuple[ReplicaView, ...]
    engine: str
    slots_per_replica: int = 1
    prepared: Mapping[UUID, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """What to do: (deployment, node) of each replica to create, and why each other one is no longer wanted."""

    place: tuple[tuple[UUID, UUID], ...]
    stop: Mapping[UUID, StopReason]


class _FreeSlots:
    """What each node still has to give while a plan is made."""

    def __init__(self, nodes: Sequence[NodeView]) -> None:
        self.nodes = nodes
        self.replicas = Counter({node.id: node.replicas for node in nodes})
        self.free = Counter({node.id: node.free for node in nodes})
        self.slots = Counter({node.id: node.free + node.held for node in nodes})
        self.warm = Counter({(node.id, engine): count for node in nodes for engine, count in node.warm.items()})

    def choose(self, deployment: DeploymentView, pool_id: UUID) -> NodeView | None:
        """Return the node of the pool to place a replica on: with a warm placeholder for it, then where none of
        another engine must go, then with the fewest replicas."""
        refused = {replica.node_id for replica in deployment.replicas if replica.failed_recently}
        offered = [
            node
            for node in self.nodes
            if node.pool_id == pool_id
            and node.id not in refused
            and self.slots[node.id] >= deployment.slots_per_replica
        ]
        return min(offered, key=lambda node: self._cost(node, deployment), default=None)

    def take(self, node: NodeView, deployment: DeploymentView) -> None:
        """Count a replica in."""
        self.replicas[node.id] += 1
        self.slots[node.id] -= deployment.slots_per_replica
        from_free = deployment.slots_per_replica
        if self.warm[node.id, deployment.engine]:
            self.warm[node.id, deployment.engine] -= 1
            from_free -= 1
        self.free[node.id] -= min(from_free, self.free[node.id])

    def is_warm(self, node: NodeView, deployment: DeploymentView) -> bool:
        """Say whether a placeholder there can become a replica of the deployment at once."""
        return self.warm[node.id, deployment.engine] > 0

    def _cost(self, node: NodeView, deployment: DeploymentView) -> tuple[bool, bool, int, str]:
        evicts = self.free[node.id] < deployment.slots_per_replica
        return (not self.is_warm(node, deployment), evicts, self.replicas[node.id], node.name)


def plan(deployments: Iterable[DeploymentView], nodes: Sequence[NodeView]) -> PlacementPlan:
    """Return the steps from what is to what is desired. The same facts give the same steps, in any order of nodes.

    A lost replica stays wanted until its replacement has a place: if its node comes back first, it simply goes on.
    A failed one keeps its node off limits for its deployment until it has settled; see ``reconcile.FAILED_REST``.
    A crashed one gives way to a warm placeholder, which serves long before it would; without one it starts again.
    """
    room = _FreeSlots(nodes)
    place: list[tuple[UUID, UUID]] = []
    stop: dict[UUID, StopReason] = {}
    for deployment in deployments:
        working = [replica for replica in deployment.replicas if replica.state not in {"lost", "failed"}]
        lost = [replica for replica in deployment.replicas if replica.state == "lost"]
        for replica in deployment.replicas:
            if replica.state == "failed" and not replica.failed_recently:
                stop[replica.id] = "settled"
        leaving = [replica for replica in working if replica.leaving]
        working = [replica for replica in working if not replica.leaving]
        revived = _revive(deployment, working, room)
        place += [(deployment.id, node.id) for node in revived.values()]
        stop |= dict.fromkeys(revived, "crashed")
        working = [replica for replica in working if replica.id not in revived]
        missing = deployment.desired - len(working) - len(revived)
        chosen = _fill(deployment, working, missing, room)
        place += [(deployment.id, node.id) for node in chosen]
        stop |= {replica.id: "replaced" for replica in lost[: len(chosen)]}
        if missing <= 0:
            stop |= {replica.id: "replaced" for replica in lost}
            stop |= {replica.id: "surplus" for replica in _surplus(deployment, working, -missing)}
        stop |= {replica.id: "drained" for replica in _drained(deployment, leaving, working, missing - len(chosen))}
    return PlacementPlan(place=tuple(place), stop=stop)


def _revive(deployment: DeploymentView, working: Sequence[ReplicaView], room: _FreeSlots) -> dict[UUID, NodeView]:
    """Return, for each crashed replica that has one, the node whose warm placeholder takes over."""
    revived: dict[UUID, NodeView] = {}
    for replica in working:
        if not replica.crashed or replica.pool_id is None:
            continue
        node = room.choose(deployment, replica.pool_id)
        if node is not None and room.is_warm(node, deployment):
            room.take(node, deployment)
            revived[replica.id] = node
    return revived


def _fill(deployment: DeploymentView, working: Sequence[ReplicaView], missing: int, room: _FreeSlots) -> list[NodeView]:
    """Return a node for each missing replica that has one: first what is prepared, then the pools in order."""
    there = Counter(replica.pool_id for replica in working)
    prepared = [
        pool_id for pool_id in deployment.pool_ids for _ in range(deployment.prepared.get(pool_id, 0) - there[pool_id])
    ]
    chosen: list[NodeView] = []
    while len(chosen) < missing:
        wanted_pools = [prepared.pop(0)] if prepared else deployment.pool_ids
        node = next((node for pool in wanted_pools if (node := room.choose(deployment, pool))), None)
        if node is not None:
            room.take(node, deployment)
            chosen.append(node)
        elif wanted_pools is deployment.pool_ids:
            break
    return chosen


def _surplus(deployment: DeploymentView, working: Sequence[ReplicaView], count: int) -> list[ReplicaView]:
    """Return the replicas to give up: serving nobody, last pool, least busy, newest.

    What is prepared in a pool goes only when the rest is not enough.
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
    """Return the leaving replicas that stop now: those that serve nobody, and as many as others serve instead.

    For each of the ``homeless`` replacements, those that have no place, one stops all the same: the operator wants
    what it is on. Not while replacements fail to start: the one that works would be lost for nothing.
    """
    needed = deployment.desired - sum(replica.state == "ready" for replica in others)
    if not any(replica.failed_recently for replica in deployment.replicas):
        needed -= max(0, homeless)
    serving = sorted((replica for replica in leaving if replica.state == "ready"), key=lambda each: -each.requests)
    kept = {replica.id for replica in serving[: max(0, needed)]}
    return [replica for replica in leaving if replica.id not in kept]
