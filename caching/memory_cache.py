"""What this process stored or found lately: the level before Redis, which carries on while Redis is slow or gone."""

from __future__ import annotations

import time
from collections import OrderedDict
from uuid import UUID

from caching.entry import Entry

#: Other processes may have stored a fresher answer meanwhile: after this long Redis is asked again.
MAX_SECONDS = 60
#: What an entry takes beside its body: its name, its fields, its time and its place in a dictionary that grows.
OVERHEAD_BYTES = 1024


class _TenantEntries:
    """The entries of one tenant, the least recently used first: name → (when it is too old, entry)."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.bytes = 0
        self.entries: OrderedDict[bytes, tuple[float, Entry]] = OrderedDict()


class MemoryCache:
    """Entries that passed their check, by tenant and name: at most ``max_bytes``, with what keeping them takes.

    Room is made by the tenant that holds the most, with its least recently used: whoever holds less than its share,
    ``max_bytes`` divided by the tenants, loses nothing, whatever the others store.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        #: Entries that made room for others.
        self.evicted = 0
        self._shelves: dict[UUID, _TenantEntries] = {}

    def put(self, tenant_id: UUID, name: bytes, entry: Entry, seconds: float) -> None:
        """Keep an entry for so long, at most MAX_SECONDS. One larger than everything is not kept."""
        self.drop(tenant_id, name)
        size = _size(entry)
        if size > self.max_bytes:
            return
        shelf = self._shelves.get(tenant_id)
        if shelf is None:
            shelf = self._shelves[tenant_id] = _TenantEntries()
        shelf.entries[name] = (time.monotonic() + min(seconds, MAX_SECONDS), entry)
        shelf.bytes += size
        self.bytes += size
        while self.bytes > self.max_bytes:
            self._make_room(tenant_id)

    def get(self, tenant_id: UUID, name: bytes) -> Entry | None:
        """Return the entry unless it is too old."""
        shelf = self._shelves.get(tenant_id)
        found = shelf.entries.get(name) if shelf is not None else None
        if shelf is None or found is None:
            return None
        too_old_at, entry = found
        if too_old_at <= time.monotonic():
            self.drop(tenant_id, name)
            return None
        shelf.entries.move_to_end(name)
        return entry

    def drop(self, tenant_id: UUID, name: bytes) -> None:
        """Forget an entry, if it is there."""
        shelf = self._shelves.get(tenant_id)
        dropped = shelf.entries.pop(name, None) if shelf is not None else None
        if shelf is None or dropped is None:
            return
        size = _size(dropped[1])
        shelf.bytes -= size
        self.bytes -= size
        if not shelf.entries:
            del self._shelves[tenant_id]

    def _make_room(self, storing: UUID) -> None:
        share = self.max_bytes / len(self._shelves)
        if self._shelves[storing].bytes > share:
            largest = storing  # the usual case, without a look at every tenant
        else:
            largest = max(self._shelves, key=lambda tenant: self._shelves[tenant].bytes)
        self.drop(largest, next(iter(self._shelves[largest].entries)))
        self.evicted += 1


def _size(entry: Entry) -> int:
    return len(entry.body) + OVERHEAD_BYTES
