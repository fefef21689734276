"""Which replicas have seen the beginning of a prompt: a bounded map from prefix hash to replicas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from routing.prefix_hash import PrefixHashes

R = TypeVar("R", bound=Hashable)


class PrefixIndex(Generic[R]):
    """Hashes seen per replica, evicting the least recently used.

    Hashes seen by the same replicas share one set. As replicas are few, an entry takes about 170 bytes (measured), so
    the default capacity bounds the index at about 45 MB. Not thread-safe.
    """

    def __init__(self, capacity: int = 262_144) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._capacity = capacity
        self._seen: OrderedDict[bytes, frozenset[R]] = OrderedDict()
        #: Each distinct set of replicas, once.
        self._groups: dict[frozenset[R], frozenset[R]] = {}
        #: The set of each single replica.
        self._alone: dict[R, frozenset[R]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def depths(self, prefix: PrefixHashes) -> dict[R, int]:
        """Return how many leading hashes each replica has seen, for replicas that have seen at least one."""
        found: dict[R, int] = {}
        alive: frozenset[R] | None = None
        for depth, prefix_hash in enumerate(prefix.hashes, start=1):
            seen = self._seen.get(prefix_hash)
            if not seen:
                break
            alive = seen if alive is None or alive is seen else alive & seen
            if not alive:
                break
            for replica in alive:
                found[replica] = depth
        return found

    def insert(self, prefix: PrefixHashes, replica: R) -> None:
        """Record that a replica is about to process this prompt. Call it on dispatch, so that similar prompts
        follow."""
        entries = self._seen
        alone = self._alone.get(replica)
        if alone is None:
            alone = self._alone[replica] = self._group(frozenset((replica,)))
        # Deepest first, so that the tail of a chain is evicted before its head.
        for prefix_hash in reversed(prefix.hashes):
            seen = entries.get(prefix_hash)
            if seen is None:
                entries[prefix_hash] = alone
                continue
            if seen is not alone and replica not in seen:
                entries[prefix_hash] = self._group(seen | alone)
            entries.move_to_end(prefix_hash)
        while len(entries) > self._capacity:
            entries.popitem(last=False)

    def forget(self, replica: R) -> None:
        """Remove a replica whose cache is gone (stopped, restarted, reset). Scans the whole index."""
        before, self._groups = self._groups, {}
        self._alone.clear()
        after = {group: self._group(group - {replica}) for group in before}
        for prefix_hash, seen in list(self._seen.items()):
            if after[seen]:
                self._seen[prefix_hash] = after[seen]
            else:
                del self._seen[prefix_hash]

    def _group(self, replicas: frozenset[R]) -> frozenset[R]:
        return self._groups.setdefault(replicas, replicas)
