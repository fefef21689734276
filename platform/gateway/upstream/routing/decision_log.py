"""Keep the last decisions of routing in Redis, for `hearth explain-route`.

One list for all gateway processes, of bounded length. Decisions are sent a moment later and together, so no request
waits for them. While Redis is unavailable they are lost.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.redis_client.client import RedisClient, batches
from routing import decision_record
from routing.decision_record import KEY
from routing.explanation import Decision

#: Decisions of all processes together: about 5 MB with eight replicas.
MAX_DECISIONS = 4_000
#: How long the list stays after the last decision.
KEPT_SECONDS = 3600
#: How long decisions are collected before they are sent, and how many at most: of more, the last ones.
SEND_SECONDS = 0.5
MAX_WAITING = 1_000


class DecisionLog:
    """One process's part. Lives on the running loop."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Decision] = deque(maxlen=MAX_WAITING)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, decision: Decision) -> None:
        """Keep a decision."""
        self._waiting.append(decision)
        if self._timer is None:
            self._timer = self._loop.call_later(SEND_SECONDS, self.send)

    def send(self) -> None:
        """Send what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        for batch in batches([decision_record.encode(each) for each in self._waiting]):
            self._redis.fire(b"LPUSH", KEY, *batch)
        self._redis.fire(b"LTRIM", KEY, 0, MAX_DECISIONS - 1)
        self._redis.fire(b"EXPIRE", KEY, KEPT_SECONDS)
        self._waiting.clear()
