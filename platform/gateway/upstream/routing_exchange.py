"""Tell the gateways of other hosts what this process knows of warm prompts and loads, and hear what they tell.

Over one channel of Redis (publish and subscribe, so that nothing is stored), ten times a second, and only while other
hosts have gateways. Without Redis each host routes by what it knows itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import redis.asyncio as aioredis
from redis.exceptions import RedisError

from gateway import metrics
from gateway.redis_client.client import RedisClient
from gateway.redis_client.connection import RedisFailed
from routing.errors import BadMessage
from routing.exchange import Exchange
from routing.router import Router

log = logging.getLogger(__name__)

EVERY_SECONDS = 0.1
#: After so long without a message a session's home is guessed again; see ``routing.router.FROM_PEERS``.
BLIND_SECONDS = 2.0
RECONNECT_SECONDS = 0.5
CHANNEL = b"routing:hosts"


class RoutingExchange:
    """One process's part. Lives on the running loop."""

    def __init__(self, redis: RedisClient, url: str, router: Router, has_other_hosts: Callable[[], bool]) -> None:
        """``url``: that of the same Redis, for the connection that listens."""
        self._redis = redis
        self._url = url
        self._router = router
        self._has_other_hosts = has_other_hosts
        self._exchange = Exchange(router)
        self._heard_at = 0.0
        self._fails = False
        self._tasks: list[asyncio.Task[None]] = []
        metrics.ROUTING_REMOTE_PROCESSES.set_function(lambda: router.state.remote_processes)

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._tell()), loop.create_task(self._listen())]

    async def close(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _tell(self) -> None:
        router = self._router
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if not self._has_other_hosts():
                router.on_used, router.has_peers = None, False
                continue
            router.on_used = self._exchange.used
            now = time.monotonic()
            router.state.look(now)
            router.has_peers = now - self._heard_at > BLIND_SECONDS
            try:
                await self._redis.execute(b"PUBLISH", CHANNEL, self._exchange.pack())
            except RedisFailed as error:
                self._say(error)
            else:
                if not router.state.is_first:  # the first of this host hears for all
                    self._heard_at = time.monotonic()

    def _listens(self) -> bool:
        return self._has_other_hosts() and self._router.state.is_first

    async def _listen(self) -> None:
        while True:
            try:
                if self._listens():
                    await self._hear()
            except (RedisError, OSError) as error:
                self._say(error)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _hear(self) -> None:
        """Apply what others tell while it is this process's part. Raises RedisError, OSError."""
        async with aioredis.Redis.from_url(self._url) as client, client.pubsub(ignore_subscribe_messages=True) as heard:
            await heard.subscribe(CHANNEL)
            while self._listens():
                message = await heard.get_message(timeout=BLIND_SECONDS)
                if message is None:
                    continue
                try:
                    for _ in self._exchange.apply(message["data"]):
                        await asyncio.sleep(0)  # requests first
                except BadMessage as error:
                    self._say(error)
                else:  # its own messages come back too: they show that the channel works
                    self._heard_at = time.monotonic()
                    self._say(None)

    def _say(self, problem: Exception | None) -> None:
        """Log the first of several failures, and their end."""
        if problem is not None and not self._fails:
            log.warning("routing goes on without what gateways of other hosts know: %r", problem)
        elif problem is None and self._fails:
            log.info("routing again knows what gateways of other hosts know")
        self._fails = problem is not None
