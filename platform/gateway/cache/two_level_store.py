"""Where answers are kept: at hand in this process, and in Redis for all."""

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

#: What of STORE's refusals is counted as which.
_REFUSALS: Mapping[int, metrics.CacheStore] = {
    store.TOO_MANY_WRITES: "write_rate",
    store.TOO_LARGE: "quota",
    store.NO_ROOM: "quota",
}
STORE, USED = Script.of(store.STORE), Script.of(store.USED)
#: How long uses are gathered before Redis is told, seconds, and how many of one tenant are told at once.
GATHER_SECONDS = 1.0
MOST_TOLD = 500
#: Packing or unpacking more takes over a millisecond, and up to 12 ms, in which nobody would be served.
PACKED_AT_ONCE_BYTES = 64 * 1024


class PredictionCache:
    """Both levels of the prediction cache, as one gateway process sees them. Nobody waits for what is stored."""

    def __init__(self, turns: RedisClient, max_bytes: int) -> None:
        """``turns``: with the Redis of answers. ``max_bytes``: what this process has at hand at most."""
        turns.register(STORE, USED)
        self._redis = turns
        self._recent = MemoryCache(max_bytes)
        self._used: dict[TenantId, set[bytes]] = {}
        self._packing: set[asyncio.Future[CacheWrite | None]] = set()

    def get_local(self, tenant_id: UUID, name: bytes) -> Entry | None:
        """Return the entry that this process has of a name. Whether it may be given is the caller's to say."""
        return self._recent.get(tenant_id, name)

    def put(self, entry: Entry, pack: Callable[[], CacheWrite | None]) -> None:
        """Pack an entry, beside the loop where that takes long, and :meth:`store` it unless its quota is too small."""
        if len(entry.body) <= PACKED_AT_ONCE_BYTES:
            self._packed(entry, pack())
            return
        packing = asyncio.ensure_future(asyncio.to_thread(pack))
        self._packing.add(packing)
        packing.add_done_callback(self._packing.discard)
        packing.add_done_callback(lambda done: None if done.cancelled() else self._packed(entry, done.result()))

    def store(self, deposit: CacheWrite, entry: Entry) -> None:
        """Keep an entry if Redis finds room for it; while Redis is away, in this process alone."""
        self._redis.eval_then(STORE, *deposit.arguments(), on_reply=partial(self._stored, deposit, entry))

    def promote(self, tenant_id: UUID, name: bytes, entry: Entry) -> None:
        """Have an entry at hand that Redis had and that passed its check."""
        self._put(tenant_id, name, entry, entry.ttl_seconds - entry.age_seconds())

    def touch(self, tenant_id: TenantId, name: bytes) -> None:
        """Take note that an entry is given, so that Redis evicts others before it."""
        if not self._used:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell_used)
        used = self._used.setdefault(tenant_id, set())
        if len(used) < MOST_TOLD:
            used.add(name)

    def local_bytes(self) -> int:
        """Return what this process has at hand, bytes, with what keeping it takes."""
        return self._recent.bytes

    async def close(self) -> None:
        """Store what is being packed. The conversation must still be open."""
        if self._packing:
            await asyncio.wait(self._packing)
        self.clear_local()

    def clear_local(self) -> None:
        """Have nothing at hand any more, as a process that has just begun."""
        self._recent = MemoryCache(self._recent.max_bytes)

    def _packed(self, entry: Entry, deposit: CacheWrite | None) -> None:
        if deposit is None:
            metrics.cache_stored("quota")
        else:
            self.store(deposit, entry)

    def _stored(self, deposit: CacheWrite, entry: Entry, told: Sequence[int] | RedisFailed) -> None:
        if isinstance(told, RedisFailed):
            outcome = store.STORED
            metrics.cache_stored("failed")
        else:
            outcome, evicted = told
            metrics.cache_stored(_REFUSALS.get(outcome, "stored"))
            metrics.cache_evicted("redis", evicted)
        if outcome == store.STORED:
            self._put(deposit.tenant_id, deposit.name, entry, deposit.ttl_seconds)

    def _put(self, tenant_id: UUID, name: bytes, entry: Entry, seconds: float) -> None:
        before = self._recent.evicted
        self._recent.put(tenant_id, name, entry, seconds)
        metrics.cache_evicted("first", self._recent.evicted - before)

    def _tell_used(self) -> None:
        used, self._used = self._used, {}
        for tenant_id, names in used.items():
            self._redis.fire_script(USED, 1, store.used_key(tenant_id), *[name.hex() for name in names])
