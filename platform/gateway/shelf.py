"""Where answers are kept: at hand in this process, and in Redis for all."""

from __future__ import annotations

import asyncio
from uuid import UUID

from caching import store
from caching.recent import Recent
from caching.store import Deposit
from gateway.resp import RedisFailed, Script
from gateway.turns import Answer, Turns
from tenants.ids import TenantId

STORE, USED = Script.of(store.STORE), Script.of(store.USED)
#: How long uses are gathered before Redis is told, seconds, and how many of one tenant are told at once.
GATHER_SECONDS = 1.0
MOST_TOLD = 500


class Shelf:
    """Both levels of the prediction cache, as one gateway process sees them. Nobody waits for what is stored."""

    def __init__(self, turns: Turns, max_bytes: int) -> None:
        turns.teach(STORE, USED)
        self._turns = turns
        self._recent = Recent(max_bytes)
        self._used: dict[TenantId, set[str]] = {}

    def at_hand(self, tenant_id: UUID, key: str) -> bytes | None:
        """Return the entry that this process has of a Redis key."""
        return self._recent.get(tenant_id, key)

    def store(self, deposit: Deposit) -> None:
        """Keep an entry if Redis finds room for it; while Redis is away, in this process alone."""
        told = self._turns.call(STORE, *deposit.arguments())
        told.add_done_callback(lambda outcome: self._stored(deposit, outcome))

    def found(self, tenant_id: TenantId, name: bytes, value: bytes, left_seconds: float) -> None:
        """Take note that an entry is given: it is used, and from now on at hand.

        One that is at hand already stays so no longer for it: Redis is asked again each ``recent.MAX_SECONDS``.
        """
        key = store.entry_key(tenant_id, name.hex())
        if self._recent.get(tenant_id, key) is None:
            self._recent.put(tenant_id, key, value, left_seconds)
        if not self._used:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell_used)
        used = self._used.setdefault(tenant_id, set())
        if len(used) < MOST_TOLD:
            used.add(name.hex())

    def forget(self) -> None:
        """Have nothing at hand any more, as a process that has just begun."""
        self._recent = Recent(self._recent.max_bytes)

    def _stored(self, deposit: Deposit, told: Answer) -> None:
        if told.cancelled():
            return
        failure = told.exception()
        if isinstance(failure, RedisFailed) or (failure is None and told.result()[0] == store.STORED):
            self._recent.put(deposit.tenant_id, deposit.redis_key, deposit.value, deposit.ttl_seconds)

    def _tell_used(self) -> None:
        used, self._used = self._used, {}
        for tenant_id, names in used.items():
            self._turns.tell_script(USED, 1, store.used_key(tenant_id), *names)
