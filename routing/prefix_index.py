"""Which replica has seen the beginning of a prompt: a bounded map from link to replicas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from routing.prefix_hash import PrefixHashes

R = TypeVar("R", bound=Hashable)


class PrefixIndex(Generic[R]):
    """Links seen per replica, least recently used forgotten first.

    Links that the same replicas have seen share one set of them: replicas are few, and one entry then costs about 170
    bytes (measured), so the default capacity bounds the index at about 45 MB. Not thread-safe.
    """

    def __init__(self, capacity: int = 262_144) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._capacity = capacity
        self._links: OrderedDict[bytes, frozenset[R]] = OrderedDict()
        #: Each set of replicas that some link was seen by, once.
        self._groups: dict[frozenset[R], frozenset[R]] = {}
        #: The set of one replica alone.
        self._alone: dict[R, frozenset[R]] = {}

    def __len__(self) -> int:
        return len(self._links)

    def depths(self, chain: PrefixHashes) -> dict[R, int]:
        """Return how many leading links each replica has seen, for replicas that have seen at least one."""
        found: dict[R, int] = {}
        alive: frozenset[R] | None = None
        for depth, link in enumerate(chain.hashes, start=1):
            seen = self._links.get(link)
            if not seen:
                break
            alive = seen if alive is None or alive is seen else alive & seen
            if not alive:
                break
            for replica in alive:
                found[replica] = depth
        return found

    def insert(self, chain: PrefixHashes, replica: R) -> None:
        """Remember that the replica is about to compute this prompt. Call it on dispatch, so siblings follow."""
        links = self._links
        alone = self._alone.get(replica)
        if alone is None:
            alone = self._alone[replica] = self._group(frozenset((replica,)))
        # Deepest first, so that when room is short the tail of a chain is forgotten before its head.
        for link in reversed(chain.hashes):
            seen = links.get(link)
            if seen is None:
                links[link] = alone
                continue
            if seen is not alone and replica not in seen:
                links[link] = self._group(seen | alone)
            links.move_to_end(link)
        while len(links) > self._capacity:
            links.popitem(last=False)

    def forget(self, replica: R) -> None:
        """Drop a replica whose cache is gone (stopped, restarted, reset). Costs a pass over the index."""
        before, self._groups = self._groups, {}
        self._alone.clear()
        after = {group: self._group(group - {replica}) for group in before}
        for link, seen in list(self._links.items()):
            if after[seen]:
                self._links[link] = after[seen]
            else:
                del self._links[link]

    def _group(self, replicas: frozenset[R]) -> frozenset[R]:
        return self._groups.setdefault(replicas, replicas)
