"""What this process stored lately: the level before Redis, which also carries on while Redis is slow or gone."""

from __future__ import annotations

import time
from collections import OrderedDict

#: Other processes may have stored a fresher answer meanwhile: after this long Redis is asked again.
MAX_SECONDS = 60


class Recent:
    """Sealed entries by their Redis key, at most ``max_bytes`` of them; the least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        #: key → (when it is too old by the monotonic clock, value)
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def put(self, key: str, value: bytes, ttl_seconds: float) -> None:
        """Keep an entry for its time to live, at most MAX_SECONDS. One larger than everything is not kept."""
        self._drop(key)
        if len(value) > self._max_bytes:
            return
        self._entries[key] = (time.monotonic() + min(ttl_seconds, MAX_SECONDS), value)
        self._bytes += len(value)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def get(self, key: str) -> bytes | None:
        """Return the entry unless it is too old."""
        found = self._entries.get(key)
        if found is None:
            return None
        too_old_at, value = found
        if too_old_at <= time.monotonic():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def _drop(self, key: str) -> None:
        dropped = self._entries.pop(key, None)
        if dropped is not None:
            self._bytes -= len(dropped[1])
