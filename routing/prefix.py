"""Which replica has seen the beginning of a prompt: a bounded map from link to replicas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from routing.chunks import Chain

R = TypeVar("R", bound=Hashable)


class PrefixIndex(Generic[R]):
    """Links seen per replica, least recently used forgotten first.

    One entry costs about 350 bytes (measured), so the default capacity bounds the index at about 90 MB.
    Not thread-safe.
    """

    def __init__(self, capacity: int = 262_144) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._capacity = capacity
        self._links: OrderedDict[bytes, set[R]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._links)

    def depths(self, chain: Chain) -> dict[R, int]:
        """Return how many leading links each replica has seen, for replicas that have seen at least one."""
        found: dict[R, int] = {}
        alive: set[R] | None = None
        for depth, link in enumerate(chain.links, start=1):
            seen = self._links.get(link)
            if not seen:
                break
            alive = set(seen) if alive is None else alive & seen
            if not alive:
                break
            for replica in alive:
                found[replica] = depth
        return found

    def insert(self, chain: Chain, replica: R) -> None:
        """Remember that the replica is about to compute this prompt. Call it on dispatch, so siblings follow."""
        links = self._links
        # Deepest first, so that when room is short the tail of a chain is forgotten before its head.
        for link in reversed(chain.links):
            seen = links.get(link)
            if seen is None:
                links[link] = {replica}
            else:
                seen.add(replica)
                links.move_to_end(link)
        while len(links) > self._capacity:
            links.popitem(last=False)

    def forget(self, replica: R) -> None:
        """Drop a replica whose cache is gone (stopped, restarted, reset). Costs a pass over the index."""
        empty = []
        for link, seen in self._links.items():
            seen.discard(replica)
            if not seen:
                empty.append(link)
        for link in empty:
            del self._links[link]
