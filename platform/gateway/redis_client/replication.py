"""Wait until a replica has what a connection to Redis wrote, so that a failover to it does not lose that.

WAIT counts the writes of its own connection, and that connection serves nothing else until WAIT has returned. So the
client here is one of its own, which no request uses that need not be replicated.

A replica that does not answer must not delay every request: after a WAIT without its answer nothing waits for
PAUSE_SECONDS, and what is written meanwhile may be lost if the primary is, too.
"""

from __future__ import annotations

import asyncio
import logging
import time

from gateway import metrics
from gateway.redis_client.client import RedisClient, ReplyFuture
from gateway.redis_client.connection import RedisReplyError

log = logging.getLogger(__name__)

REPLICAS = 1
PAUSE_SECONDS = 1.0


class ReplicatedWrites:
    """A client of the primary, whose writes a replica can confirm. Lives on one event loop."""

    def __init__(self, url: str, *, timeout_seconds: float, wait_seconds: float) -> None:
        """``wait_seconds`` bounds one WAIT, behind which a command waits for its own ``timeout_seconds``."""
        self.redis = RedisClient(url, timeout_seconds=timeout_seconds + wait_seconds)
        self._wait_ms = max(1, int(wait_seconds * 1000))
        self._waiting: ReplyFuture | None = None
        self._paused_until = 0.0
        self._confirmed = True

    async def confirm(self) -> bool:
        """Return whether a replica has every write whose reply has arrived; False if none says so in time.

        Raises RedisUnavailable: the primary may be gone, and these writes with it.
        """
        if time.monotonic() < self._paused_until:
            metrics.REDIS_UNREPLICATED.inc()
            return False
        # A WAIT that has not returned was sent after those writes, since replies arrive in order.
        if self._waiting is None or self._waiting.done():
            self._waiting = self.redis.execute("WAIT", REPLICAS, self._wait_ms)
        try:
            confirmed = int(await asyncio.shield(self._waiting)) >= REPLICAS
        except RedisReplyError as error:
            log.error("Redis refuses WAIT, so a failover may run requests with an Idempotency-Key again: %s", error)
            confirmed = False
        self._note(confirmed=confirmed)
        return confirmed

    def _note(self, *, confirmed: bool) -> None:
        if not confirmed:
            metrics.REDIS_UNREPLICATED.inc()
            self._paused_until = time.monotonic() + PAUSE_SECONDS
        if confirmed != self._confirmed:
            self._confirmed = confirmed
            log.warning("replicas of Redis confirm writes%s", " again" if confirmed else " no longer")
