"""Exchange warm prompts and loads with the gateways of other hosts.

Over one channel of Redis (publish and subscribe, so that nothing is stored), ten times a second, and only while other
hosts have gateways. Without Redis each host routes by what it knows itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gateway import metrics
from gateway.redis_client.client import RedisClient
from routing.errors import BadMessage
from routing.exchange import Exchange
from routing.router import Router
from tenants import redis_address

log = logging.getLogger(__name__)

EVERY_SECONDS = 0.1
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
        #: Channels are the same in all databases of a Redis.
        self._channel = b"%b:%d" % (CHANNEL, redis_address.parse(url).database)
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
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tell(self) -> None:
        router, trouble = self._router, _Trouble("gateways of other hosts do not hear what routing knows here")
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if not self._has_other_hosts():
                router.on_used, router.has_peers = None, False
                continue
            router.on_used = self._exchange.used
            router.state.look(time.monotonic())
            router.has_peers = not router.state.remote_processes
            try:
                await self._redis.execute(b"PUBLISH", self._channel, self._exchange.pack())
            except Exception as error:
                trouble.say(error)
            else:
                trouble.say(None)

    def _listens(self) -> bool:
        return self._has_other_hosts() and self._router.state.is_first

    async def _listen(self) -> None:
        trouble = _Trouble("routing goes on without what gateways of other hosts know")
        while True:
            try:
                if self._listens():
                    await self._hear(trouble)
            except Exception as error:
                trouble.say(error)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _hear(self, trouble: _Trouble) -> None:
        """Apply the messages of others while it is this process's part. Raises RedisError, OSError."""
        async with (
            redis_address.async_client(self._url) as client,
            client.pubsub(ignore_subscribe_messages=True) as heard,
        ):
            await heard.subscribe(self._channel)
            while self._listens():
                message = await heard.get_message(timeout=RECONNECT_SECONDS)
                if message is None:
                    continue
                try:
                    for _ in self._exchange.apply(message["data"]):
                        await asyncio.sleep(0)  # requests first
                except BadMessage as error:
                    trouble.say(error)
                else:
                    trouble.say(None)


class _Trouble:
    """Logs the first of several failures, and their end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lasts = False

    def say(self, problem: Exception | None) -> None:
        """Record a failure, or that there is none."""
        if problem is not None and not self._lasts:
            log.warning("%s: %r", self._what, problem)
        elif problem is None and self._lasts:
            log.info("no longer so: %s", self._what)
        self._lasts = problem is not None
