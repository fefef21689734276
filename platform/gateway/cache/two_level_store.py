"""The prediction cache's two levels: the memory of this process, and Redis for all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

from caching import store
from caching.entry import Entry
from caching.memory_cache import MemoryCache
from caching.store import CacheWrite
from gateway import metrics
from gateway.redis_client.client import RedisClient
from gateway.redis_client.connection import RedisFailed, Script
from tenants.ids import TenantId

#: Metric label for each STORE refusal code.
_REFUSALS: Mapping[int, metrics.CacheStore] = {
    store.TOO_MANY_WRITES: "write_rate",
    store.TOO_LARGE: "quota",
    store.NO_ROOM: "quota",
}
STORE, USED = Script.of(store.STORE), Script.of(store.USED)
#: How often uses are reported to Redis, seconds, and how many of one tenant in one report.
REPORT_SECONDS = 1.0
MAX_REPORTED = 500
#: Larger entries are packed and unpacked in a thread: they would block the event loop for 1 to 12 ms.
INLINE_BYTES = 64 * 1024


class PredictionCache:
    """Both levels of the prediction cache, as one gateway process uses them. No request waits for a store."""

    def __init__(self, redis: RedisClient, max_bytes: int) -> None:
        """``redis``: the Redis of the prediction cache. ``max_bytes``: limit of this process's level."""
        redis.register(STORE, USED)
        self._redis = redis
        self._local = MemoryCache(max_bytes)
        self._used: dict[TenantId, set[bytes]] = {}
        self._packing: set[asyncio.Future[CacheWrite | None]] = set()

    def get_local(self, tenant_id: UUID, name: bytes) -> Entry | None:
        """Return this process's entry. The caller decides whether it may be returned to the client."""
        return self._local.get(tenant_id, name)

    def put(self, entry: Entry, pack: Callable[[], CacheWrite | None]) -> None:
        """Pack an entry, in a thread if it is large, and :meth:`store` it unless it exceeds its quota."""
        if len(entry.body) <= INLINE_BYTES:
            self._packed(entry, pack())
            return
        packing = asyncio.ensure_future(asyncio.to_thread(pack))
        self._packing.add(packing)
        packing.add_done_callback(self._packing.discard)
        packing.add_done_callback(lambda done: None if done.cancelled() else self._packed(entry, done.result()))

    def store(self, write: CacheWrite, entry: Entry) -> None:
        """Store an entry in Redis, and then locally if Redis accepted it or is unavailable."""
        self._redis.eval_then(STORE, *write.arguments(), on_reply=partial(self._stored, write, entry))

    def promote(self, tenant_id: UUID, name: bytes, entry: Entry) -> None:
        """Store an entry locally that came from Redis and passed its check."""
        self._put(tenant_id, name, entry, entry.ttl_seconds - entry.age_seconds())

    def touch(self, tenant_id: TenantId, name: bytes) -> None:
        """Record a use of an entry, so that Redis evicts others before it."""
        if not self._used:
            asyncio.get_running_loop().call_later(REPORT_SECONDS, self._report_used)
        used = self._used.setdefault(tenant_id, set())
        if len(used) < MAX_REPORTED:
            used.add(name)

    def local_bytes(self) -> int:
        """Return the size of this process's level, overhead included, bytes."""
        return self._local.bytes

    async def close(self) -> None:
        """Finish the stores in progress. The Redis client must still be open."""
        if self._packing:
            await asyncio.wait(self._packing)
        self.clear_local()

    def clear_local(self) -> None:
        """Empty this process's level."""
        self._local = MemoryCache(self._local.max_bytes)

    def _packed(self, entry: Entry, write: CacheWrite | None) -> None:
        if write is None:
            metrics.cache_stored("quota")
        else:
            self.store(write, entry)

    def _stored(self, write: CacheWrite, entry: Entry, result: Sequence[int] | RedisFailed) -> None:
        if isinstance(result, RedisFailed):
            outcome = store.STORED
            metrics.cache_stored("failed")
        else:
            outcome, evicted = result
            metrics.cache_stored(_REFUSALS.get(outcome, "stored"))
            metrics.cache_evicted("redis", evicted)
        if outcome == store.STORED:
            self._put(write.tenant_id, write.name, entry, write.ttl_seconds)

    def _put(self, tenant_id: UUID, name: bytes, entry: Entry, seconds: float) -> None:
        before = self._local.evicted
        self._local.put(tenant_id, name, entry, seconds)
        metrics.cache_evicted("first", self._local.evicted - before)

    def _report_used(self) -> None:
        used, self._used = self._used, {}
        for tenant_id, names in used.items():
            self._redis.fire_script(USED, 1, store.used_key(tenant_id), *[name.hex() for name in names])
