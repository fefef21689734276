"""Push the changed parts of the fleet page over a WebSocket, at most once a second."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from asgiref.sync import sync_to_async
from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError, close_old_connections

from portal.fleet.fragments import fleet_changes
from tenants.models import User

INTERVAL_SECONDS = 1.0
#: How long a socket can outlive its session: the session is checked this often.
RECHECK_SECONDS = 15.0
#: WebSocket close codes (RFC 6455 leaves 4000-4999 to applications).
SIGNED_OUT = 4401
TRY_AGAIN = 1013

log = logging.getLogger(__name__)


class FleetConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One open fleet page. Each queries the database itself: about ten queries a second, for a handful of operators."""

    async def connect(self) -> None:
        """Accept operators; refuse all others before the handshake ends (HTTP 403)."""
        self._pusher: asyncio.Task[None] | None = None
        if not _may_watch(self.scope["user"]):
            await self.close()
            return
        await self.accept()
        self._pusher = asyncio.create_task(self._push())

    async def disconnect(self, code: int) -> None:
        """Stop pushing."""
        if self._pusher is not None:
            self._pusher.cancel()

    async def _push(self) -> None:
        sent: dict[str, str] | None = None
        checked = time.monotonic()
        while True:
            if time.monotonic() - checked > RECHECK_SECONDS:
                if not _may_watch(await get_user(self.scope)):
                    await self.close(code=SIGNED_OUT)
                    return
                checked = time.monotonic()
            try:
                html, sent = await sync_to_async(_changes)(sent)
            except DatabaseError as error:
                log.warning("cannot read the fleet: %s", error)
                await self.close(code=TRY_AGAIN)
                return
            if html:
                await self.send(text_data=html)
            await asyncio.sleep(INTERVAL_SECONDS)


def _changes(sent: dict[str, str] | None) -> tuple[str, dict[str, str]]:
    close_old_connections()
    return fleet_changes(sent)


def _may_watch(user: Any) -> bool:
    return isinstance(user, User) and user.is_active and user.is_staff
