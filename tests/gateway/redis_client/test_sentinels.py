"""A Redis behind Sentinels: the gateway's client and redis-py's follow the primary, dead, frozen or demoted."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from gateway.redis_client.client import RedisClient
from gateway.redis_client.connection import RedisFailed, RedisUnavailable, Script
from tenants import redis_address
from tests.replicated import redis as replicated
from tests.replicated.redis import SentinelSet

PATIENCE_SECONDS = 60
WRITE = Script.of("return redis.call('SET', KEYS[1], ARGV[1])")


@pytest.fixture
def servers() -> Iterator[SentinelSet]:
    with replicated.running() as made:
        yield made


@pytest.fixture
async def client(servers: SentinelSet) -> AsyncIterator[RedisClient]:
    opened = RedisClient(servers.url, timeout_seconds=0.5)
    await eventually(lambda: opened.execute("PING"))
    yield opened
    await opened.close()


async def eventually(ask: Callable[[], Awaitable[object]]) -> object:
    """Ask until there is an answer, as requests do, and return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await ask()
        except RedisFailed:
            assert time.monotonic() < deadline, "timed out"
            await asyncio.sleep(0.05)


async def test_the_client_follows_the_primary_when_it_dies(servers: SentinelSet, client: RedisClient) -> None:
    before = await asyncio.to_thread(servers.primary)
    assert await eventually(lambda: client.execute("SET", "key", "1")) == b"OK"
    with redis_address.client(servers.url, socket_timeout=5) as blocking:
        assert blocking.get("key") == b"1"

        await asyncio.to_thread(servers.kill, servers.sentinels[0])  # the first that is asked
        await asyncio.to_thread(servers.kill, before)

        assert await eventually(lambda: client.execute("SET", "key", "2")) == b"OK"
        assert await asyncio.to_thread(blocking.get, "key") == b"2"
    with servers.server(next(port for port in servers.servers if port != before)) as other:
        assert other.get("key") == "2"


@pytest.mark.long
async def test_the_client_leaves_a_primary_that_is_frozen(servers: SentinelSet, client: RedisClient) -> None:
    before = await asyncio.to_thread(servers.primary)
    servers.signal(before, signal.SIGSTOP)
    try:
        assert await eventually(lambda: client.execute("SET", "key", "3")) == b"OK"
    finally:
        servers.signal(before, signal.SIGCONT)
    # It comes back as a primary, until the Sentinels make it a replica.
    assert await eventually(lambda: client.execute("GET", "key")) == b"3"


async def test_a_server_that_has_become_a_replica_is_left() -> None:
    """By an address without Sentinels, whose host leads to another server after a failover."""
    with replicated.running() as made:
        _, replica = made.servers
        client = RedisClient(f"redis://:{replicated.PASSWORD}@127.0.0.1:{replica}/0", timeout_seconds=0.5)
        try:
            for script in (False, True):
                read = client.execute("GET", "k")  # in the same write
                written = client.eval(WRITE, 1, "k", "1") if script else client.execute("SET", "k", "1")
                with pytest.raises(RedisUnavailable, match="no longer the primary"):
                    await written
                assert await read is None
                assert client.failing
        finally:
            await client.close()
