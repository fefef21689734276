"""Responses in this process's memory: the cache level before Redis, which works while Redis is unavailable."""

from __future__ import annotations

import time
from collections import OrderedDict
from uuid import UUID

from caching.entry import Entry

#: Longest time an entry is used without Redis: other processes may have stored a fresher response.
MAX_SECONDS = 60
#: Memory of an entry besides its body: name, fields, expiry time and dictionary slot.
OVERHEAD_BYTES = 1024


class _TenantEntries:
    """The entries of one tenant, least recently used first: name → (expiry by the monotonic clock, entry)."""

    __slots__ = ("bytes", "entries")

    def __init__(self) -> None:
        self.bytes = 0
        self.entries: OrderedDict[bytes, tuple[float, Entry]] = OrderedDict()


class MemoryCache:
    """Verified entries by tenant and name, in at most ``max_bytes`` including overhead.

    Eviction takes the least recently used entry of the tenant with the most bytes. A tenant below its share,
    ``max_bytes`` divided by the number of tenants, loses nothing, whatever the others store.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        #: Number of evicted entries.
        self.evicted = 0
        self._tenants: dict[UUID, _TenantEntries] = {}

    def put(self, tenant_id: UUID, name: bytes, entry: Entry, seconds: float) -> None:
        """Store an entry for ``seconds``, at most MAX_SECONDS. An entry larger than ``max_bytes`` is not stored."""
        self.drop(tenant_id, name)
        size = _size(entry)
        if size > self.max_bytes:
            return
        own = self._tenants.get(tenant_id)
        if own is None:
            own = self._tenants[tenant_id] = _TenantEntries()
        own.entries[name] = (time.monotonic() + min(seconds, MAX_SECONDS), entry)
        own.bytes += size
        self.bytes += size
        while self.bytes > self.max_bytes:
            self._evict_one(tenant_id)

    def get(self, tenant_id: UUID, name: bytes) -> Entry | None:
        """Return the entry unless it has expired."""
        own = self._tenants.get(tenant_id)
        found = own.entries.get(name) if own is not None else None
        if own is None or found is None:
            return None
        expires_at, entry = found
        if expires_at <= time.monotonic():
            self.drop(tenant_id, name)
            return None
        own.entries.move_to_end(name)
        return entry

    def drop(self, tenant_id: UUID, name: bytes) -> None:
        """Remove an entry, if present."""
        own = self._tenants.get(tenant_id)
        dropped = own.entries.pop(name, None) if own is not None else None
        if own is None or dropped is None:
            return
        size = _size(dropped[1])
        own.bytes -= size
        self.bytes -= size
        if not own.entries:
            del self._tenants[tenant_id]

    def _evict_one(self, storing: UUID) -> None:
        share = self.max_bytes / len(self._tenants)
        if self._tenants[storing].bytes > share:
            largest = storing  # the usual case, without a scan of all tenants
        else:
            largest = max(self._tenants, key=lambda tenant: self._tenants[tenant].bytes)
        self.drop(largest, next(iter(self._tenants[largest].entries)))
        self.evicted += 1


def _size(entry: Entry) -> int:
    return len(entry.body) + OVERHEAD_BYTES
