"""Push the changed parts of live pages over a WebSocket."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import Any
from urllib.parse import parse_qs

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.sessions.backends.base import SessionBase
from django.db import close_old_connections
from redis.exceptions import RedisError

from portal.access.identity import mfa, provider_sessions
from portal.access.principal import Principal, principal_of_user, tenant_for
from portal.access.requests import languages
from portal.access.requests.addresses import gateway_base
from portal.errors import BadQuery
from portal.live import feed, topics
from portal.live.topics import Topic
from portal.live.viewers import OPEN_PAGES, Viewer
from portal.pages.base import ZONE_COOKIE
from portal.reporting import periods
from tenants.errors import NotFound
from tenants.identity import operator_sign_in
from tenants.ids import TenantId
from tenants.models import User

#: WebSocket close codes (RFC 6455 leaves 4000-4999 to applications).
SIGNED_OUT = 4401
TRY_AGAIN = 1013

log = logging.getLogger(__name__)


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """One open page."""

    @abstractmethod
    def topic(self, principal: Principal) -> Topic:
        """Return what the page shows. Raises NotFound if the principal may not see it, BadQuery for a wrong address."""

    async def connect(self) -> None:
        """Accept who may see the page; refuse all others before the handshake ends (HTTP 403)."""
        self._feed: feed.Feed | None = None
        self._viewer: Viewer | None = None
        found = await sync_to_async(self._allowed)(self.scope["user"])
        if found is None:
            await self.close()
            return
        topic, principal = found
        await self.accept()
        try:
            await self.channel_layer.group_add(feed.group(topic), self.channel_name)
            html = await feed.newest(topic, _drawn_at(self.scope))
        except (RedisError, OSError) as error:
            log.warning("cannot follow the live page %s: %s", topic.name, error)
            await self.close(code=TRY_AGAIN)
            return
        if html:
            await self.send(text_data=html)
        self._feed = feed.of(topic)
        self._feed.join()
        self._viewer = Viewer(
            session_key=self.scope["session"].session_key,
            tenant_id=topic.tenant_id,
            projects=None if topic.tenant_id is None else principal.confined.get(topic.tenant_id),
            end=self._sign_out,
        )
        OPEN_PAGES.join(self._viewer)

    async def disconnect(self, code: int) -> None:
        """Stop following."""
        if self._viewer is not None:
            OPEN_PAGES.leave(self._viewer)
        if self._feed is not None:
            self._feed.leave()
            await self.channel_layer.group_discard(feed.group(self._feed.topic), self.channel_name)

    async def changed(self, message: dict[str, Any]) -> None:
        """Pass on what one process has read for all viewers (``portal.live.feed``)."""
        await self.send(text_data=message["html"])

    async def _sign_out(self) -> None:
        await self.close(code=SIGNED_OUT)

    def _allowed(self, user: Any) -> tuple[Topic, Principal] | None:
        close_old_connections()
        if not isinstance(user, User) or not user.is_active or mfa.is_missing(user):
            return None
        if operator_sign_in.must_use_provider(user) or not _is_confirmed(self.scope["session"]):
            return None
        try:
            principal = principal_of_user(user)
            language = languages.language_of(user, _header(self.scope, b"accept-language"))
            return topics.in_language(self.topic(principal), language), principal
        except (NotFound, BadQuery):
            return None


class FleetConsumer(LiveConsumer):
    """The fleet page, for operators."""

    def topic(self, principal: Principal) -> Topic:
        """Return the fleet."""
        _require_operator(principal)
        return topics.FLEET


class UsageConsumer(LiveConsumer):
    """The overview of all tenants, for operators."""

    def topic(self, principal: Principal) -> Topic:
        """Return the overview of the query's preset period, in the reader's time zone."""
        _require_operator(principal)
        return topics.usage_of_all(*_preset_and_zone(self.scope), gateway_base(_host(self.scope), _scheme(self.scope)))


class TenantUsageConsumer(LiveConsumer):
    """A tenant's home page, for those who may read the tenant."""

    def topic(self, principal: Principal) -> Topic:
        """Return the tenant's figures of the query's preset period, in the reader's time zone."""
        tenant = tenant_for(principal, self.scope["url_route"]["kwargs"]["slug"])
        projects = principal.confined.get(TenantId(tenant.id))
        return topics.usage_of_tenant(tenant, *_preset_and_zone(self.scope), projects)


def _is_confirmed(session: SessionBase) -> bool:
    """Return whether a session's provider confirmed it lately. Asks no provider: the page's own request just did.

    All sockets of this process share a thread, and a provider may take seconds to answer.
    """
    key = session.session_key or ""
    return key in provider_sessions.confirmed_among({key: dict(session.items())})


def _require_operator(principal: Principal) -> None:
    if not principal.is_operator:
        raise NotFound("page", "live")


def _preset_and_zone(scope: Any) -> tuple[str, str]:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    preset = query.get("period", [periods.DEFAULT_PRESET])[0]
    if preset not in periods.PRESETS:
        raise BadQuery("period", preset, " | ".join(periods.PRESETS))
    return preset, scope["cookies"].get(ZONE_COOKIE, "")


def _drawn_at(scope: Any) -> float:
    """Return when the page began that follows, in Unix time; 0 if it does not say."""
    try:
        return float(parse_qs(scope["query_string"].decode("latin-1")).get("drawn", ["0"])[0])
    except ValueError:
        return 0.0


def _host(scope: Any) -> str:
    return _header(scope, b"host")


def _header(scope: Any, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


def _scheme(scope: Any) -> str:
    return "https" if scope["scheme"] == "wss" else "http"
