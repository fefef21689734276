"""The KV cache: vLLM's block hashes, and a pool with its reuse and eviction order.

The hash is ``sha256_cbor`` of vLLM 0.32 (v1/core/kv_cache_utils.py). The order is that of
v1/core/block_pool.py: blocks of a finished request go to the end of the queue of free blocks, the last block
first, so that tails are evicted first.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import cbor2

from workers.simulated.engine.adapter import Adapter

DEFAULT_SEED = "vllm-none-hash"


@dataclass(frozen=True, slots=True)
class Stored:
    """Full blocks that can now be matched. ``token_ids`` are theirs, in order; ``salt`` is set on a first block."""

    hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: tuple[int, ...]
    salt: str | None
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """One block that was evicted. Another block may have the same hash, which can then be removed again."""

    hash: bytes


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every block was removed from the cache."""


Event = Stored | Removed | Cleared


class BlockHasher:
    """Computes the hash chains of one engine; ``seed`` None is vLLM's public constant."""

    def __init__(self, block_size: int, seed: str | None = None) -> None:
        self.block_size = block_size
        self._root = _digest(DEFAULT_SEED if seed is None else seed)

    def extend(
        self, hashes: list[bytes], tokens: Sequence[int], salt: str | None, adapter: Adapter | None = None
    ) -> None:
        """Append to ``hashes`` the hash of every full block of ``tokens`` that has none yet."""
        size = self.block_size
        for start in range(len(hashes) * size, len(tokens) // size * size, size):
            parent = hashes[-1] if hashes else self._root
            extra = () if adapter is None else (adapter.block_key,)
            if salt and start == 0:
                extra = (*extra, ("cache_salt", salt))
            hashes.append(_digest((parent, tuple(tokens[start : start + size]), extra or None)))


def _digest(value: object) -> bytes:
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


@dataclass(slots=True)
class BlockPool:
    """Blocks by number. Block 0 is vLLM's placeholder and never allocated, so ``total - 1`` can be used."""

    total: int
    pending: list[Event] = field(default_factory=list)
    _free: OrderedDict[int, None] = field(init=False)
    _references: list[int] = field(init=False)
    _hash_of: dict[int, bytes] = field(default_factory=dict)
    _holders: dict[bytes, dict[int, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._free = OrderedDict.fromkeys(range(1, self.total))
        self._references = [0] * self.total

    @property
    def usage(self) -> float:
        """Return the share of blocks that running requests use, 0 to 1."""
        return 1 - len(self._free) / max(self.total - 1, 1)

    @property
    def free(self) -> int:
        """Return how many blocks can be allocated, including cached ones."""
        return len(self._free)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks with the longest cached prefix of ``hashes``."""
        found: list[int] = []
        for key in hashes:
            holders = self._holders.get(key)
            if holders is None:
                break
            found.append(next(iter(holders)))
        return found

    def reference(self, blocks: Sequence[int]) -> None:
        """Add a reference to matched blocks, so that they are not evicted."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Allocate ``count`` blocks, evicting their contents. The caller has checked that ``free`` suffices."""
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def store(self, blocks: Sequence[int], stored: Stored) -> None:
        """Make full blocks match ``stored.hashes`` and record the event."""
        self.store_keys(blocks, stored.hashes)
        self.pending.append(stored)

    def store_keys(self, blocks: Sequence[int], keys: Sequence[bytes]) -> None:
        """Make full blocks match ``keys``."""
        for block, key in zip(blocks, keys, strict=True):
            self._hash_of[block] = key
            self._holders.setdefault(key, {})[block] = None

    def is_free(self, block: int) -> bool:
        """Return whether no sequence uses a block."""
        return not self._references[block]

    def release(self, blocks: Sequence[int]) -> None:
        """Release a request's blocks; cached ones can be matched until they are evicted."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Empty the cache; return False and change nothing while a request uses a block."""
        if len(self._free) != self.total - 1:
            return False
        self._hash_of.clear()
        self._holders.clear()
        self.pending.append(Cleared())
        return True

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.pending = self.pending, []
        return events

    def _forget(self, block: int) -> None:
        key = self._hash_of.pop(block, None)
        if key is None:
            return
        holders = self._holders[key]
        del holders[block]
        if not holders:
            del self._holders[key]
        self.pending.append(Removed(key))
