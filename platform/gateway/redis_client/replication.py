"""Wait until a replica has what a connection to Redis wrote, so that a failover to it does not lose that.

WAIT is about the writes of its own connection, and that connection serves nothing else until WAIT has returned. So the
client here is one of its own, which no request uses that need not be replicated, and a write whose connection has ended
is never confirmed: the next connection may lead to the server that has just become the primary, without that write.

Behind Sentinels there is a replica. A server that is named itself may have one, too, as a managed Redis has: INFO
replication says so. Without one nothing waits.

A replica that does not answer must not delay every request: after a WAIT without its answer nothing waits for
PAUSE_SECONDS, and what is written meanwhile may be lost if the primary is, too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time

from gateway import metrics
from gateway.redis_client.client import RedisClient, ReplyFuture
from gateway.redis_client.connection import RedisReplyError, RedisUnavailable

log = logging.getLogger(__name__)

REPLICAS = 1
PAUSE_SECONDS = 1.0
#: How often a server that is named itself is asked for its replicas.
LOOK_SECONDS = 10.0
#: A replica that has the data of before and follows, in the reply to INFO replication.
_ONLINE = re.compile(rb"^slave\d+:.*\bstate=online\b", re.MULTILINE)


class ReplicatedWrites:
    """A client of the primary, whose writes a replica can confirm. Lives on one event loop."""

    def __init__(self, url: str, *, timeout_seconds: float, wait_seconds: float, has_replica: bool) -> None:
        """``wait_seconds`` bounds one WAIT, behind which a command waits for its own ``timeout_seconds``.

        ``has_replica``: the primary has one, whatever it says, as behind Sentinels.
        """
        self.redis = RedisClient(url, timeout_seconds=timeout_seconds + wait_seconds)
        self._wait_ms = max(1, int(wait_seconds * 1000))
        self._waiting: ReplyFuture | None = None
        self._paused_until = 0.0
        self._confirmed = True
        self._has_replica = has_replica
        self._looks = not has_replica
        self._looking: ReplyFuture | None = None
        self._look_at = 0.0

    @property
    def connection(self) -> int:
        """Return the number of the connection that the next command is sent on, for :meth:`confirm`."""
        return self.redis.ended_connections

    async def confirm(self, connection: int) -> bool:
        """Return whether a replica has every write of this connection whose reply has arrived.

        False if none says so in time. True where there is no replica. ``connection`` was read before the write was
        sent. Raises RedisUnavailable if it has ended: the primary may be gone, and these writes with it.
        """
        self._check(connection)
        if self._looks:
            await self._look()
            self._check(connection)
            if not self._has_replica:
                return True
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

    def _check(self, connection: int) -> None:
        if connection != self.connection:
            raise RedisUnavailable("the connection was lost before a replica confirmed what it wrote")

    async def _look(self) -> None:
        """Learn whether the server has a replica, if that is not known of the last LOOK_SECONDS."""
        if self._looking is None and time.monotonic() < self._look_at:
            return
        if self._looking is None or self._looking.done():
            self._look_at = time.monotonic() + LOOK_SECONDS
            self._looking = self.redis.execute("INFO", "replication")
        looking = self._looking
        try:
            found = await asyncio.shield(looking)
        except RedisReplyError as error:
            log.warning("Redis refuses INFO, so nothing waits for its replicas: %s", error)
            found = b""
        self._has_replica = _ONLINE.search(found) is not None
        if self._looking is looking:
            self._looking = None

    def _note(self, *, confirmed: bool) -> None:
        if not confirmed:
            metrics.REDIS_UNREPLICATED.inc()
            self._paused_until = time.monotonic() + PAUSE_SECONDS
        if confirmed != self._confirmed:
            self._confirmed = confirmed
            log.warning("replicas of Redis confirm writes%s", " again" if confirmed else " no longer")
