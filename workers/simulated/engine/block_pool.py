"""The KV cache: vLLM's block hashes, and a pool with its reuse and eviction order.

The hash is ``sha256_cbor`` of vLLM 0.32 (v1/core/kv_cache_utils.py), the order that of
v1/core/block_pool.py: blocks of a finished request go to the end of the queue of free ones, its last block
first, so that tails are evicted first.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import cbor2

DEFAULT_SEED = "vllm-none-hash"


@dataclass(frozen=True, slots=True)
class Stored:
    """Full blocks that became findable. ``token_ids`` are theirs, in order; ``salt`` is set on a first block."""

    hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: tuple[int, ...]
    salt: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """One block that was evicted. The same hash may be held by another block and be removed again."""

    hash: bytes


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every block was forgotten."""


Event = Stored | Removed | Cleared


class BlockHasher:
    """The chain of hashes of one engine; ``seed`` None is vLLM's public constant."""

    def __init__(self, block_size: int, seed: str | None = None) -> None:
        self.block_size = block_size
        self._root = _digest(DEFAULT_SEED if seed is None else seed)

    def extend(self, hashes: list[bytes], tokens: Sequence[int], salt: str | None) -> None:
        """Append to ``hashes`` the hash of every full block of ``tokens`` that has none yet."""
        size = self.block_size
        for start in range(len(hashes) * size, len(tokens) // size * size, size):
            parent = hashes[-1] if hashes else self._root
            extra = (("cache_salt", salt),) if salt and start == 0 else None
            hashes.append(_digest((parent, tuple(tokens[start : start + size]), extra)))


def _digest(value: object) -> bytes:
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


@dataclass(slots=True)
class BlockPool:
    """Blocks by number. Block 0 is vLLM's placeholder and never given out, so ``total - 1`` can be used."""

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
        """Return the share of blocks that running requests hold, 0 to 1."""
        return 1 - len(self._free) / max(self.total - 1, 1)

    @property
    def free(self) -> int:
        """Return how many blocks could be given out, cached ones included."""
        return len(self._free)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks that hold the longest leading run of ``hashes``."""
        found: list[int] = []
        for key in hashes:
            holders = self._holders.get(key)
            if holders is None:
                break
            found.append(next(iter(holders)))
        return found

    def hold(self, blocks: Sequence[int]) -> None:
        """Take matched blocks, so that nobody evicts them."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, evicting what they held. The caller has seen that ``free`` suffices."""
        taken: list[int] = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def store(self, blocks: Sequence[int], stored: Stored) -> None:
        """Make full blocks findable under ``stored.hashes`` and note the event."""
        for block, key in zip(blocks, stored.hashes, strict=True):
            self._hash_of[block] = key
            self._holders.setdefault(key, {})[block] = None
        self.pending.append(stored)

    def release(self, blocks: Sequence[int]) -> None:
        """Give back a request's blocks: what is cached stays findable until it is evicted."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Forget every block; False, and nothing happens, while a request holds one."""
        if len(self._free) != self.total - 1:
            return False
        self._hash_of.clear()
        self._holders.clear()
        self.pending.append(Cleared())
        return True

    def take_events(self) -> list[Event]:
        """Return what happened since the last call."""
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
