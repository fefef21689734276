"""Gateways of several hosts exchange through Redis where prompts are warm; without it each works alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.redis_client.client import RedisClient
from gateway.upstream.routing.exchange import CHANNEL, RoutingExchange
from routing.router import Boot, Router
from routing.shared.state import private
from tests.gateway.fixtures.private_redis import PrivateRedis
from tests.gateway.fixtures.tenants import until
from tests.routing.prompts import ask, replicas, user
from tests.routing.test_router import DOCUMENT, serve


@asynccontextmanager
async def host(url: str) -> AsyncIterator[Router]:
    """A gateway's routing on a host of its own."""
    redis = RedisClient(url, timeout_seconds=0.5)
    router = Router(private(1 << 14, 64))
    router.follow({each: Boot() for each in replicas(3)})
    exchange = RoutingExchange(redis, url, router, lambda: True)
    exchange.start()
    try:
        yield router
    finally:
        await exchange.close()
        await redis.close()


def warm(router: Router, text: str) -> list[bool]:
    """Return on which replicas a text is warm."""
    return [each.warm_tokens > 1000 for each in router.costs(ask(user(text)), replicas(3), time.monotonic())]


async def test_what_one_host_computed_others_know_until_redis_fails_and_again_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with PrivateRedis() as server, host(server.url) as here, host(server.url) as there:
        await until(lambda: here.state.remote_processes == there.state.remote_processes == 1)
        assert not here.has_peers
        serve(there, ask(user(DOCUMENT)), replicas(3)[1:2])
        await until(lambda: warm(here, DOCUMENT) == [False, True, False])
        with caplog.at_level(logging.WARNING):
            server.pause()
            await until(lambda: here.has_peers and there.has_peers)
        assert sum("do not hear" in record.message for record in caplog.records) == 2
        serve(there, ask(user("x" + DOCUMENT)), replicas(1))
        server.resume()
        await until(lambda: warm(here, "x" + DOCUMENT) == [True, False, False])
        await until(lambda: not here.has_peers and not there.has_peers)


async def test_what_is_no_message_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    async with PrivateRedis() as server, host(server.url) as here:
        channel = CHANNEL + b":0"
        async with asyncio.timeout(30):
            while dict(await server.client.pubsub_numsub(channel))[channel] == 0:  # noqa: ASYNC110 - Redis is asked
                await asyncio.sleep(0.01)
        with caplog.at_level(logging.WARNING):
            await server.client.publish(channel, b"no message")
            await until(lambda: "BadMessage" in caplog.text)
        async with host(server.url) as there:
            await until(lambda: here.state.remote_processes == 1 == there.state.remote_processes)
            serve(here, ask(user(DOCUMENT)), replicas(1))
            await until(lambda: warm(there, DOCUMENT)[0])
        await until(lambda: not here.state.remote_processes)


async def test_a_host_without_others_says_nothing() -> None:
    async with PrivateRedis() as server:
        client = RedisClient(server.url, timeout_seconds=0.5)
        router = Router(private(1 << 14, 64))
        exchange = RoutingExchange(client, server.url, router, lambda: False)
        exchange.start()
        async with server.client.pubsub() as heard:
            await heard.subscribe(CHANNEL + b":0")
            assert (await heard.get_message(timeout=5))["type"] == "subscribe"
            assert await heard.get_message(timeout=0.5) is None
        assert router.on_used is None
        await exchange.close()
        await client.close()
