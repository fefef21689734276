"""Renew the leases of running requests in Redis, and repeat the end of a request that Redis missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from gateway.admission.limit_plan import RedisKeys
from gateway.admission.lua_scripts import RENEW
from gateway.redis_client.client import RedisClient, ReplyFuture, batches
from gateway.redis_client.connection import Argument, Script

#: Lifetime of a lease that is not renewed, which happens only when its process was killed.
LEASE_SECONDS = 30.0
#: Renewals per lifetime, so that one may fail.
RENEWALS = 3
#: Most ends that are kept to be repeated; the drain settles those that are dropped.
MAX_MISSED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EndScript:
    """An idempotent script that ends something. ``on_reply`` is called when Redis has run it."""

    script: Script
    arguments: tuple[Argument, ...]
    on_reply: Callable[[], None] = lambda: None


class LeaseRenewer:
    """Renews the leases of this process's requests RENEWALS times per lifetime, while there are any."""

    def __init__(self, redis: RedisClient, lease_seconds: float = LEASE_SECONDS) -> None:
        self._redis = redis
        self.lease_ms = int(lease_seconds * 1000)
        self._every_seconds = lease_seconds / RENEWALS
        self._leases: dict[str, set[UUID]] = {}
        self._missed: dict[tuple[str, UUID], EndScript] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, keys: tuple[str, ...], request_id: UUID) -> None:
        """Renew a request's leases, by their keys, until :meth:`remove`."""
        for key in keys:
            self._leases.setdefault(key, set()).add(request_id)
        self._schedule()

    def remove(self, keys: tuple[str, ...], request_id: UUID) -> None:
        """Stop renewing a request's leases."""
        for key in keys:
            running = self._leases.get(key)
            if running is not None:
                running.discard(request_id)
                if not running:
                    del self._leases[key]

    def end(self, keys: RedisKeys, request_id: UUID, end: EndScript) -> None:
        """Run a script that ends a request, repeated until Redis has run it."""
        self._missed.pop((keys.holds, request_id), None)
        self._run((keys.holds, request_id), end)

    def end_later(self, keys: RedisKeys, request_id: UUID, end: EndScript) -> None:
        """Do as :meth:`end`, in the next round."""
        if len(self._missed) < MAX_MISSED:
            self._missed[(keys.holds, request_id)] = end
            self._schedule()

    def end_now(self, keys: RedisKeys, request_id: UUID) -> None:
        """Run the end that Redis missed, if there is one, before the same request takes something anew."""
        missed = self._missed.pop((keys.holds, request_id), None)
        if missed is not None:
            self._run((keys.holds, request_id), missed)

    def _run(self, name: tuple[str, UUID], end: EndScript) -> None:
        self._redis.eval(end.script, *end.arguments).add_done_callback(partial(self._on_reply, name, end))

    def _on_reply(self, name: tuple[str, UUID], end: EndScript, reply: ReplyFuture) -> None:
        if reply.cancelled():
            return
        if reply.exception() is None:
            end.on_reply()
        elif len(self._missed) < MAX_MISSED:
            self._missed[name] = end
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every_seconds, self._renew)

    def _renew(self) -> None:
        self._timer = None
        if self._redis.closed:
            return
        missed, self._missed = self._missed, {}
        for name, end in missed.items():
            self._run(name, end)
        # Last: a request whose end was just repeated may still run here, and needs its lease.
        for key, running in self._leases.items():
            for batch in batches([each.hex for each in running]):
                self._redis.fire_script(RENEW, 1, key, self.lease_ms, *batch)
        if self._leases:
            self._schedule()
