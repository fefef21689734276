"""Decide what to start and what to stop, from facts alone: no database, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

#: Which replicas to give up first: those that serve nobody.
STOP_ORDER = ("requested", "backoff", "starting", "warming", "suspect", "draining", "ready")

StopReason = Literal["surplus", "replaced", "settled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node with a live agent that takes new replicas. ``replicas`` counts those it has."""

    id: UUID
    name: str
    pool_id: UUID
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """A replica that is wanted. ``failed_recently`` holds for the time its node is not offered again."""

    id: UUID
    state: str
    node_id: UUID | None
    pool_id: UUID | None
    requests: int
    failed_recently: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """A deployment, its pools in the order to fill them, and its wanted replicas in order of creation."""

    id: UUID
    desired: int
    pool_ids: tuple[UUID, ...]
    replicas: tuple[ReplicaView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do: (deployment, node) of each replica to create, and why each other one is no longer wanted."""

    place: tuple[tuple[UUID, UUID], ...]
    stop: Mapping[UUID, StopReason]


def plan(deployments: Iterable[DeploymentView], nodes: Sequence[NodeView]) -> Plan:
    """Return the steps from what is to what is desired. The same facts give the same steps, in any order of nodes.

    A lost replica stays wanted until its replacement has a place: if its node comes back first, it simply goes on.
    A failed one keeps its node off limits for its deployment until it has settled; see ``reconcile.FAILED_REST``.
    """
    load = Counter({node.id: node.replicas for node in nodes})
    place: list[tuple[UUID, UUID]] = []
    stop: dict[UUID, StopReason] = {}
    for deployment in deployments:
        working = [replica for replica in deployment.replicas if replica.state not in {"lost", "failed"}]
        lost = [replica for replica in deployment.replicas if replica.state == "lost"]
        for replica in deployment.replicas:
            if replica.state == "failed" and not replica.failed_recently:
                stop[replica.id] = "settled"
        missing = deployment.desired - len(working)
        for _ in range(missing):
            node = _choose(deployment, nodes, load)
            if node is None:
                break
            load[node.id] += 1
            place.append((deployment.id, node.id))
            if lost:
                stop[lost.pop(0).id] = "replaced"
        if missing <= 0:
            stop |= {replica.id: "replaced" for replica in lost}
            stop |= {replica.id: "surplus" for replica in _surplus(deployment, working)[:-missing]}
    return Plan(place=tuple(place), stop=stop)


def _choose(deployment: DeploymentView, nodes: Sequence[NodeView], load: Counter[UUID]) -> NodeView | None:
    """Return the least loaded node of the first pool that has one to offer."""
    refused = {replica.node_id for replica in deployment.replicas if replica.failed_recently}
    for pool_id in deployment.pool_ids:
        offered = [node for node in nodes if node.pool_id == pool_id and node.id not in refused]
        if offered:
            return min(offered, key=lambda node: (load[node.id], node.name))
    return None


def _surplus(deployment: DeploymentView, working: Sequence[ReplicaView]) -> list[ReplicaView]:
    """Return the replicas in the order to give them up: serving nobody, last pool, least busy, newest."""
    sequence: dict[UUID | None, int] = {pool_id: index for index, pool_id in enumerate(deployment.pool_ids)}
    return sorted(
        working,
        key=lambda replica: (
            STOP_ORDER.index(replica.state),
            -sequence.get(replica.pool_id, len(sequence)),
            replica.requests,
            -replica.id.int,
        ),
    )
