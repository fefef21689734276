"""Decide which placeholders to make and which are too many, from facts alone: no database, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """One node's placeholders. ``free`` slots have no holder. ``held`` are its placeholders, best to keep first.

    ``calm`` is False while a replica starts there: making a zygote beside it would slow it down.
    """

    node_id: UUID
    name: str
    pool_id: UUID
    wanted: int
    free: int
    held: tuple[UUID, ...]
    calm: bool = True

    @property
    def room(self) -> int:
        """Placeholders that the node can hold."""
        return self.free + len(self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refill:
    """Nodes that get a placeholder, once for each, and placeholders to evict."""

    make: tuple[UUID, ...]
    evict: tuple[UUID, ...]


def refill(shelves: Sequence[Shelf], next_pools: Mapping[UUID, UUID]) -> Refill:
    """Return the steps to what the pools want. ``shelves`` come pool by pool, in the order of their priority.

    What a full node cannot hold is held by the other nodes of its pool instead, and by those of the next pool
    (``next_pools``, by pool) when that is full too, so that warm capacity exists somewhere. One new placeholder per
    node and round: they share its processors.
    """
    goals = _goals(shelves, next_pools)
    make: list[UUID] = []
    evict: list[UUID] = []
    for shelf in shelves:
        goal = goals[shelf.node_id]
        evict += shelf.held[goal:]
        if len(shelf.held) < goal and shelf.calm:
            make.append(shelf.node_id)
    return Refill(make=tuple(make), evict=tuple(evict))


def _goals(shelves: Sequence[Shelf], next_pools: Mapping[UUID, UUID]) -> dict[UUID, int]:
    """Return how many placeholders each node shall have, of what fits there."""
    goals: dict[UUID, int] = {}
    carried: Counter[UUID] = Counter()
    for pool_id, group in groupby(shelves, key=lambda shelf: shelf.pool_id):
        pool = list(group)
        missing = carried[pool_id]
        for shelf in pool:
            goals[shelf.node_id] = min(shelf.wanted, shelf.room)
            missing += shelf.wanted - goals[shelf.node_id]
        while missing and (open_shelves := [shelf for shelf in pool if goals[shelf.node_id] < shelf.room]):
            goals[min(open_shelves, key=lambda shelf: _cost(shelf, goals[shelf.node_id])).node_id] += 1
            missing -= 1
        if (following := next_pools.get(pool_id)) is not None:
            carried[following] += missing
    return goals


def _cost(shelf: Shelf, goal: int) -> tuple[bool, int, str]:
    """Order nodes for one more: those that hold it already, then those with the fewest."""
    return (goal >= len(shelf.held), goal, shelf.name)
