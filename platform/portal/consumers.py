"""Push the changed parts of live pages over a WebSocket."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from redis.exceptions import RedisError

from portal.live import feed
from portal.live.topics import FLEET
from tenants.models import User

#: How long a socket can outlive its session: the session is checked this often.
RECHECK_SECONDS = 15.0
#: WebSocket close codes (RFC 6455 leaves 4000-4999 to applications).
SIGNED_OUT = 4401
TRY_AGAIN = 1013

log = logging.getLogger(__name__)


class FleetConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One open fleet page."""

    async def connect(self) -> None:
        """Accept operators; refuse all others before the handshake ends (HTTP 403)."""
        self._feed: feed.Feed | None = None
        self._checker: asyncio.Task[None] | None = None
        if not _may_watch(self.scope["user"]):
            await self.close()
            return
        await self.accept()
        try:
            await self.channel_layer.group_add(feed.group(FLEET), self.channel_name)
            html = await feed.newest(FLEET)
        except (RedisError, OSError) as error:
            log.warning("cannot follow the live page %s: %s", FLEET.name, error)
            await self.close(code=TRY_AGAIN)
            return
        if html:
            await self.send(text_data=html)
        self._feed = feed.of(FLEET)
        self._feed.join()
        self._checker = asyncio.create_task(self._check())

    async def disconnect(self, code: int) -> None:
        """Stop following."""
        if self._checker is not None:
            self._checker.cancel()
        if self._feed is not None:
            self._feed.leave()
            await self.channel_layer.group_discard(feed.group(FLEET), self.channel_name)

    async def changed(self, message: dict[str, Any]) -> None:
        """Pass on what one process has read for all viewers (``portal.live.feed``)."""
        await self.send(text_data=message["html"])

    async def _check(self) -> None:
        """Close when the session has ended or the rights are gone."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            if not _may_watch(await get_user(self.scope)):
                await self.close(code=SIGNED_OUT)
                return


def _may_watch(user: Any) -> bool:
    return isinstance(user, User) and user.is_active and user.is_staff
