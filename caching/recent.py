"""What this process stored or found lately: the level before Redis, which carries on while Redis is slow or gone."""

from __future__ import annotations

import time
from collections import OrderedDict
from uuid import UUID

#: Other processes may have stored a fresher answer meanwhile: after this long Redis is asked again.
MAX_SECONDS = 60
#: What an entry takes beside its value: its key, its times and its places in two dictionaries.
OVERHEAD_BYTES = 512


class _Shelf:
    """The entries of one tenant, the least recently used first: key → (when it is too old, value)."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.bytes = 0
        self.entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()


class Recent:
    """Sealed entries by tenant and Redis key, at most ``max_bytes`` of them with what keeping them takes.

    Room is made by the tenant that holds the most, with its least recently used: whoever holds less than its share,
    ``max_bytes`` divided by the tenants, loses nothing, whatever the others store.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        self._shelves: dict[UUID, _Shelf] = {}

    def put(self, tenant_id: UUID, key: str, value: bytes, ttl_seconds: float) -> None:
        """Keep an entry for its time to live, at most MAX_SECONDS. One larger than everything is not kept."""
        self.drop(tenant_id, key)
        size = len(value) + OVERHEAD_BYTES
        if size > self.max_bytes:
            return
        shelf = self._shelves.get(tenant_id)
        if shelf is None:
            shelf = self._shelves[tenant_id] = _Shelf()
        shelf.entries[key] = (time.monotonic() + min(ttl_seconds, MAX_SECONDS), value)
        shelf.bytes += size
        self._bytes += size
        while self._bytes > self.max_bytes:
            self._make_room(tenant_id)

    def get(self, tenant_id: UUID, key: str) -> bytes | None:
        """Return the entry unless it is too old."""
        shelf = self._shelves.get(tenant_id)
        found = shelf.entries.get(key) if shelf is not None else None
        if shelf is None or found is None:
            return None
        too_old_at, value = found
        if too_old_at <= time.monotonic():
            self.drop(tenant_id, key)
            return None
        shelf.entries.move_to_end(key)
        return value

    def drop(self, tenant_id: UUID, key: str) -> None:
        """Forget an entry, if it is there."""
        shelf = self._shelves.get(tenant_id)
        dropped = shelf.entries.pop(key, None) if shelf is not None else None
        if shelf is None or dropped is None:
            return
        size = len(dropped[1]) + OVERHEAD_BYTES
        shelf.bytes -= size
        self._bytes -= size
        if not shelf.entries:
            del self._shelves[tenant_id]

    def _make_room(self, storing: UUID) -> None:
        shares = self.max_bytes / len(self._shelves)
        if self._shelves[storing].bytes > shares:
            largest = storing  # the usual case, without a look at every tenant
        else:
            largest = max(self._shelves, key=lambda tenant: self._shelves[tenant].bytes)
        self.drop(largest, next(iter(self._shelves[largest].entries)))
