"""Look for a stored answer: what this process has at hand first, then what Redis had. Each look is counted."""

from __future__ import annotations

import asyncio

import msgspec

from caching.entry import Entry
from gateway import metrics
from gateway.cache import policy
from gateway.cache.policy import Answer
from gateway.cache.two_level_store import PACKED_AT_ONCE_BYTES, Shelf
from gateway.protocols.request_body import Call
from tenants.snapshot import Caller


class Stored(msgspec.Struct, frozen=True):
    """A stored answer that may be given, and what the client is told of it, in the shape that it asked for."""

    entry: Entry
    told: bytes


class Lookup(msgspec.Struct, frozen=True):
    """What is looked for, and for whom."""

    shelf: Shelf
    answer: Answer
    caller: Caller
    call: Call
    model_name: str

    def at_hand(self) -> Stored | None:
        """Return what this process has, if it may be given and can be told."""
        if self.answer.name is None or self.answer.bypass is not None:
            return None
        entry = self.shelf.at_hand(self.caller.tenant_id, self.answer.name)
        if entry is None:
            metrics.cache_looked_up("first", "miss")
            return None
        return self._given("first", entry)

    async def in_redis(self, stored: bytes | None) -> Stored | None:
        """Return what Redis had, if it is what was stored, may be given and can be told; then it is at hand."""
        if self.answer.name is None or self.answer.bypass is not None:
            return None
        if stored is None:
            metrics.cache_looked_up("redis", "miss")
            # since Redis was asked, which may have failed
            kept = self.shelf.at_hand(self.caller.tenant_id, self.answer.name)
            return self._given("first", kept) if kept is not None else None
        if len(stored) <= PACKED_AT_ONCE_BYTES:
            entry = policy.unpack(self.answer, stored)
        else:
            entry = await asyncio.to_thread(policy.unpack, self.answer, stored)
        if entry is None:
            metrics.cache_looked_up("redis", "altered")
            return None
        found = self._given("redis", entry)
        if found is not None:
            self.shelf.found(self.caller.tenant_id, self.answer.name, entry)
        return found

    def _given(self, level: metrics.CacheLevel, entry: Entry) -> Stored | None:
        if not policy.may_be_given(self.answer, self.caller, self.model_name, entry):
            metrics.cache_looked_up(level, "stale")
            return None
        told = self.call.told(entry.body)
        if told is None:
            metrics.cache_looked_up(level, "no_stream")
            return None
        metrics.cache_looked_up(level, "hit")
        return Stored(entry, told)
