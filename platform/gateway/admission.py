"""Admit a request and look its answer up, in one turn of the conversation with Redis.

While Redis is away limits are counted in this process and lookups find what this process stored lately (see
``gateway.turns``).
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from redis.exceptions import NoScriptError

from caching.recent import Recent
from gateway import errors, telemetry
from gateway.limits import MINUTE_US, SCRIPT, LocalBuckets, Verdict
from gateway.messages import Headers
from gateway.turns import FAILURES, Turns
from tenants import keyspace
from tenants.snapshot import Caller

#: How Redis names a script (SCRIPT LOAD): not a secret, not a seal.
SCRIPT_SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
#: Of answers this process keeps at hand.
RECENT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one request needs. ``answer_key`` None: nothing is looked up. ``limited`` False: it was counted before."""

    caller: Caller
    model_name: str
    request_id: UUID
    #: Reserved by estimate, prompt and answer; settled by what was used.
    tokens: int
    #: The most that it can cost until :meth:`Ticket.extend`; 0 where no budget asks.
    hold_pico: int
    answer_key: str | None
    limited: bool = True


class Ticket:
    """An admitted request's claim on its limits and budgets; :meth:`settle` ends it."""

    def __init__(self, *, stored: bytes | None, verdict: Verdict | None) -> None:
        #: The sealed answer, if one was looked for and found.
        self.stored = stored
        self._verdict = verdict

    def headers(self) -> Headers:
        """Return the ``x-ratelimit-*`` headers of the limit that is nearest to refusing."""
        return self._verdict.headers() if self._verdict else []

    def settle(self, *, tokens: int, amount_pico: int) -> None:
        """Give back what was reserved beyond this. Nobody waits for it; the second call does nothing."""

    async def extend(self, *, hold_pico: int) -> None:
        """Hold so much more. Raises BudgetExceeded."""


class Admission:
    """Limits and lookups. ``limits`` and ``cache`` may be the same conversation; then both travel together."""

    def __init__(self, limits: Turns, cache: Turns) -> None:
        self._limits = limits
        self._cache = cache
        self._local = LocalBuckets()
        self._recent = Recent(RECENT_BYTES)

    async def admit(self, demand: Demand) -> Ticket:
        """Take the request from every limit and fetch its answer, all or nothing. Raises RateLimited."""
        limit = demand.caller.policy.requests_per_minute if demand.limited else None
        if limit == 0:
            raise _refusal(Verdict(admitted=False, limit=0, remaining=0, wait_us=MINUTE_US))
        # Sent before anything is awaited, so that it shares the limit's turn.
        key = demand.answer_key
        recent = self._recent.get(key) if key is not None else None
        lookup = self._cache.send("GET", key) if key is not None and recent is None else None
        verdict = await self._take(demand.caller, limit) if limit is not None else None
        if verdict is not None and not verdict.admitted:
            raise _refusal(verdict)
        return Ticket(stored=await _found(lookup) if lookup is not None else recent, verdict=verdict)

    def store(self, key: str, value: bytes, ttl_seconds: int) -> None:
        """Keep an answer. Nobody waits for it: this process has it at hand, whatever becomes of it in Redis."""
        ttl_seconds = max(1, ttl_seconds)
        self._recent.put(key, value, ttl_seconds)
        self._cache.send("SET", key, value, "EX", ttl_seconds)

    async def _take(self, caller: Caller, limit: int) -> Verdict:
        bucket = keyspace.redis_key(caller, "requests-per-minute")
        try:
            try:
                answer = await self._limits.send("EVALSHA", SCRIPT_SHA, 1, bucket, limit)
            except NoScriptError:  # a Redis that has just started; EVAL also teaches it the script
                answer = await self._limits.send("EVAL", SCRIPT, 1, bucket, limit)
        except FAILURES:
            return self._local.take(bucket, limit)
        admitted, remaining, wait_us = answer
        return Verdict(admitted=bool(admitted), limit=limit, remaining=remaining, wait_us=wait_us)


async def _found(lookup: asyncio.Future[Any]) -> bytes | None:
    try:
        found = await lookup
    except FAILURES:
        return None
    return found if isinstance(found, bytes) else None


def _refusal(verdict: Verdict) -> errors.RateLimited:
    telemetry.limit_refused("requests_per_minute")
    refusal = errors.rate_limited(verdict.limit, verdict.wait_us / 1e6)
    refusal.headers.extend(verdict.headers())
    return refusal
