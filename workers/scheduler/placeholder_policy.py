"""Decide which placeholders to create and which to evict, from facts alone: no database, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlaceholders:
    """One node's placeholders: ``placeholder_ids``, the best to keep first. ``free`` slots are leased to nothing.

    ``may_make`` is False while a replica starts there, because starting a zygote beside it would slow it down.
    """

    node_id: UUID
    name: str
    pool_id: UUID
    wanted: int
    free: int
    placeholder_ids: tuple[UUID, ...]
    may_make: bool = True

    @property
    def capacity(self) -> int:
        """How many placeholders fit on the node."""
        return self.free + len(self.placeholder_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderPlan:
    """The nodes that get a placeholder, once for each new one, and the placeholders to evict."""

    make: tuple[UUID, ...]
    evict: tuple[UUID, ...]


def plan(nodes: Sequence[NodePlaceholders], next_pools: Mapping[UUID, UUID]) -> PlaceholderPlan:
    """Return the steps to what the pools want. ``nodes`` are grouped by pool, in the order of the pools' priority.

    Placeholders that do not fit on a full node go to the other nodes of its pool, and from a full pool to the next
    one (``next_pools``, by pool), so that warm capacity exists somewhere. Each node gets at most one new placeholder
    per round, because they share its processors.
    """
    goals = _goals(nodes, next_pools)
    make: list[UUID] = []
    evict: list[UUID] = []
    for node in nodes:
        goal = goals[node.node_id]
        evict += node.placeholder_ids[goal:]
        if len(node.placeholder_ids) < goal and node.may_make:
            make.append(node.node_id)
    return PlaceholderPlan(make=tuple(make), evict=tuple(evict))


def _goals(nodes: Sequence[NodePlaceholders], next_pools: Mapping[UUID, UUID]) -> dict[UUID, int]:
    """Return how many placeholders each node should have, within its capacity."""
    goals: dict[UUID, int] = {}
    carried: Counter[UUID] = Counter()
    for pool_id, group in groupby(nodes, key=lambda node: node.pool_id):
        pool = list(group)
        missing = carried[pool_id]
        for node in pool:
            goals[node.node_id] = min(node.wanted, node.capacity)
            missing += node.wanted - goals[node.node_id]
        while missing and (open_nodes := [node for node in pool if goals[node.node_id] < node.capacity]):
            goals[min(open_nodes, key=lambda node: _cost(node, goals[node.node_id])).node_id] += 1
            missing -= 1
        if (following := next_pools.get(pool_id)) is not None:
            carried[following] += missing
    return goals


def _cost(node: NodePlaceholders, goal: int) -> tuple[bool, int, str]:
    """Order nodes for one more placeholder: those that have it already, then those with the fewest."""
    return (goal >= len(node.placeholder_ids), goal, node.name)
