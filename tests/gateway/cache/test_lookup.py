"""Where a stored response is looked up, what is counted, and what happens while Redis is frozen."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from caching import store
from caching.memory_cache import OVERHEAD_BYTES
from gateway import metrics
from gateway.cache.policy import CachePolicy
from gateway.cache.two_level_store import INLINE_BYTES
from tenants import registry
from tenants.caller_limits import LARGEST_ENTRY_BYTES, CacheTerms
from tenants.policy.purges import PurgeTarget, purge
from tenants.snapshot.snapshot import Caller
from tests.caching.entries import entry_of
from tests.gateway.fixtures import callers
from tests.gateway.fixtures.callers import Doors, cache_write, caller
from tests.gateway.fixtures.private_redis import PrivateRedis
from tests.gateway.fixtures.scripted_app import after, answer, saying
from tests.gateway.fixtures.tenants import HELLO, MODEL, Gateway, in_database, until
from tests.tenants.customers import OPERATOR

SHOWN = CollectorRegistry()
for each in metrics.METRICS:
    SHOWN.register(each)
#: Of one request: it is answered from what is stored or by an engine, and by no identical request that has just ended.
READ = {"x-prediction-cache": "read"}
NAMED = CachePolicy(name=b"n" * 32, digest=None, bypass=None, writable=True, only_if_cached=False, max_age_seconds=None)
LOOKUPS, STORES, EVICTIONS = (f"hearth_gateway_cache_{what}_total" for what in ("lookups", "stores", "evictions"))


def count(name: str, **labels: str) -> float:
    """Return what is counted until now."""
    return SHOWN.get_sample_value(name, labels) or 0.0


class Counted:
    """What is counted since it was made, or since it last was what was expected."""

    def __init__(self) -> None:
        self._before = self._now()

    async def becomes(self, **expected: float) -> None:
        """Wait until this is counted and nothing else: what Redis does is counted once it says so."""
        await until(lambda: self._since() == expected)
        self._before = self._now()

    def _since(self) -> dict[str, float]:
        return {name: now - self._before[name] for name, now in self._now().items() if now != self._before[name]}

    def _now(self) -> dict[str, float]:
        looks = {
            f"{level}_{outcome}": count(LOOKUPS, level=level, outcome=outcome)
            for level in ("first", "redis")
            for outcome in ("hit", "miss", "stale", "altered", "no_stream")
        }
        outcomes = ("stored", "quota", "write_rate", "too_large", "incomplete", "failed")
        return looks | {outcome: count(STORES, outcome=outcome) for outcome in outcomes}


async def test_each_look_is_counted_by_its_level_and_each_answer_by_whether_it_is_stored(gateway: Gateway) -> None:
    counted, prediction_cache = Counted(), gateway.runtime.components.prediction_cache
    await gateway.ask()
    await counted.becomes(first_miss=1, redis_miss=1, stored=1)
    await gateway.ask()
    await counted.becomes(first_hit=1)
    prediction_cache.clear_local()
    await gateway.ask()
    await counted.becomes(first_miss=1, redis_hit=1)
    await gateway.ask(headers={"cache-control": "max-age=0"})
    await counted.becomes(first_stale=1, redis_stale=1, stored=1)
    await gateway.ask({**HELLO, "temperature": 1})
    await counted.becomes()


@pytest.mark.parametrize(
    ("content", "times_smaller"),
    [("again and " * 1000, 5), (os.urandom(INLINE_BYTES).hex(), 1.5)],
    ids=["at once", "beside the loop"],
)
async def test_a_long_answer_is_packed_in_redis_and_given_as_it_was(
    gateway: Gateway, content: str, times_smaller: float
) -> None:
    message = {"role": "assistant", "content": content}
    gateway.let_all_say(saying(answer(choices=[{"index": 0, "message": message, "finish_reason": "stop"}])))
    counted = Counted()
    first = await gateway.ask()
    await counted.becomes(first_miss=1, redis_miss=1, stored=1)
    gateway.runtime.components.prediction_cache.clear_local()
    hit = await gateway.ask(headers=READ)
    assert (hit.body, hit.answer_headers["x-cache"]) == (first.body, "hit")
    await counted.becomes(first_miss=1, redis_hit=1)
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        [key] = [key async for key in redis.scan_iter("*:prediction:*")]
        assert await redis.strlen(key) < len(first.body) / times_smaller


async def test_a_process_that_ends_stores_what_it_was_packing(redis: Redis, door: Doors) -> None:
    prediction_cache, who, large = door.prediction_cache(), caller(), entry_of(bytes(2 * INLINE_BYTES))
    kept = cache_write(who, b"a")
    prediction_cache.put(large, lambda: kept)
    await prediction_cache.close()

    async def stored() -> bool:
        return bool(await redis.exists(store.entry_key(kept.tenant_id, kept.name)))

    await callers.until(stored)


async def test_what_is_purged_or_of_another_salt_epoch_is_given_by_neither_level(gateway: Gateway) -> None:
    acme, globex = gateway.world.acme, gateway.world.globex

    def who() -> Caller:
        return gateway.runtime.feed.snapshot.callers.caller(acme.key.public_id)

    counted = Counted()
    asked = UUID((await gateway.ask()).answer_headers["x-request-id"])
    await counted.becomes(first_miss=1, redis_miss=1, stored=1)
    for tenant in (globex.tenant, acme.tenant):  # a stranger purges nothing
        assert (await gateway.ask(headers=READ)).answer_headers["x-cache"] == "hit"
        await counted.becomes(first_hit=1)
        await in_database(lambda tenant=tenant: purge(OPERATOR, tenant, PurgeTarget(request_id=asked)))  # type: ignore[misc]
    await until(lambda: asked in who().cache.purges.requests)
    assert (await gateway.ask(headers=READ)).answer_headers["x-cache"] == "miss"
    await counted.becomes(first_stale=1, redis_stale=1)
    again = await gateway.ask(headers={"cache-control": "no-cache"})
    await counted.becomes(stored=1)
    assert (await gateway.ask(headers=READ)).answer_headers["x-source-id"] == again.answer_headers["x-request-id"]
    await counted.becomes(first_hit=1)
    await in_database(lambda: registry.set_policy(OPERATOR, acme.tenant, salt_epoch=2))
    await until(lambda: who().policy.salt_epoch == 2)
    assert (await gateway.ask(headers=READ)).answer_headers["x-cache"] == "miss"
    await counted.becomes(first_miss=1, redis_miss=1)


async def test_what_somebody_wrote_to_redis_is_counted_as_altered(gateway: Gateway) -> None:
    counted = Counted()
    await gateway.ask()
    await counted.becomes(first_miss=1, redis_miss=1, stored=1)
    async with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        [key] = [key async for key in redis.scan_iter("*:prediction:*")]
        await redis.setrange(key, 40, b"!")
    gateway.runtime.components.prediction_cache.clear_local()
    assert (await gateway.ask(headers=READ)).answer_headers["x-cache"] == "miss"
    await counted.becomes(first_miss=1, redis_altered=1)


async def test_an_answer_that_is_not_whole_is_counted_as_incomplete(gateway: Gateway) -> None:
    counted = Counted()
    cut = answer(choices=[{"index": 0, "message": {"role": "assistant", "content": "Hel"}, "finish_reason": "abort"}])
    gateway.let_all_say(saying(cut))
    await gateway.ask()
    await counted.becomes(first_miss=1, redis_miss=1, incomplete=1)


@pytest.mark.parametrize(
    ("changes", "outcome", "at_hand"),
    [
        ({}, "stored", True),
        ({"quota_bytes": 10}, "quota", False),
        ({"writes_per_minute": 0}, "write_rate", False),
    ],
)
async def test_what_redis_refuses_is_counted_by_its_reason_and_not_at_hand(
    redis: Redis, door: Doors, changes: dict[str, Any], outcome: str, at_hand: bool
) -> None:
    counted, prediction_cache, who = Counted(), door.prediction_cache(), caller()
    prediction_cache.store(cache_write(who, b"a", **changes), entry_of(b"{}"))
    await counted.becomes(**{outcome: 1})
    assert (prediction_cache.get_local(who.tenant_id, b"a") is not None) is at_hand


async def test_what_is_stored_while_redis_is_gone_is_at_hand_and_counted(door: Doors) -> None:
    counted, who = Counted(), caller()
    prediction_cache = door.prediction_cache("unix:///nowhere", timeout_seconds=0.2)
    prediction_cache.store(cache_write(who, b"a"), entry_of(b"{}"))
    await until(lambda: prediction_cache.get_local(who.tenant_id, b"a"))
    await counted.becomes(failed=1)


async def test_entries_that_make_room_are_counted_by_level(redis: Redis, door: Doors) -> None:
    prediction_cache, who = door.prediction_cache(), caller()
    before = [count(EVICTIONS, level=level) for level in ("first", "redis")]
    for name in (b"a", b"b", b"c"):
        prediction_cache.store(cache_write(who, name, quota_bytes=1100), entry_of(bytes((1 << 19) - OVERHEAD_BYTES)))
        await until(lambda name=name: prediction_cache.get_local(who.tenant_id, name))  # type: ignore[misc]
    after_all = [count(EVICTIONS, level=level) for level in ("first", "redis")]
    assert [now - then for now, then in zip(after_all, before, strict=True)] == [1, 1]
    assert prediction_cache.local_bytes() == 1 << 20


@pytest.mark.parametrize(
    ("body_bytes", "terms", "refused"),
    [
        (10, CacheTerms(entry_bytes=10), {}),
        (11, CacheTerms(entry_bytes=10), {"too_large": 1}),
        (LARGEST_ENTRY_BYTES + 1, CacheTerms(entry_bytes=8 * LARGEST_ENTRY_BYTES), {"too_large": 1}),
        (10, CacheTerms(writes_per_minute=0), {"write_rate": 1}),
    ],
)
async def test_what_no_redis_would_take_is_given_to_none_and_counted(
    body_bytes: int, terms: CacheTerms, refused: dict[str, float]
) -> None:
    counted = Counted()
    assert NAMED.is_storable(replace(caller(), cache=terms), entry_of(bytes(body_bytes))) is not bool(refused)
    await counted.becomes(**refused)


@pytest.mark.parametrize("body_bytes", [10, INLINE_BYTES + 1], ids=["at once", "in a thread"])
async def test_what_is_larger_than_a_quota_is_given_to_no_redis_and_counted_by_the_loop(
    door: Doors, body_bytes: int
) -> None:
    counted, prediction_cache, entry = Counted(), door.prediction_cache("unix:///nowhere"), entry_of(bytes(body_bytes))
    who = replace(caller(), cache=CacheTerms(quota_bytes=store.OVERHEAD_BYTES))
    pack = partial(NAMED.cache_write, who, MODEL, entry)
    assert await asyncio.to_thread(pack) is None
    await counted.becomes()
    prediction_cache.put(entry, pack)
    await counted.becomes(quota=1)


async def test_redis_that_stops_during_a_store_takes_no_answer_away(
    paused_at_will: tuple[Gateway, PrivateRedis],
) -> None:
    gateway, server = paused_at_will
    released = asyncio.Event()
    gateway.let_all_say(after(released))
    asked = asyncio.ensure_future(gateway.ask())
    await until(gateway.bodies)
    server.pause()
    released.set()
    first = await asked
    again = [await gateway.ask(headers=READ) for _ in range(2)]
    assert (first.status, first.answer_headers["x-cache"]) == (200, "miss")
    assert [(each.body, each.answer_headers["x-cache"]) for each in again] == [(first.body, "hit")] * 2
    assert len(gateway.bodies()) == 1
    server.resume()

    other = {**HELLO, "seed": 1}

    async def in_redis() -> bool:
        await gateway.ask(other)
        gateway.runtime.components.prediction_cache.clear_local()
        return (await gateway.ask(other, headers=READ)).answer_headers["x-cache"] == "hit"

    await callers.until(in_redis)
