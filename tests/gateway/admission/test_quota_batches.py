"""A tenant whose rates are taken in portions asks Redis seldom, and is admitted no more than its limits allow."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.admission import quota_batches
from gateway.admission.controller import Admission, Ticket
from gateway.errors import RateLimited
from tenants import keyspace
from tenants.caller_limits import LimitLine
from tenants.snapshot import Caller
from tests.gateway.fixtures.callers import Doors, budget, caller, demand, line, tried, until

WAVE = 100


@pytest.fixture
async def redis(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Redis]:
    """The session's Redis, emptied; portions last long enough for a slow machine to use them."""
    monkeypatch.setattr(quota_batches, "PORTION_SECONDS", 1.0)
    async with Redis.from_url(os.environ["REDIS_URL"]) as client:
        await client.flushdb()
        await client.config_resetstat()
        yield client


@pytest.fixture
async def door() -> AsyncIterator[Doors]:
    """Makes a gateway's door."""
    async with Doors() as doors:
        yield doors


async def scripts(redis: Redis) -> int:
    """Return how many scripts Redis ran."""
    calls = await redis.info("commandstats")
    return int(calls["cmdstat_evalsha"]["calls"]) if "cmdstat_evalsha" in calls else 0


async def wave(gates: list[Admission], who: Caller, requests: int) -> list[Ticket]:
    """Return those that are admitted of so many at once at each gate; each uses the ten tokens that it took."""
    answers = await asyncio.gather(*[tried(gate, demand(who)) for gate in gates for _ in range(requests)])
    assert all(isinstance(answer, Ticket | RateLimited) for answer in answers)
    admitted = [answer for answer in answers if isinstance(answer, Ticket)]
    for ticket in admitted:
        ticket.settle(tokens=10, amount_pico=0)
    return admitted


@pytest.mark.parametrize("limit", [line(requests_per_minute=6000), line("key", tokens_per_minute=60_000)])
async def test_two_gateways_ask_seldom_and_admit_no_more_than_the_limit(
    redis: Redis, door: Doors, limit: LimitLine
) -> None:
    gates = [door(portioned=["t"]) for _ in range(2)]
    who = caller(limit)
    began = time.monotonic()
    admitted: list[Ticket] = []
    async with asyncio.timeout(60):
        while not all(portioned(admitted[-20:])):
            admitted += await wave(gates, who, 10)
            await asyncio.sleep(0.05)
        few = len(admitted)
        while len(flood := await wave(gates, who, WAVE)) == 2 * WAVE:
            admitted += flood
        admitted += flood
    assert 2 * sum(portioned(admitted[few:])) > len(admitted[few:])
    assert len(admitted) <= 6000 + (time.monotonic() - began) * 100 + 1


def portioned(tickets: list[Ticket]) -> list[bool]:
    """Say of each whether it was admitted from a portion; of none that it was not."""
    return [ticket.claim.portioned for ticket in tickets] or [False]


async def test_who_did_not_opt_in_or_has_a_budget_or_places_is_counted_one_by_one(redis: Redis, door: Doors) -> None:
    gate, rate = door(portioned=["t"]), line(requests_per_minute=10**6)
    asked = [
        (door(portioned=["other"]), caller(rate)),
        (gate, caller(rate, budget(10))),
        (gate, caller(rate, line(concurrent_requests=10**6))),
    ]
    for one, who in asked:
        for each in who.budgets:
            await redis.set(keyspace.tenant_key(who.tenant_id, "budget", f"{each.id}:0"), 10)
        before = await scripts(redis)
        for _ in range(3):
            await asyncio.gather(*[one.admit(demand(who)) for _ in range(20)])
        assert await scripts(redis) - before >= 60


async def test_tokens_that_a_portion_gave_and_nobody_used_go_back(redis: Redis, door: Doors) -> None:
    gate, who = door(portioned=["t"]), caller(line(requests_per_minute=10**6, tokens_per_minute=10**5))
    found = False
    async with asyncio.timeout(60):
        while not found:
            tickets = await asyncio.gather(*[gate.admit(demand(who)) for _ in range(20)])
            found = any(portioned(tickets))
            for ticket in tickets:
                ticket.settle(tokens=0, amount_pico=0)
            await asyncio.sleep(0.05)

    async def whole() -> bool:
        told = dict((await gate.admit(demand(who, tokens=0))).headers())
        return told[b"x-ratelimit-remaining-tokens"] == b"100000"

    await until(whole)


async def test_a_stored_answer_is_found_beside_a_portion(redis: Redis, door: Doors) -> None:
    gate, who = door(portioned=["t"]), caller(line(requests_per_minute=10**6, tokens_per_minute=10**6))
    key = keyspace.redis_key(who, "prediction", "abc")
    await redis.set(key, b"answer")
    async with asyncio.timeout(60):
        while True:
            hits = await asyncio.gather(*[gate.admit(demand(who, answer_key=key)) for _ in range(WAVE)])
            assert {hit.stored for hit in hits} == {b"answer"}
            if any(portioned(hits)):
                break
            await asyncio.sleep(0.05)
    for hit in hits:
        await hit.miss()
        hit.settle(tokens=0, amount_pico=0)
