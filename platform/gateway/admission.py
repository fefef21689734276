"""Admit a request and look its answer up, in one round trip to Redis.

Redis may be slow, paused or gone: nobody waits longer than the configured time for it. After FAILURES_TO_OPEN
failures in a row it is left alone for OPEN_SECONDS; meanwhile limits are counted in this process and every lookup is
a miss.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from gateway import errors
from gateway.limits import MINUTE_US, SCRIPT, LocalBuckets, Verdict
from tenants import keyspace
from tenants.snapshot import Caller

FAILURES_TO_OPEN = 5
OPEN_SECONDS = 1.0
#: Requests that talk to Redis at once; the rest wait for their turn, in the same time. redis-py's pool refuses the
#: 101st connection, which would look like a Redis that is away.
MAX_CONVERSATIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What Redis said: the limit's verdict (None: unlimited) and the stored answer, if one was looked for."""

    verdict: Verdict | None
    stored: bytes | None


class Admission:
    """Limits and lookups. ``limits`` and ``cache`` may be the same Redis; then both travel together."""

    def __init__(self, limits: Redis, cache: Redis, *, timeout_seconds: float) -> None:
        self._limits = limits
        self._cache = cache
        self._timeout = timeout_seconds
        self._turn = asyncio.Semaphore(MAX_CONVERSATIONS)
        self._local = LocalBuckets()
        self._sha = ""
        self._failures = 0
        self._closed_until = 0.0

    async def admit(self, caller: Caller, answer_key: str | None) -> Admitted:
        """Take one request from the tenant's limit and fetch ``answer_key``. Raises RateLimited."""
        limit = caller.policy.requests_per_minute
        if limit == 0:
            raise _refusal(Verdict(admitted=False, limit=0, remaining=0, wait_us=MINUTE_US))
        if limit is None and answer_key is None:
            return Admitted(verdict=None, stored=None)
        bucket = keyspace.redis_key(caller, "requests-per-minute")
        found = await self._ask(bucket, limit, answer_key)
        verdict, stored = found if found is not None else (None, None)
        if limit is not None and verdict is None:
            verdict = self._local.take(bucket, limit)
        if verdict is not None and not verdict.admitted:
            raise _refusal(verdict)
        return Admitted(verdict=verdict, stored=stored)

    async def find(self, key: str) -> bytes | None:
        """Fetch one stored answer; a Redis that cannot is a miss."""
        if not self._open():
            return None
        try:
            async with asyncio.timeout(self._timeout), self._turn:
                found: Any = await self._cache.get(key)
        except (RedisError, OSError, TimeoutError):
            self._failed()
            return None
        self._failures = 0
        return found if isinstance(found, bytes) else None

    async def store(self, key: str, value: bytes, ttl_seconds: int) -> None:
        """Keep an answer; a Redis that cannot is not an error."""
        if not self._open():
            return
        try:
            async with asyncio.timeout(self._timeout), self._turn:
                await self._cache.set(key, value, ex=max(1, ttl_seconds))
        except (RedisError, OSError, TimeoutError):
            self._failed()
        else:
            self._failures = 0

    async def _ask(
        self, bucket: str, limit: int | None, answer_key: str | None
    ) -> tuple[Verdict | None, bytes | None] | None:
        if not self._open():
            return None
        try:
            async with asyncio.timeout(self._timeout), self._turn:
                answers = await self._round_trip(bucket, limit, answer_key)
        except (RedisError, OSError, TimeoutError):
            self._failed()
            return None
        self._failures = 0
        stored = answers.pop() if answer_key is not None else None
        if limit is None:
            return None, stored
        admitted, remaining, wait_us = answers[0]
        return Verdict(admitted=bool(admitted), limit=limit, remaining=remaining, wait_us=wait_us), stored

    async def _round_trip(self, bucket: str, limit: int | None, answer_key: str | None) -> list[Any]:
        """Return the limit's answer, if there is one, then the stored value, if one was asked for."""
        together = self._limits is self._cache
        pipeline = self._limits.pipeline(transaction=False)
        if limit is not None:
            if not self._sha:
                self._sha = await self._limits.script_load(SCRIPT)
            pipeline.evalsha(self._sha, 1, bucket, str(limit))
        if answer_key is not None and together:
            pipeline.get(answer_key)
        answers: list[Any] = await pipeline.execute(raise_on_error=False) if len(pipeline) else []
        if answer_key is not None and not together:
            answers.append(await self._cache.get(answer_key))
        for answer in answers:
            if isinstance(answer, NoScriptError):
                self._sha = ""  # Redis was restarted and forgot the script; the next request loads it
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _open(self) -> bool:
        return time.monotonic() >= self._closed_until

    def _failed(self) -> None:
        self._failures += 1
        if self._failures >= FAILURES_TO_OPEN:
            self._closed_until = time.monotonic() + OPEN_SECONDS


def _refusal(verdict: Verdict) -> errors.RateLimited:
    refusal = errors.rate_limited(verdict.limit, verdict.wait_us / 1e6)
    refusal.headers.extend(verdict.headers())
    return refusal
