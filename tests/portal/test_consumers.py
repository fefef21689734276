"""The portal as a process: live updates over its WebSocket, and long downloads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from django.utils import timezone

from portal.live import feed
from portal.live.topics import FLEET
from portal.redis_clients import client
from tenants.models import PolicyEpoch, User
from tests.portal import fixtures
from tests.portal.fixtures import World
from tests.portal.portal_process import other_connection, portal_process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running portal, the users in its database, and their session cookies."""

    base: str
    world: World
    operator_cookie: str
    member_cookie: str

    def signed_in(self, cookie: str) -> dict[str, str]:
        """Return the cookie of this session; its name contains the gateway's port."""
        port = urlsplit(self.base).port
        assert port is not None
        return {f"hearth-session-{port - 1}": cookie} if cookie else {}


@pytest.fixture
def served(transactional_db: None, app_database_url: str, tmp_path: Path) -> Iterator[Served]:
    """A portal that serves both tenants, a fleet and 1,200 requests of acme."""
    PolicyEpoch.objects.get_or_create(id=1)
    world = fixtures.build()
    fixtures.fleet(world)
    # what a portal of the test before has left, which is not this database's
    client(settings.REDIS_CACHE_URL, 5).delete(feed.lease_key(FLEET), feed.whole_key(FLEET))
    start = timezone.now() - timedelta(hours=1)
    fixtures.store(fixtures.answered(world, world.acme, start, number) for number in range(1200))
    try:
        with portal_process(app_database_url, tmp_path / "portal.log") as base:
            yield Served(
                base=base,
                world=world,
                operator_cookie=cookie_of(world.operator),
                member_cookie=cookie_of(world.acme.owner),
            )
    finally:
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE billing_usagerecord")


def cookie_of(user: User) -> str:
    """Create a session as sign-in does, and return its key."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    assert session.session_key is not None
    return session.session_key


def use_more(world: World) -> None:
    """Store three further requests of acme, from a thread with a connection of its own."""
    try:
        fixtures.store(fixtures.answered(world, world.acme, timezone.now(), number) for number in range(1200, 1203))
    finally:
        connection.close()


def cordon() -> None:
    """Cordon the node, as an operator would."""
    with other_connection() as other:
        other.execute("UPDATE workers_node SET cordoned = true")


def make_ready() -> None:
    """Set the starting replica to ready, as its agent would."""
    with other_connection() as other:
        other.execute("UPDATE workers_replica SET state = 'ready', startup_seconds = 31 WHERE state = 'starting'")


async def refused(served: Served, *, cookie: str = "", origin: str = "", path: str = "/ws/fleet") -> int:
    """Return the HTTP status that refuses the handshake; 0 if it is accepted."""
    headers = {"Origin": origin or served.base}
    async with aiohttp.ClientSession(cookies=served.signed_in(cookie)) as client:
        try:
            async with client.ws_connect(f"{served.base}{path}", headers=headers):
                return 0
        except aiohttp.WSServerHandshakeError as error:
            return error.status


async def test_only_operators_watch_and_only_from_the_portal_s_own_pages(served: Served) -> None:
    assert await refused(served) == 403
    assert await refused(served, cookie=served.member_cookie) == 403
    assert await refused(served, cookie=served.operator_cookie, origin="https://example.com") == 403
    assert await refused(served, cookie=served.operator_cookie) == 0


async def test_a_page_gets_what_changed_and_nothing_else(served: Served) -> None:
    async with (
        aiohttp.ClientSession(cookies=served.signed_in(served.operator_cookie)) as client,
        client.ws_connect(f"{served.base}/ws/fleet", headers={"Origin": served.base}) as socket,
    ):
        first = await socket.receive_str(timeout=10)
        assert 'data-testid="node-n1"' in first
        assert first.count('data-testid="replica"') == 3
        with suppress(asyncio.TimeoutError):
            pytest.fail(f"nothing changed, yet this came: {await socket.receive_str(timeout=2.5)}")
    async with (
        aiohttp.ClientSession(cookies=served.signed_in(served.operator_cookie)) as client,
        client.ws_connect(f"{served.base}/ws/fleet", headers={"Origin": served.base}) as socket,
    ):
        await socket.receive_str(timeout=10)
        await asyncio.to_thread(make_ready)
        changed = await socket.receive_str(timeout=10)
        assert "up in 31 s" in changed
        assert 'id="deployment-tiny-chat"' in changed  # three of two are ready now
        assert 'hx-swap-oob="true"' in changed


async def test_usage_is_watched_by_those_who_may_read_it(served: Served) -> None:
    cookies = {"operator": served.operator_cookie, "member": served.member_cookie, "nobody": ""}
    allowed = {
        "/ws/usage/all": {"operator"},
        "/ws/usage/tenant/acme?period=1h": {"operator", "member"},
        "/ws/usage/tenant/globex": {"operator"},
        "/ws/usage/tenant/nosuch": set(),
        "/ws/usage/all?period=nonsense": set(),
    }
    for path, whose in allowed.items():
        answers = {name: await refused(served, cookie=cookie, path=path) for name, cookie in cookies.items()}
        assert {name for name, status in answers.items() if status == 0} == whose, path
        assert set(answers.values()) <= {0, 403}, path


async def test_usage_appears_on_an_open_page(served: Served) -> None:
    headers = {"Origin": served.base}
    async with (
        aiohttp.ClientSession(cookies=served.signed_in(served.member_cookie)) as session,
        session.ws_connect(f"{served.base}/ws/usage/tenant/acme?period=24h", headers=headers) as socket,
    ):
        first = await socket.receive_str(timeout=20)
        assert 'id="figures"' in first
        assert 'hx-swap-oob="true"' in first
        assert "1,200" in first
        await asyncio.to_thread(use_more, served.world)
        while "1,203" not in await socket.receive_str(timeout=20):
            pass


async def test_viewers_at_two_portals_see_the_same_and_one_takes_over_from_the_other(
    served: Served, app_database_url: str, tmp_path: Path
) -> None:
    """One of the two processes reads for both. When it dies, the other does."""
    with ExitStack() as stack:
        second = stack.enter_context(portal_process(app_database_url, tmp_path / "second.log"))
        async with AsyncExitStack() as sockets:
            there = await _watch(sockets, replace(served, base=second))
            await there.receive_str(timeout=20)
            holder = client(settings.REDIS_CACHE_URL, 5).get(feed.lease_key(FLEET))
            here = await _watch(sockets, served)
            await here.receive_str(timeout=20)
            await asyncio.to_thread(make_ready)
            for socket in (here, there):
                while "up in 31 s" not in await socket.receive_str(timeout=20):
                    pass
            assert client(settings.REDIS_CACHE_URL, 5).get(feed.lease_key(FLEET)) == holder
            await asyncio.to_thread(stack.close)
            await asyncio.to_thread(cordon)
            while "cordoned" not in await here.receive_str(timeout=20):
                pass
            assert client(settings.REDIS_CACHE_URL, 5).get(feed.lease_key(FLEET)) != holder


async def _watch(sockets: AsyncExitStack, served: Served) -> aiohttp.ClientWebSocketResponse:
    session = aiohttp.ClientSession(cookies=served.signed_in(served.operator_cookie))
    opened = await sockets.enter_async_context(session)
    return await sockets.enter_async_context(
        opened.ws_connect(f"{served.base}/ws/fleet", headers={"Origin": served.base})
    )


async def test_a_long_download_is_whole(served: Served) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {served.world.acme.secret}"}) as client,
        client.get(f"{served.base}/api/v1/usage?format=csv") as answer,
    ):
        assert answer.status == 200
        lines = (await answer.text()).splitlines()
    assert len(lines) == 1201
    assert len({line.split(",")[0] for line in lines[1:]}) == 1200
