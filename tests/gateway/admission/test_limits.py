"""Requests, tokens and concurrency of every limit at once, exactly, on a real Redis."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.admission.controller import Reservation
from gateway.admission.lua_scripts import RIDE_ALONG_BYTES, UNITS
from gateway.errors import BadRequest, GatewayError, RateLimited
from tenants.caller_limits import LimitLine
from tenants.isolation import keyspace
from tenants.snapshot.snapshot import Caller
from tests.caching.entries import entry_of
from tests.gateway.fixtures import tenants
from tests.gateway.fixtures.callers import Doors, cache_write, caller, demand, line, tried, until
from tests.gateway.fixtures.private_redis import PrivateRedis


def told(answer: Reservation | GatewayError) -> dict[str, str]:
    """Return the headers that an answer gets."""
    headers = answer.headers() if isinstance(answer, Reservation) else answer.headers
    return {name.decode(): value.decode() for name, value in headers}


async def everything(redis: Redis) -> dict[Any, bytes | None]:
    """Return all that Redis has."""
    return {key: await redis.dump(key) for key in sorted(await redis.keys())}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 11, 60, 70, 999])
async def test_a_bucket_admits_exactly_its_limit_however_many_ask_at_once(
    redis: Redis, door: Doors, limit: int
) -> None:
    gate, who = door(), caller(line(requests_per_minute=limit))
    began = time.monotonic()
    results = await asyncio.gather(*[tried(gate, demand(who)) for _ in range(limit + 20)])
    refilled = int((time.monotonic() - began) * limit / 60) + 1
    admitted = [result for result in results if isinstance(result, Reservation)]
    assert limit <= len(admitted) <= limit + refilled
    assert all(isinstance(result, Reservation | RateLimited) for result in results)


async def test_the_headers_tell_of_requests_and_tokens_and_whose_limit_is_nearest(redis: Redis, door: Doors) -> None:
    wide, narrow = line(requests_per_minute=100, tokens_per_minute=1000), line("key", "m", requests_per_minute=3)
    gate, who = door(), caller(wide, narrow)
    first, second = await tried(gate, demand(who)), await tried(gate, demand(who, model_name="other"))
    assert told(first) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "20.0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "990",
        "x-ratelimit-reset-tokens": "0.6s",
        "x-ratelimit-scope": "key:m",
    }
    assert told(second)["x-ratelimit-limit-requests"] == "100"
    assert told(second)["x-ratelimit-scope"] == "tenant"


async def test_a_refusal_names_its_limit_and_says_when_to_come_back(redis: Redis, door: Doors) -> None:
    gate, who = door(), caller(line("project", requests_per_minute=3))
    answers = [await tried(gate, demand(who)) for _ in range(4)]
    refused = answers[3]
    assert isinstance(refused, RateLimited)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert "project's limit of 3 requests per minute" in refused.message
    headers = told(refused)
    assert 1 <= int(headers.pop("retry-after")) <= 20
    assert 0 < float(headers.pop("x-ratelimit-reset-requests").rstrip("s")) <= 20
    assert headers == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-scope": "project",
    }


async def test_who_waits_as_long_as_told_is_admitted_next(redis: Redis, door: Doors) -> None:
    gate, who = door(), caller(line(requests_per_minute=60, tokens_per_minute=60_000))
    refused: Reservation | GatewayError = await tried(gate, demand(who, tokens=59_000))
    while isinstance(refused, Reservation):
        refused = await tried(gate, demand(who, tokens=2000))
    await asyncio.sleep(int(told(refused)["retry-after"]))
    assert isinstance(await tried(gate, demand(who, tokens=2000)), Reservation)


@pytest.mark.parametrize(
    "narrow",
    [
        line("key", requests_per_minute=1),
        line("key", tokens_per_minute=10),
        line("key", concurrent_requests=1),
    ],
)
async def test_a_refusal_by_one_limit_takes_nothing_from_any(redis: Redis, door: Doors, narrow: LimitLine) -> None:
    wide = line(requests_per_minute=50, tokens_per_minute=500, concurrent_requests=5)
    gate, who = door(), caller(wide, narrow)
    assert isinstance(await tried(gate, demand(who)), Reservation)
    before = await everything(redis)
    for _ in range(5):
        assert isinstance(await tried(gate, demand(who)), RateLimited)
    assert await everything(redis) == before


async def test_limits_of_other_models_and_other_tenants_stay_out_of_it(redis: Redis, door: Doors) -> None:
    shared = line("project", requests_per_minute=1)
    gate, busy = door(), caller(line("key", "other", requests_per_minute=0), shared)
    assert isinstance(await tried(gate, demand(busy)), Reservation)
    assert isinstance(
        await tried(gate, demand(caller(shared))), Reservation
    )  # another tenant's, though it has the same id
    assert isinstance(await tried(gate, demand(caller(shared, tenant=busy.tenant_id))), RateLimited)


@pytest.mark.parametrize(
    "closed", [line(requests_per_minute=0), line(tokens_per_minute=0), line(concurrent_requests=0)]
)
async def test_a_limit_of_zero_admits_nobody_and_asks_nobody(redis: Redis, door: Doors, closed: LimitLine) -> None:
    refused = await tried(door("unix:///nowhere"), demand(caller(closed)))
    assert isinstance(refused, RateLimited)
    assert told(refused)["retry-after"] == "60"


async def test_without_a_limit_and_without_a_lookup_nothing_is_asked(redis: Redis, door: Doors) -> None:
    await redis.config_resetstat()
    free = await door().admit(demand(caller(line("key", "other", requests_per_minute=1))))
    free.settle(tokens=5, amount_pico=1)
    assert (free.stored, free.headers(), await redis.dbsize()) == (None, [], 0)
    assert "cmdstat_evalsha" not in await redis.info("commandstats")


async def test_what_never_fits_is_refused_for_good(redis: Redis, door: Doors) -> None:
    gate, who = door(), caller(line(requests_per_minute=5, tokens_per_minute=100))
    refused = await tried(gate, demand(who, tokens=101))
    assert isinstance(refused, BadRequest)
    assert (refused.status, refused.code, told(refused)) == (
        400,
        "request_exceeds_limit",
        {"x-ratelimit-scope": "tenant"},
    )
    assert await redis.dbsize() == 0
    assert isinstance(await tried(gate, demand(who, tokens=100)), Reservation)


async def test_tokens_that_were_not_used_are_given_back_once(redis: Redis, door: Doors) -> None:
    gate, who = door(), caller(line(tokens_per_minute=6))
    first = await gate.admit(demand(who, tokens=6))
    assert isinstance(await tried(gate, demand(who, tokens=3)), RateLimited)
    for _ in range(3):
        first.settle(tokens=1, amount_pico=0)
    second = await gate.admit(demand(who, tokens=3))
    assert told(second)["x-ratelimit-remaining-tokens"] in {"2", "3"}  # one comes back each ten seconds


async def test_tokens_used_beyond_what_was_taken_are_owed(redis: Redis, door: Doors) -> None:
    gate, who = door(), caller(line(tokens_per_minute=60))
    first = await gate.admit(demand(who, tokens=10))
    first.settle(tokens=180, amount_pico=0)
    refused = await tried(gate, demand(who, tokens=1))
    assert 100 <= int(told(refused)["retry-after"]) <= 121


async def test_what_was_counted_before_is_never_refused_but_its_tokens_count(redis: Redis, door: Doors) -> None:
    limited = line(requests_per_minute=1, tokens_per_minute=10, concurrent_requests=1)
    gate, who = door(), caller(limited)
    asked = demand(who, tokens=10)
    await gate.admit(asked)
    again = await gate.admit(demand(who, tokens=10, limited=False))
    assert told(again)["x-ratelimit-remaining-tokens"] == "0"
    refused = await tried(gate, demand(caller(line(tokens_per_minute=10), tenant=who.tenant_id), tokens=11))
    assert isinstance(refused, BadRequest)


@settings(max_examples=30)
@given(
    limits=st.tuples(*[st.integers(1, 200) | st.integers(1, 2 * 10**11)] * 2),
    steps=st.lists(st.tuples(st.sampled_from(["admit", "settle"]), st.integers(0, 2**40)), max_size=20),
)
async def test_buckets_are_exact_for_any_limit(limits: tuple[int, int], steps: list[tuple[str, int]]) -> None:
    """Each state must follow from the one before to the unit, and no request be refused that would have fitted."""
    counted = line(requests_per_minute=min(limits[0], 2**31 - 1), tokens_per_minute=limits[1])
    who = caller(counted)
    flow = min(limits[1], 10**11)
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis, Doors() as door:
        gate = door()
        owed, since, open_tickets = 0, 0, list[Reservation]()
        for kind, number in steps:
            if kind == "settle" and open_tickets:
                ticket = open_tickets.pop()
                used = number % (2 * flow)
                ticket.settle(tokens=used, amount_pico=0)
                await door.heard()
                spent, at = await tokens_state(redis, who, counted)
                if used != ticket.request.tokens:
                    change = (used - ticket.request.tokens) * UNITS
                    assert spent == max(min(drained(owed, at - since, flow) + change, 9 * 10**15), 0)
                owed, since = spent, at
            elif kind == "admit":
                tokens = 1 + number % flow
                answer = await tried(gate, demand(who, tokens=tokens))
                if isinstance(answer, Reservation):
                    spent, at = await tokens_state(redis, who, counted)
                    assert spent == drained(owed, at - since, flow) + tokens * UNITS <= flow * UNITS
                    owed, since = spent, at
                    open_tickets.append(answer)
                elif "tokens" in answer.message:
                    assert owed + tokens * UNITS > flow * UNITS


def drained(owed: int, passed_ms: int, rate: int) -> int:
    """Return what is still owed after a while."""
    return max(owed - passed_ms * rate, 0)


async def tokens_state(redis: Redis, who: Caller, counted: LimitLine) -> tuple[int, int]:
    """Return the units of tokens that a limit is owed, and since when."""
    packed: Any = await redis.hget(keyspace.tenant_key(who.tenant_id, "limits"), counted.id.hex)
    state = [int(number) for number in struct.unpack("<ddddd", packed)]
    return state[2], state[3]


async def write_state(redis: Redis, who: Caller, counted: LimitLine, *state: float) -> None:
    """Put a state in a limit's place."""
    await redis.hset(keyspace.tenant_key(who.tenant_id, "limits"), counted.id.hex, struct.pack("<ddddd", *state))


async def test_a_clock_that_was_set_back_stops_nobody_for_longer_than_a_minute(redis: Redis, door: Doors) -> None:
    counted = line(requests_per_minute=60)
    gate, who = door(), caller(counted)
    tomorrow = (time.time() + 86_400) * 1000
    await write_state(redis, who, counted, 60 * UNITS, tomorrow, 0, tomorrow, 0)
    refused = await tried(gate, demand(who))
    assert told(refused)["retry-after"] == "1"
    await asyncio.sleep(1.1)
    assert isinstance(await tried(gate, demand(who)), Reservation)


@pytest.mark.parametrize(("before", "after", "seconds"), [(2, 100, None), (100, 2, 30)])
async def test_a_changed_limit_counts_at_once(
    redis: Redis, door: Doors, before: int, after: int, seconds: int | None
) -> None:
    gate, who, counted = door(), caller(), line(requests_per_minute=before, tokens_per_minute=before)
    old = caller(counted, tenant=who.tenant_id)
    while isinstance(await tried(gate, demand(old, tokens=1)), Reservation):
        pass
    changed = LimitLine(
        id=counted.id,
        scope="tenant",
        model_name="",
        requests_per_minute=after,
        tokens_per_minute=after,
        concurrent_requests=None,
    )
    answer = await tried(gate, demand(caller(changed, tenant=who.tenant_id), tokens=1))
    assert isinstance(answer, Reservation) is (seconds is None)
    assert seconds is None or int(told(answer)["retry-after"]) in {seconds - 1, seconds}


async def test_as_many_run_at_once_as_may_and_one_that_ends_makes_room(redis: Redis, door: Doors) -> None:
    gate, who = door(), caller(line("key", "m", concurrent_requests=3))
    results = await asyncio.gather(*[tried(gate, demand(who)) for _ in range(50)])
    running = [result for result in results if isinstance(result, Reservation)]
    refused = next(result for result in results if isinstance(result, RateLimited))
    assert (len(running), told(refused)) == (3, {"retry-after": "1", "x-ratelimit-scope": "key:m"})
    assert "API key's limit of 3 concurrent requests for 'm'" in refused.message
    for _ in range(2):
        running[0].settle(tokens=0, amount_pico=0)
    after = await asyncio.gather(*[tried(gate, demand(who)) for _ in range(3)])
    assert sum(isinstance(result, Reservation) for result in after) == 1


async def test_a_request_that_runs_on_keeps_its_lease_and_an_ended_one_does_not(redis: Redis, door: Doors) -> None:
    gate, counted = door(lease_seconds=3.0), line(concurrent_requests=2)
    who = caller(counted)
    key = keyspace.tenant_key(who.tenant_id, "leases", counted.id.hex)
    runs, ends = await gate.admit(demand(who)), await gate.admit(demand(who))
    first = await redis.zscore(key, runs.request.request_id.hex)
    ends.settle(tokens=10, amount_pico=0)

    async def renewed() -> bool:
        return (await redis.zscore(key, runs.request.request_id.hex) or 0) > (first or 0)

    await until(renewed)
    assert await redis.zcard(key) == 1
    runs.settle(tokens=10, amount_pico=0)

    async def gone() -> bool:
        return not await redis.exists(key)

    await until(gone)


async def test_a_cancelled_request_leaves_no_lease_behind(redis: Redis, door: Doors) -> None:
    gate, counted = door(), line(concurrent_requests=2)
    who = caller(counted)
    await gate.admit(demand(who))  # it is connected
    asked = asyncio.ensure_future(gate.admit(demand(who)))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert isinstance(await tried(gate, demand(who)), Reservation)


async def test_a_stored_answer_comes_with_its_limits_and_takes_a_request_alone(redis: Redis, door: Doors) -> None:
    limited = line(requests_per_minute=5, tokens_per_minute=100, concurrent_requests=1)
    gate, who = door(), caller(limited)
    key = keyspace.redis_key(who, "prediction", "abc")
    await redis.set(key, b"answer")
    await gate.admit(demand(who, tokens=100))
    await redis.config_resetstat()
    hits = [await gate.admit(demand(who, tokens=90, cache_key=key)) for _ in range(4)]
    calls = await redis.info("commandstats")
    assert ([hit.stored for hit in hits], calls["cmdstat_evalsha"]["calls"]) == ([b"answer"] * 4, 4)
    assert told(hits[3])["x-ratelimit-remaining-requests"] == "0"
    for hit in hits:
        hit.settle(tokens=0, amount_pico=0)
    assert isinstance(await tried(gate, demand(who, cache_key=key)), RateLimited)


@pytest.mark.parametrize("size", [RIDE_ALONG_BYTES, RIDE_ALONG_BYTES + 1])
async def test_a_large_answer_is_fetched_by_itself(redis: Redis, door: Doors, size: int) -> None:
    gate, who = door(), caller(line(requests_per_minute=5))
    key = keyspace.redis_key(who, "prediction", "abc")
    await redis.set(key, b"x" * size)
    assert (await gate.admit(demand(who, cache_key=key))).stored == b"x" * size


async def test_an_answer_that_cannot_be_used_costs_the_request_what_an_engine_does(redis: Redis, door: Doors) -> None:
    gate, who = door(), caller(line(requests_per_minute=5, tokens_per_minute=100, concurrent_requests=1))
    key = keyspace.redis_key(who, "prediction", "abc")
    await redis.set(key, b"forged")
    ticket = await gate.admit(demand(who, tokens=60, cache_key=key))
    await ticket.take_for_engine()
    assert ticket.stored is None
    assert told(ticket)["x-ratelimit-remaining-requests"] == "4"
    assert told(ticket)["x-ratelimit-remaining-tokens"] in {"40", "41", "42"}
    second = await gate.admit(demand(who, tokens=10, cache_key=key))
    with pytest.raises(RateLimited, match="concurrent requests"):
        await second.take_for_engine()


async def test_two_redis_hold_limits_and_answers_apart(door: Doors) -> None:
    async with PrivateRedis() as cache:
        who = caller(line(requests_per_minute=5, tokens_per_minute=100))
        key = keyspace.redis_key(who, "prediction", "abc")
        gate = door(cache_url=cache.url)
        await cache.client.set(key, b"answer")
        found = await gate.admit(demand(who, tokens=60, cache_key=key))
        assert (found.stored, await cache.client.dbsize()) == (b"answer", 1)
        await found.take_for_engine()  # it has taken all before it was known that an answer is there
        assert told(found)["x-ratelimit-remaining-tokens"] == "40"
        found.settle(tokens=0, amount_pico=0)
        cache.pause()
        alone = await door(cache_url=cache.url, timeout_seconds=0.2).admit(demand(who, tokens=60, cache_key=key))
        assert alone.stored is None
        cache.resume()


async def test_what_was_just_stored_is_at_hand_although_redis_is_gone(door: Doors) -> None:
    prediction_cache, who, kept = (
        door.prediction_cache("unix:///nowhere", timeout_seconds=0.2),
        caller(),
        entry_of(b"answer"),
    )
    prediction_cache.store(cache_write(who, b"a"), kept)
    await tenants.until(lambda: prediction_cache.get_local(who.tenant_id, b"a"))
    assert (prediction_cache.get_local(who.tenant_id, b"a"), prediction_cache.get_local(who.tenant_id, b"b")) == (
        kept,
        None,
    )
