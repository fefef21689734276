"""Keep sketches of a tenant's prompts in Redis, for its advisor: hashes alone, for a week, and a bounded number.

A sketch is made of requests that an engine runs. Of a busy project's it is made of some: which ones, the hash of the
prompt decides, so that a prompt that is sent again is chosen again. While Redis is unavailable sketches are lost.
"""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import orjson

from gateway.redis_client.client import RedisClient, batches
from gateway.request import RequestContext
from routing.prefixes import prompt_sketch
from routing.prefixes.prefix_hash import PrefixHashes
from routing.prefixes.prompt_sketch import KEPT_SECONDS, MAX_SKETCHES
from tenants.ids import TenantId
from tenants.isolation import keyspace

#: Sketches of one project in an hour, of this process.
HOURLY = 120
HOUR_SECONDS = 3600.0
#: Projects whose share is remembered, of this process: of more, all begin anew.
MAX_PROJECTS = 10_000
#: How long sketches are collected before they are sent, and how many at most.
SEND_SECONDS = 0.5
MAX_WAITING = 1_000
#: Fields that routing hashes, or that say nothing about the response.
_NO_PARAMETERS = frozenset({"model", "messages", "prompt", "input", "system", "instructions", "tools"})
#: A longer value of a parameter, such as a schema, is hashed like others; a larger body's value is not.
MAX_PARAMETER_BYTES = 64 * 1024


class SketchLog:
    """One process's part. Lives on the running loop."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[TenantId, list[bytes]] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._shares: dict[UUID, ProjectShare] = {}

    def add(self, context: RequestContext, prefix: PrefixHashes) -> None:
        """Keep a sketch of a request that an engine is to run, if it is chosen. Never raises for what it contains."""
        if not prefix.hashes or not context.call.endpoint.metered or self._count >= MAX_WAITING:
            return
        if not self._share(context.caller.project_id).takes(prefix.hashes[-1]):
            return
        self._waiting.setdefault(context.caller.tenant_id, []).append(_sketch(context, prefix))
        self._count += 1
        if self._timer is None:
            self._timer = self._loop.call_later(SEND_SECONDS, self.send)

    def send(self) -> None:
        """Send what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.time()
        for tenant_id, items in self._waiting.items():
            key = keyspace.tenant_key(tenant_id, prompt_sketch.ROOM).encode()
            for batch in batches(items):
                self._redis.fire(b"ZADD", key, *(part for item in batch for part in (b"%.3f" % now, item)))
            self._redis.fire(b"ZREMRANGEBYSCORE", key, b"-inf", b"%.3f" % (now - KEPT_SECONDS))
            self._redis.fire(b"ZREMRANGEBYRANK", key, 0, -MAX_SKETCHES - 1)
            self._redis.fire(b"EXPIRE", key, KEPT_SECONDS)
        self._waiting.clear()
        self._count = 0

    def _share(self, project_id: UUID) -> ProjectShare:
        share = self._shares.get(project_id)
        if share is None:
            if len(self._shares) >= MAX_PROJECTS:
                self._shares.clear()
            share = self._shares[project_id] = ProjectShare()
        return share


class ProjectShare:
    """Which of a project's prompts are chosen: one in 2**``bits``, so that an hour has HOURLY at most.

    A prompt chosen with more bits is also chosen with fewer.
    """

    __slots__ = ("bits", "ends_at", "taken")

    def __init__(self) -> None:
        self.bits = 0
        self.taken = 0
        self.ends_at = time.monotonic() + HOUR_SECONDS

    def takes(self, prompt_hash: bytes) -> bool:
        """Return whether this prompt is chosen."""
        if int.from_bytes(prompt_hash[:4], "big") & ((1 << self.bits) - 1):
            return False
        now = time.monotonic()
        if now >= self.ends_at:
            self.bits, self.taken, self.ends_at = max(0, self.bits - 1), 0, now + HOUR_SECONDS
        if self.taken >= HOURLY:
            self.bits = min(32, self.bits + 1)
            self.taken //= 2
            return False
        self.taken += 1
        return True


def _sketch(context: RequestContext, prefix: PrefixHashes) -> bytes:
    call = context.call
    left_out = _NO_PARAMETERS | call.endpoint.ignored
    found = prompt_sketch.sketch(
        context.timeline.request_id,
        prefix,
        call.endpoint.messages(call.body) if call.facts is None else (),
        {name: _value(value) for name, value in call.body.items() if name not in left_out and value is not None},
        key=keyspace.sketch_key(context.caller, context.model.name),
    )
    return prompt_sketch.encode(found)


def _value(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)[:MAX_PARAMETER_BYTES]
