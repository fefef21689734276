"""Where answers are kept: at hand in this process, and in Redis for all."""

from __future__ import annotations

import asyncio
from uuid import UUID

from caching import store
from caching.entry import Entry
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
        """``turns``: with the Redis of answers. ``max_bytes``: what this process has at hand at most."""
        turns.teach(STORE, USED)
        self._turns = turns
        self._recent = Recent(max_bytes)
        self._used: dict[TenantId, set[bytes]] = {}

    def at_hand(self, tenant_id: UUID, name: bytes) -> Entry | None:
        """Return the entry that this process has of a name. Whether it may be given is the caller's to say."""
        return self._recent.get(tenant_id, name)

    def store(self, deposit: Deposit, entry: Entry) -> None:
        """Keep an entry if Redis finds room for it; while Redis is away, in this process alone."""
        told = self._turns.call(STORE, *deposit.arguments())
        told.add_done_callback(lambda outcome: self._stored(deposit, entry, outcome))

    def found(self, tenant_id: UUID, name: bytes, entry: Entry) -> None:
        """Have an entry at hand that Redis had and that passed its check."""
        self._recent.put(tenant_id, name, entry, entry.ttl_seconds - entry.age_seconds())

    def given(self, tenant_id: TenantId, name: bytes) -> None:
        """Take note that an entry is given, so that Redis evicts others before it."""
        if not self._used:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._tell_used)
        used = self._used.setdefault(tenant_id, set())
        if len(used) < MOST_TOLD:
            used.add(name)

    def forget(self) -> None:
        """Have nothing at hand any more, as a process that has just begun."""
        self._recent = Recent(self._recent.max_bytes)

    def _stored(self, deposit: Deposit, entry: Entry, told: Answer) -> None:
        if told.cancelled():
            return
        failure = told.exception()
        if isinstance(failure, RedisFailed) or (failure is None and told.result()[0] == store.STORED):
            self._recent.put(deposit.tenant_id, deposit.name, entry, deposit.ttl_seconds)

    def _tell_used(self) -> None:
        used, self._used = self._used, {}
        for tenant_id, names in used.items():
            self._turns.tell_script(USED, 1, store.used_key(tenant_id), *[name.hex() for name in names])
