"""Follow which server the Sentinels name as the primary.

A request waits 50 ms for Redis, and the first Sentinel may be the one that died with the primary. So no request asks a
Sentinel: a task does, twice a second, and knows the new primary before the first connection wants it. It also ends the
connection to a server that still answers, but that the Sentinels have replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from redis.exceptions import RedisError

from tenants import redis_address
from tenants.redis_address import RedisAddress

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5


class Primary:
    """The primary of one address behind Sentinels. Lives on one event loop; begins with the first :meth:`find`."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._server: tuple[str, int] | None = None
        self._known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: Called when another server has become the primary.
        self.on_change: Callable[[], None] = lambda: None

    async def find(self) -> tuple[str, int]:
        """Return the host and port of the primary; wait until a Sentinel has named it."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow())
        await self._known.wait()
        assert self._server is not None
        return self._server

    async def close(self) -> None:
        """Stop, and close the connections to the Sentinels."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        sentinels = redis_address.async_sentinels(self._address)
        unavailable = False
        try:
            while True:
                try:
                    host, port = await sentinels.discover_master(self._address.primary)
                except (RedisError, OSError) as error:
                    if not unavailable:
                        log.warning("no Sentinel names the primary %s: %s", self._address.primary, error)
                    unavailable = True
                else:
                    unavailable = False
                    self._found((host, int(port)))
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            for each in sentinels.sentinels:
                await each.aclose()

    def _found(self, server: tuple[str, int]) -> None:
        before, self._server = self._server, server
        self._known.set()
        if before not in {None, server}:
            log.warning("the primary %s is now %s:%s", self._address.primary, *server)
            self.on_change()
