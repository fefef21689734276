"""Requests a minute, exactly, on a real Redis; and what holds while Redis is away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway import turns
from gateway.admission import Admission
from gateway.errors import RateLimited
from gateway.limits import MINUTE_US, SCRIPT, LocalBuckets, Verdict
from gateway.turns import Turns
from tenants import keyspace
from tenants.ids import KeyId, ProjectId, TenantId
from tenants.registry import Policy
from tenants.snapshot import Caller
from tests.gateway.private_redis import PrivateRedis

BUCKET = "bucket"


def caller(limit: int | None, tenant: UUID | None = None) -> Caller:
    """Return a caller of a tenant with this limit, a new tenant unless one is given."""
    return Caller(
        tenant_id=TenantId(tenant or uuid4()),
        tenant_slug="t",
        project_id=ProjectId(uuid4()),
        key_id=KeyId(uuid4()),
        key_public_id="k",
        scopes=frozenset(),
        allowed_models=frozenset(),
        trust_group="",
        policy=Policy(requests_per_minute=limit),
    )


@pytest.fixture
async def redis() -> AsyncIterator[Redis]:
    """The session's Redis, emptied."""
    client = Redis.from_url(os.environ["REDIS_URL"])
    await client.flushdb()
    yield client
    await client.aclose()


def gate(redis: Redis, timeout_seconds: float = 5.0) -> Admission:
    """Return admission with this Redis for limits and answers."""
    talk = Turns(redis, timeout_seconds=timeout_seconds)
    return Admission(talk, talk)


def two(limits: Redis, cache: Redis, timeout_seconds: float) -> Admission:
    """Return admission with a Redis for each."""
    return Admission(Turns(limits, timeout_seconds=timeout_seconds), Turns(cache, timeout_seconds=timeout_seconds))


async def take(redis: Redis, limit: int) -> Verdict:
    """Take one request from the bucket by the script alone."""
    answer: Any = await redis.eval(SCRIPT, 1, BUCKET, str(limit))
    admitted, remaining, wait_us = answer
    return Verdict(admitted=bool(admitted), limit=limit, remaining=remaining, wait_us=wait_us)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 11, 60, 70, 999])
async def test_a_bucket_admits_exactly_its_limit_however_many_ask_at_once(redis: Redis, limit: int) -> None:
    door, who = gate(redis), caller(limit)
    asked = [door.admit(who, None) for _ in range(limit + 20)]
    began = time.monotonic()
    results = await asyncio.gather(*asked, return_exceptions=True)
    refilled = int((time.monotonic() - began) * limit / 60) + 1
    admitted = [result for result in results if not isinstance(result, BaseException)]
    assert limit <= len(admitted) <= limit + refilled
    assert all(isinstance(r, RateLimited) for r in results if isinstance(r, BaseException))


async def test_the_headers_count_down_and_say_when_the_bucket_is_full_again(redis: Redis) -> None:
    verdicts = [await take(redis, 3) for _ in range(4)]
    assert [(v.admitted, v.remaining) for v in verdicts] == [(True, 2), (True, 1), (True, 0), (False, 0)]
    seconds = [round(verdict.wait_us / 1e6) for verdict in verdicts]
    assert seconds == [20, 40, 60, 20]
    assert verdicts[0].headers() == [
        (b"x-ratelimit-limit-requests", b"3"),
        (b"x-ratelimit-remaining-requests", b"2"),
        (b"x-ratelimit-reset-requests", b"20.0s"),
    ]


async def test_a_refusal_takes_nothing(redis: Redis) -> None:
    await take(redis, 1)
    full_at = await redis.get(BUCKET)
    refused = [await take(redis, 1) for _ in range(5)]
    assert not any(verdict.admitted for verdict in refused)
    assert await redis.get(BUCKET) == full_at
    waits = [verdict.wait_us for verdict in refused]
    assert waits == sorted(waits, reverse=True)


async def test_a_request_fits_again_after_its_share_of_a_minute(redis: Redis) -> None:
    for _ in range(600):
        await take(redis, 600)
    refused = await take(redis, 600)
    while refused.admitted:  # the time it took to ask 600 times has refilled some
        refused = await take(redis, 600)
    await asyncio.sleep(refused.wait_us / 1e6 + 0.001)
    assert (await take(redis, 600)).admitted


async def test_a_bucket_is_forgotten_once_it_is_full(redis: Redis) -> None:
    await take(redis, 5)
    lifetime = await redis.pttl(BUCKET)
    assert 60_000 < lifetime <= 61_000


async def test_a_clock_set_back_makes_nobody_wait_more_than_a_minute(redis: Redis) -> None:
    await redis.set(BUCKET, str(int((time.time() + 86_400) * 1e6)))
    refused = await take(redis, 6)
    assert (refused.admitted, refused.wait_us) == (False, 10_000_000)


@pytest.mark.parametrize(("before", "after", "seconds"), [(2, 100, 0.6), (100, 2, 30.0)])
async def test_a_changed_limit_refills_an_empty_bucket_at_its_own_rate(
    redis: Redis, before: int, after: int, seconds: float
) -> None:
    while (await take(redis, before)).admitted:
        pass
    refused = await take(redis, after)
    assert (refused.admitted, refused.limit) == (False, after)
    assert refused.wait_us / 1e6 == pytest.approx(seconds, abs=0.6 if before == 100 else 0.2)


@given(st.integers(1, 2**31 - 1))
def test_a_bucket_in_memory_gives_its_first_request_for_any_limit(limit: int) -> None:
    first = LocalBuckets().take(BUCKET, limit)
    assert first == Verdict(admitted=True, limit=limit, remaining=limit - 1, wait_us=-(-MINUTE_US // limit))


@given(st.integers(1, 2**31 - 1))
async def test_a_bucket_in_redis_gives_the_same(limit: int) -> None:
    client = Redis.from_url(os.environ["REDIS_URL"])
    await client.delete(BUCKET)
    assert await take(client, limit) == LocalBuckets().take(BUCKET, limit)
    await client.aclose()


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_the_bucket_in_memory_admits_exactly_its_limit(limit: int) -> None:
    buckets = LocalBuckets()
    verdicts = [buckets.take(BUCKET, limit) for _ in range(limit + 3)]
    assert [verdict.admitted for verdict in verdicts] == [True] * limit + [False] * 3
    assert [verdict.remaining for verdict in verdicts] == [*range(limit - 1, -1, -1), 0, 0, 0]


async def test_a_limit_of_nothing_asks_nobody_and_a_limit_of_zero_admits_nobody(redis: Redis) -> None:
    free = await gate(redis).admit(caller(None), None)
    assert (free.verdict, free.stored) == (None, None)
    with pytest.raises(RateLimited) as refused:
        await gate(redis).admit(caller(0), None)
    assert dict(refused.value.headers) == {
        b"retry-after": b"60",
        b"x-ratelimit-limit-requests": b"0",
        b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"60.0s",
    }
    assert await redis.dbsize() == 0


async def test_a_refusal_says_when_to_come_back(redis: Redis) -> None:
    door, who = gate(redis), caller(1)
    await door.admit(who, None)
    with pytest.raises(RateLimited) as refused:
        await door.admit(who, None)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    headers = dict(refused.value.headers)
    assert headers[b"retry-after"] == b"60"
    assert headers[b"x-ratelimit-remaining-requests"] == b"0"


async def test_one_tenants_limit_is_not_anothers(redis: Redis) -> None:
    door, busy = gate(redis), caller(1)
    await door.admit(busy, None)
    assert (await door.admit(caller(1), None)).verdict is not None
    same = caller(1, tenant=busy.tenant_id)
    with pytest.raises(RateLimited):
        await door.admit(same, None)


async def test_the_answer_comes_in_the_same_round_trip_as_the_limit(redis: Redis) -> None:
    door, who = gate(redis), caller(5)
    key = keyspace.redis_key(who, "prediction", "abc")
    await redis.set(key, b"answer")
    assert await door.find(key) == b"answer"
    before = int((await redis.info("stats"))["total_commands_processed"])
    admitted = await door.admit(who, key)
    assert admitted.stored == b"answer"
    assert admitted.verdict is not None
    assert admitted.verdict.remaining == 4
    # the first request teaches the script by EVAL; then what it calls, GET, and the INFO of this test
    assert int((await redis.info("stats"))["total_commands_processed"]) - before <= 1 + 1 + 3 + 1 + 1


async def test_two_redis_hold_limits_and_answers_apart() -> None:
    async with PrivateRedis() as limits, PrivateRedis() as cache:
        door, who = two(limits.client, cache.client, 5.0), caller(5)
        key = keyspace.redis_key(who, "prediction", "abc")
        door.store(key, b"answer", 60)
        admitted = await door.admit(who, key)
        assert (admitted.stored, await limits.client.dbsize(), await cache.client.dbsize()) == (b"answer", 1, 1)
        cache.pause()
        asked = time.monotonic()
        alone = await two(limits.client, cache.client, 0.05).admit(who, key)
        assert time.monotonic() - asked < 1.0
        assert alone.stored is None
        cache.resume()


async def test_a_thousand_requests_at_once_are_no_outage(redis: Redis) -> None:
    door, who = gate(redis, timeout_seconds=30.0), caller(2000)
    admitted = await asyncio.gather(*[door.admit(who, None) for _ in range(1000)])
    remaining = {result.verdict.remaining for result in admitted if result.verdict is not None}
    assert len(remaining) > 900  # counted in one place: this process's own bucket would count down too, but from 1999
    assert (await redis.get(keyspace.redis_key(who, "requests-per-minute"))) is not None


async def test_a_paused_redis_is_waited_for_briefly_and_then_left_alone() -> None:
    async with PrivateRedis() as server:
        door, who = gate(server.client, 0.05), caller(3)
        assert (await door.admit(who, None)).verdict is not None
        server.pause()
        waits = []
        remaining = []
        for _ in range(3):
            began = time.monotonic()
            admitted = await door.admit(who, "any")
            waits.append(time.monotonic() - began)
            assert admitted.stored is None
            assert admitted.verdict is not None
            remaining.append(admitted.verdict.remaining)
        assert remaining == [2, 1, 0]
        assert all(0.04 < wait < 0.5 for wait in waits)
        for _ in range(2):
            with pytest.raises(RateLimited):
                await door.admit(who, None)
        began = time.monotonic()
        with pytest.raises(RateLimited):
            await door.admit(who, None)
        assert time.monotonic() - began < 0.04  # five failures: Redis is not even asked
        server.resume()
        await asyncio.sleep(turns.OPEN_SECONDS)
        back = await door.admit(who, None)
        assert back.verdict is not None
        assert back.verdict.remaining in {0, 1}


async def test_a_redis_that_was_restarted_is_used_again() -> None:
    async with PrivateRedis() as server:
        door, who = gate(server.client, 1.0), caller(10)
        await door.admit(who, None)
        server.restart()
        lost = await door.admit(who, None)
        again = await door.admit(who, None)
        assert lost.verdict is not None
        assert again.verdict is not None
        assert (lost.verdict.remaining, again.verdict.remaining) == (8, 7)  # it remembers the bucket, not the script


async def test_a_reply_that_nobody_waited_for_reaches_nobody_else(redis: Redis) -> None:
    names = [f"k{number}" for number in range(50)]
    await redis.mset({name: name for name in names})
    wrong = 0

    async def ask(name: str, patience: float) -> None:
        nonlocal wrong
        found = await gate(redis, patience).find(name)
        wrong += found not in {None, name.encode()}

    for step in range(40):
        await asyncio.gather(*[ask(name, 0.0001 * (step + 1)) for name in names])
    assert wrong == 0
    assert await gate(redis).find("k7") == b"k7"


async def test_a_stored_answer_lives_as_long_as_the_policy_says(redis: Redis) -> None:
    door = gate(redis)
    door.store("a", b"x", 90)
    door.store("b", b"x", 0)
    assert await door.find("c") is None  # nobody waited for the settings, but they came first
    assert (await redis.ttl("a"), await redis.ttl("b")) == (90, 1)


async def test_what_was_just_stored_is_found_although_redis_is_gone(redis: Redis) -> None:
    async with PrivateRedis() as cache:
        door = two(redis, cache.client, 0.05)
        cache.pause()
        door.store("a", b"x", 90)
        assert await door.find("a") == b"x"
        assert await two(redis, cache.client, 0.05).find("a") is None
        cache.resume()
