"""Which blocks one engine has cached, from the events it publishes. Pure: no sockets, no clock.

vLLM's events (``distributed/kv_events.py``) are incremental and carry prompts and salts; only hashes are kept here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

#: Attention kinds whose blocks form a prefix; sliding windows and state spaces give false matches.
PREFIX_KINDS = (None, "full_attention", "mla", "sink_full")
#: Only blocks in the device's memory can be used at once.
DEVICE_MEDIA = (None, "GPU")


class _Event(msgspec.Struct, kw_only=True):
    """The fields that are read from an event; prompts, salts and parents are skipped while decoding."""

    type: str
    block_hashes: list[bytes | int] = []
    medium: str | None = None
    group_idx: int = 0
    kv_cache_spec_kind: str | None = None


_batch = msgspec.msgpack.Decoder(tuple[float, list[_Event], Any])
_batch_without_rank = msgspec.msgpack.Decoder(tuple[float, list[_Event]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one batch changed: everything is dropped first if ``cleared``. Hashes are 32 bytes."""

    cleared: bool
    stored: tuple[bytes, ...]
    removed: tuple[bytes, ...]

    def __bool__(self) -> bool:
        return self.cleared or bool(self.stored or self.removed)


class BlockSet:
    """The hashes of one engine process, each with the number of blocks that store it."""

    def __init__(self) -> None:
        self._stores: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._stores)

    def hashes(self) -> tuple[bytes, ...]:
        """Return every hash in the set, in no order."""
        return tuple(self._stores)

    def clear(self) -> Change:
        """Empty the set."""
        self._stores.clear()
        return Change(cleared=True, stored=(), removed=())

    def apply(self, payload: bytes) -> Change:
        """Apply one batch as published and return what it changed. Raises ValueError if it is not a batch."""
        cleared = False
        before: dict[bytes, bool] = {}
        for event in _events(payload):
            if event.type == "AllBlocksCleared":
                cleared = True
                self._stores.clear()
                before = {}
            elif event.medium in DEVICE_MEDIA and event.kv_cache_spec_kind in PREFIX_KINDS:
                for block in event.block_hashes:
                    if isinstance(block, bytes):
                        before.setdefault(block, block in self._stores)
                        self._count(block, stored=event.type == "BlockStored")
        return Change(
            cleared=cleared,
            stored=tuple(block for block, had in before.items() if not had and block in self._stores),
            removed=tuple(block for block, had in before.items() if had and block not in self._stores),
        )

    def _count(self, block: bytes, *, stored: bool) -> None:
        if stored:
            self._stores[block] += 1
        elif self._stores[block] > 1:
            self._stores[block] -= 1
        else:
            del self._stores[block]


def _events(payload: bytes) -> list[_Event]:
    try:
        return _batch.decode(payload)[1]
    except msgspec.ValidationError:
        return _batch_without_rank.decode(payload)[1]
