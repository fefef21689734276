"""A gateway in this process: real PostgreSQL and Redis, a usage log of its own, scripted engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import LazySettings
from django.db import connection, connections
from redis.asyncio import Redis

from gateway.control_plane import snapshot_feed
from gateway.control_plane.snapshot_feed import SnapshotFeed
from tenants.models import PolicyEpoch
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.callers import Doors
from tests.gateway.fixtures.private_redis import PrivateRedis
from tests.gateway.fixtures.scripted_app import ScriptedEngine, hello
from tests.gateway.fixtures.tenants import Gateway, World
from tests.servers import owner_url
from workers.serving import endpoints


@pytest.fixture
def committed(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test commit, so that the gateway's own connections see it. Restores the epoch row that a flush removes.

    Connections of other threads close after each use, because those threads end with the test.
    """
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    PolicyEpoch.objects.get_or_create(id=1)


@pytest.fixture(autouse=True)
def feeds_stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wake a feed that is stopped by a notification: it waits for one up to a quarter of a second, in each test."""
    stop = SnapshotFeed.stop

    def woken(feed: SnapshotFeed) -> None:
        feed._stop.set()
        with (
            contextlib.suppress(psycopg.Error),
            psycopg.connect(owner_url(), autocommit=True, connect_timeout=2) as link,
        ):
            link.execute(f"NOTIFY {endpoints.CHANNEL}")
        stop(feed)

    monkeypatch.setattr(SnapshotFeed, "stop", woken)


@pytest.fixture
def starts_are_read_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a feed read how long starts take, and engines' last contexts, five times a second, not every five seconds."""
    monkeypatch.setattr(snapshot_feed, "ETA_SECONDS", 0.2)


@pytest.fixture
def emptied(transactional_db: None) -> Iterator[None]:
    """Empty the usage table after the test; Django's flush does not."""
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE billing_usagerecord")


@pytest.fixture
def two_tenants(committed: None) -> World:
    """Two tenants with a key each, and a public model with two replicas that do not run yet."""
    return tenants.build()


@pytest.fixture
async def engines() -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine]]:
    """Two engines that say hello."""
    both = ScriptedEngine(hello), ScriptedEngine(hello)
    for engine in both:
        await engine.start()
    yield both
    for engine in both:
        await engine.stop()


@pytest.fixture
def engine_timeout_seconds() -> float:
    """How long an engine may be silent; modules that wait for that override it."""
    return 5.0


@pytest.fixture
async def gateway(
    two_tenants: World,
    engines: tuple[ScriptedEngine, ScriptedEngine],
    settings: LazySettings,
    tmp_path: Path,
    engine_timeout_seconds: float,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Gateway]:
    """A gateway with the tenants and both engines, as the ASGI application unless parametrized otherwise."""
    settings.WAL_DIR = tmp_path / "wal"
    settings.ROUTING_MEMORY, settings.ROUTING_BYTES = tmp_path / "routing", 1 << 20
    settings.REDIS_LIMITS_URL = settings.REDIS_CACHE_URL = os.environ["REDIS_URL"]
    settings.REDIS_TIMEOUT_SECONDS = 5.0
    settings.ENGINE_TIMEOUT_SECONDS = engine_timeout_seconds
    await asyncio.to_thread(tenants.place, two_tenants, [engine.port for engine in engines])
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        await redis.flushdb()
    door = getattr(request, "param", tenants.raw_door)
    async with door(two_tenants, engines, tmp_path / "wal") as running:
        yield running


@pytest.fixture
async def paused_at_will(
    two_tenants: World, engines: tuple[ScriptedEngine, ScriptedEngine], settings: LazySettings, tmp_path: Path
) -> AsyncIterator[tuple[Gateway, PrivateRedis]]:
    """A gateway, and its own Redis, which a test may pause."""
    async with PrivateRedis() as server:
        settings.WAL_DIR = tmp_path / "wal"
        settings.ROUTING_MEMORY, settings.ROUTING_BYTES = tmp_path / "routing", 1 << 20
        settings.REDIS_LIMITS_URL = settings.REDIS_CACHE_URL = server.url
        settings.REDIS_TIMEOUT_SECONDS = 0.5
        settings.ENGINE_TIMEOUT_SECONDS = 30.0
        await asyncio.to_thread(tenants.place, two_tenants, [engine.port for engine in engines])
        async with tenants.raw_door(two_tenants, engines, tmp_path / "wal") as running:
            yield running, server


@pytest.fixture
async def door() -> AsyncIterator[Doors]:
    """Creates admission controllers, each like one gateway process's."""
    async with Doors() as doors:
        yield doors


@pytest.fixture
async def redis() -> AsyncIterator[Redis]:
    """The session's Redis, emptied."""
    client = Redis.from_url(os.environ["REDIS_URL"])
    await client.flushdb()
    yield client
    await client.aclose()
