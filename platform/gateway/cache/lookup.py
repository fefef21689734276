"""Look up a stored response: first in this process, then in Redis. Each lookup is counted."""

from __future__ import annotations

import asyncio

import msgspec

from caching.entry import Entry
from gateway import metrics
from gateway.cache.policy import CachePolicy
from gateway.cache.two_level_store import INLINE_BYTES, PredictionCache
from gateway.protocols.request_body import Call
from tenants.snapshot.snapshot import Caller


class CacheHit(msgspec.Struct, frozen=True):
    """A stored response that may be returned. ``body`` is in the shape that the client asked for."""

    entry: Entry
    body: bytes


class CacheLookup(msgspec.Struct, frozen=True):
    """The lookup of one request."""

    prediction_cache: PredictionCache
    policy: CachePolicy
    caller: Caller
    call: Call
    model_name: str

    def local(self) -> CacheHit | None:
        """Return this process's entry if it may be returned and can be rendered."""
        if self.policy.name is None or self.policy.bypass is not None:
            return None
        entry = self.prediction_cache.get_local(self.caller.tenant_id, self.policy.name)
        if entry is None:
            metrics.cache_looked_up("first", "miss")
            return None
        return self._hit("first", entry)

    async def from_redis(self, stored: bytes | None) -> CacheHit | None:
        """Return the entry that Redis returned if it is unaltered, fresh and can be rendered; keep it locally too."""
        if self.policy.name is None or self.policy.bypass is not None:
            return None
        if stored is None:
            metrics.cache_looked_up("redis", "miss")
            # Another request may have stored it here since; the query to Redis may also have failed.
            local = self.prediction_cache.get_local(self.caller.tenant_id, self.policy.name)
            return self._hit("first", local) if local is not None else None
        if len(stored) <= INLINE_BYTES:
            entry = self.policy.unpack(stored)
        else:
            entry = await asyncio.to_thread(self.policy.unpack, stored)
        if entry is None:
            metrics.cache_looked_up("redis", "altered")
            return None
        hit = self._hit("redis", entry)
        if hit is not None:
            self.prediction_cache.promote(self.caller.tenant_id, self.policy.name, entry)
        return hit

    def _hit(self, level: metrics.CacheLevel, entry: Entry) -> CacheHit | None:
        if not self.policy.is_fresh(self.caller, self.model_name, entry):
            metrics.cache_looked_up(level, "stale")
            return None
        body = self.call.render(entry.body)
        if body is None:
            metrics.cache_looked_up(level, "no_stream")
            return None
        metrics.cache_looked_up(level, "hit")
        return CacheHit(entry, body)
