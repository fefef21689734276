"""The lease of an answer lasts as long as its flight, and no longer, on a real Redis."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.coalescing.flight_leases import FlightLeases, Lease
from gateway.coalescing.peer_listener import PeerListener
from gateway.redis_client.client import BATCH, RedisClient
from tests.gateway.fixtures.callers import caller, until

WHO = caller()
LEASE_SECONDS = 2.4


@pytest.fixture
async def leases(redis: Redis, tmp_path: Path) -> AsyncIterator[FlightLeases]:
    turns = RedisClient(os.environ["REDIS_URL"], timeout_seconds=30.0)
    kept = FlightLeases(turns, PeerListener(tmp_path), lease_seconds=LEASE_SECONDS)
    yield kept
    kept.close()
    await turns.close()


async def taken(leases: FlightLeases, number: int) -> Lease:
    """Take one that nobody has."""
    lease = await leases.take(WHO, number.to_bytes(32, "big"))
    assert isinstance(lease, Lease)
    return lease


async def test_leases_of_any_number_of_flights_last_while_they_run(redis: Redis, leases: FlightLeases) -> None:
    mine = await asyncio.gather(*[taken(leases, number) for number in range(2 * BATCH + 10)])
    for lease in mine:
        lease.begun.set()
    await asyncio.sleep(2 * LEASE_SECONDS)
    assert await redis.exists(*[lease.key for lease in mine]) == len(mine)
    for lease in mine:
        leases.release(lease.name)

    async def gone() -> bool:
        return await redis.exists(*[lease.key for lease in mine]) == 0

    await until(gone)


async def test_many_leases_are_renewed_in_batches_and_young_ones_later(redis: Redis, leases: FlightLeases) -> None:
    old = await asyncio.gather(*[taken(leases, number) for number in range(2 * BATCH + 10)])
    await asyncio.sleep(LEASE_SECONDS / 3 * 0.7)
    young = await asyncio.gather(*[taken(leases, len(old) + number) for number in range(BATCH)])
    for lease in (*old, *young):
        lease.begun.set()
    await redis.config_resetstat()

    async def calls(command: str) -> int:
        return int((await redis.info("commandstats")).get(f"cmdstat_{command}", {"calls": 0})["calls"])

    async def renewed() -> bool:
        return await calls("pexpire") >= len(old)

    await until(renewed)
    assert (await calls("evalsha"), await calls("pexpire")) == (3, len(old))


async def test_a_young_lease_is_renewed_in_time(redis: Redis, leases: FlightLeases) -> None:
    (await taken(leases, 1)).begun.set()
    await asyncio.sleep(LEASE_SECONDS / 3 * 0.9)  # just before a round
    young = await taken(leases, 2)
    young.begun.set()
    for _ in range(20):
        await asyncio.sleep(LEASE_SECONDS / 10)
        assert await redis.get(young.key) == young.value


async def test_a_lease_whose_flight_never_begins_ends_by_itself(redis: Redis, leases: FlightLeases) -> None:
    lease = await taken(leases, 1)
    assert await redis.get(lease.key) == lease.value

    async def gone() -> bool:
        return await redis.get(lease.key) is None and leases.find(lease.name) is None

    await until(gone)
    assert lease.begun.is_set()  # so that nobody waits for it any more
