"""Blocks in host memory, as vLLM 0.32 keeps them with ``--kv-offloading-size`` (v1/kv_offload/cpu/manager.py).

The blocks of each prompt are copied there when they are computed, so host memory also has what the cache has. Those of
answers are not (``offload_prompt_only``). When it is full, what was used longest ago is overwritten, tails first. A
prompt of which it holds more than the cache does gets these blocks back by a copy, while the engine computes others.

Unlike vLLM, two prompts that need one block at the same time both copy it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile


class HostTier:
    """The hashes of the blocks in host memory, least recently used first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._held: OrderedDict[bytes, None] = OrderedDict()
        #: Blocks that were ever stored.
        self.stored = 0

    def match(self, keys: Iterable[bytes]) -> int:
        """Return how many leading blocks it holds."""
        return sum(1 for _ in takewhile(self._held.__contains__, keys))

    def use(self, keys: Sequence[bytes]) -> None:
        """Store the leading blocks of a prompt that are not there, and count all as used, the last one first."""
        for key in reversed(keys):
            if key not in self._held:
                self.stored += 1
                self._held[key] = None
            self._held.move_to_end(key)
        while len(self._held) > self.blocks:
            self._held.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._held.clear()
