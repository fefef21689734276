"""Open live pages of this process, and which of them must close: of all at once, whatever their number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import close_old_connections
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from portal.access.identity import mfa, provider_sessions
from portal.access.principal import principals_of_users
from tenants.identity import operator_sign_in
from tenants.ids import TenantId
from tenants.models import User

#: How long a page can stay live without its session or its rights.
RECHECK_SECONDS = 15.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Viewer:
    """An open page. ``tenant_id`` None: one for operators only.

    ``projects`` are those to which its reader was confined when it was opened; None: to none.
    """

    session_key: str
    tenant_id: TenantId | None
    projects: frozenset[UUID] | None = None
    #: Closes the page's socket, because its reader may not see it any more.
    end: Callable[[], Awaitable[None]] = field(repr=False)


@dataclass(slots=True)
class OpenPages:
    """The open pages of this process and, while there are any, the task that checks them."""

    _open: set[Viewer] = field(default_factory=set)
    _checking: asyncio.Task[None] | None = None

    def join(self, viewer: Viewer) -> None:
        """Check this page too."""
        self._open.add(viewer)
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())

    def leave(self, viewer: Viewer) -> None:
        """Check this page no more. Idempotent."""
        self._open.discard(viewer)

    async def _check(self) -> None:
        while self._open:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                for viewer in await sync_to_async(_turn)(tuple(self._open)):
                    self.leave(viewer)
                    await viewer.end()
            except Exception:  # whatever it is about a page, the others are checked
                log.exception("cannot check who may see live pages")


OPEN_PAGES = OpenPages()


def _turn(viewers: Sequence[Viewer]) -> list[Viewer]:
    close_old_connections()
    return without_right(viewers)


def without_right(viewers: Sequence[Viewer]) -> list[Viewer]:
    """Return those that may not see their page any more, in at most seven queries."""
    users = _users_of({each.session_key for each in viewers})
    among = [user for user in users.values() if user.is_active]
    barred = mfa.missing_among(among) | operator_sign_in.must_use_provider_among(among)
    principals = principals_of_users([user for user in among if user.pk not in barred])

    def may_see(viewer: Viewer) -> bool:
        user = users.get(viewer.session_key)
        principal = principals.get(user.pk) if user is not None else None
        if principal is None:
            return False
        if principal.tenants is None or viewer.tenant_id is None:
            return principal.tenants is None
        return viewer.tenant_id in principal.tenants and principal.confined.get(viewer.tenant_id) == viewer.projects

    return [each for each in viewers if not may_see(each)]


def _users_of(keys: Iterable[str]) -> Mapping[str, User]:
    """Return the user of each session that has not ended, neither by time, by a new password nor by its provider."""
    rows = Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now())
    kept = {row.session_key: row.get_decoded() for row in rows}
    confirmed = provider_sessions.confirmed_among(kept)
    sessions = {key: data for key, data in kept.items() if key in confirmed}
    ids = {str(data.get(SESSION_KEY, "")) for data in sessions.values()} - {""}
    users = {str(user.pk): user for user in User.objects.select_related("provider_member").filter(pk__in=ids)}
    return {
        key: user
        for key, data in sessions.items()
        if (user := users.get(str(data.get(SESSION_KEY)))) is not None
        and constant_time_compare(data.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    }
