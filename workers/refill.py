"""Decide which placeholders to make and which are too many, from facts alone: no database, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refill:
    """Nodes that get a placeholder, once for each, and placeholders to evict."""

    make: tuple[UUID, ...]
    evict: tuple[UUID, ...]


def refill(shelves: Sequence[Shelf], next_pools: Mapping[UUID, UUID]) -> Refill:
    """Return the steps to what the pools want. ``shelves`` come in the order of their pools' priority.

    What a full node cannot hold is held in the next pool (``next_pools``, by pool) instead, spread over its nodes, so
    that warm capacity exists somewhere. One new placeholder per node and round: they share its processors.
    """
    carried: dict[UUID, int] = {}
    make: list[UUID] = []
    evict: list[UUID] = []
    for shelf in shelves:
        room = shelf.free + len(shelf.held)
        extra = min(carried.get(shelf.pool_id, 0), max(0, room - shelf.wanted))
        carried[shelf.pool_id] = carried.get(shelf.pool_id, 0) - extra
        wanted = shelf.wanted + extra
        rest = wanted - room
        if rest > 0 and (following := next_pools.get(shelf.pool_id)) is not None:
            carried[following] = carried.get(following, 0) + rest
        if len(shelf.held) > wanted:
            evict += shelf.held[wanted:]
        elif len(shelf.held) < min(wanted, room) and shelf.calm:
            make.append(shelf.node_id)
    return Refill(make=tuple(make), evict=tuple(evict))
