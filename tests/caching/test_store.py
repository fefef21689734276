"""What each tenant stores in Redis: bounded, separate from other tenants, and freed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from redis import Redis

from caching import store
from caching.store import OVERHEAD_BYTES, STORED, TOO_LARGE, TOO_MANY_WRITES, CacheUsage, CacheWrite
from tenants.ids import TenantId, new_id

ACME, GLOBEX = TenantId(UUID(int=1)), TenantId(UUID(int=2))
KEY = UUID(int=3)
SIZE = OVERHEAD_BYTES + 10


@pytest.fixture
def redis() -> Iterator[Redis]:
    """The session's Redis, emptied."""
    with Redis.from_url(os.environ["REDIS_URL"]) as client:
        client.flushdb()
        yield client


def keep(
    redis: Redis, name: str, *, tenant: TenantId = ACME, value: bytes = b"0123456789", **changes: Any
) -> list[int]:
    """Store an entry, by default with a quota for three; return the outcome and the number of evictions."""
    usual: dict[str, Any] = {
        "ttl_seconds": 90,
        "quota_bytes": 3 * SIZE,
        "writes_per_minute": None,
        "key_id": KEY,
        "source_id": new_id(),
        "model_name": "demo model",
    }
    deposit = CacheWrite(tenant_id=tenant, name=name.encode(), value=value, **{**usual, **changes})
    answer: list[int] = redis.eval(store.STORE, *deposit.arguments())  # type: ignore[arg-type]
    return answer


def kept(redis: Redis, names: str, tenant: TenantId = ACME) -> str:
    """Return which of these one-letter names are stored."""
    return "".join(name for name in names if redis.exists(store.entry_key(tenant, name.encode())))


def test_a_tenants_least_recently_used_make_room_and_nothing_of_another(redis: Redis) -> None:
    for name in "abc":
        assert keep(redis, name) == [STORED, 0]
        assert keep(redis, name, tenant=GLOBEX) == [STORED, 0]
        redis.zadd(store.used_key(ACME), {name.encode().hex(): ord(name)})  # each used in another millisecond
    redis.eval(store.USED, 1, store.used_key(ACME), b"a".hex(), b"unknown".hex())
    assert keep(redis, "d") == [STORED, 1]
    assert (kept(redis, "abcd"), kept(redis, "abcd", GLOBEX)) == ("acd", "abc")
    assert store.usage_of(redis, ACME) == store.usage_of(redis, GLOBEX) == CacheUsage(entries=3, bytes=3 * SIZE)


def test_an_entry_replaces_the_one_of_its_name_and_its_bytes(redis: Redis) -> None:
    assert [keep(redis, "a", value=bytes(size)) for size in (10, 500, 20)] == [[STORED, 0]] * 3
    assert store.usage_of(redis, ACME) == CacheUsage(entries=1, bytes=OVERHEAD_BYTES + 20)


def test_what_is_larger_than_the_quota_evicts_nothing(redis: Redis) -> None:
    keep(redis, "a")
    assert keep(redis, "b", value=bytes(3 * SIZE)) == [TOO_LARGE, 0]
    assert (kept(redis, "ab"), store.usage_of(redis, ACME).entries) == ("a", 1)


def test_a_quota_that_was_lowered_is_kept_from_the_next_store_on(redis: Redis) -> None:
    for name in "abc":
        keep(redis, name)
    assert keep(redis, "d", quota_bytes=SIZE) == [STORED, 3]
    assert store.usage_of(redis, ACME) == CacheUsage(entries=1, bytes=SIZE)


def test_entries_that_expired_give_their_bytes_back(redis: Redis) -> None:
    for name in "ab":
        keep(redis, name)
    ends = store.used_key(ACME).removesuffix("used") + "ends"
    redis.zadd(ends, {b"a".hex(): 1})
    keep(redis, "c")
    assert (kept(redis, "abc"), store.usage_of(redis, ACME)) == ("bc", CacheUsage(entries=2, bytes=2 * SIZE))


def test_a_key_writes_so_often_a_minute_and_no_more(redis: Redis) -> None:
    outcomes = [keep(redis, name, writes_per_minute=2)[0] for name in "abc"]
    assert (outcomes, kept(redis, "abc")) == ([STORED, STORED, TOO_MANY_WRITES], "ab")
    assert keep(redis, "c", writes_per_minute=2, key_id=uuid4()) == [STORED, 0]
    assert keep(redis, "d", writes_per_minute=0) == [TOO_MANY_WRITES, 0]


@pytest.mark.parametrize("part", ["known", "used", "ends"])
def test_a_part_of_the_index_that_redis_evicted_stops_nothing(redis: Redis, part: str) -> None:
    for name in "abc":
        keep(redis, name)
    redis.delete(store.used_key(ACME).removesuffix("used") + part)
    outcomes = {keep(redis, name)[0] for name in "defg"}
    assert (outcomes, kept(redis, "g")) == ({STORED}, "g")
    assert store.usage_of(redis, ACME).bytes <= 3 * SIZE


def test_everything_of_a_tenant_expires(redis: Redis) -> None:
    keep(redis, "a", writes_per_minute=2)
    assert all(0 < redis.pttl(key) <= 90_000 for key in redis.keys("*"))


def test_entries_are_deleted_by_model_key_and_request_and_nothing_of_another_tenant(redis: Redis) -> None:
    source, other_key = new_id(), uuid4()
    keep(redis, "a", source_id=source)
    keep(redis, "b", key_id=other_key)
    keep(redis, "c", model_name="other")
    keep(redis, "a", tenant=GLOBEX, source_id=source)
    assert store.delete(redis, ACME, request_id=source) == 1
    assert store.delete(redis, ACME, key_id=other_key, model_names={"other"}) == 0
    assert store.delete(redis, ACME, key_id=other_key) == 1
    assert (kept(redis, "abc"), store.usage_of(redis, ACME)) == ("c", CacheUsage(entries=1, bytes=SIZE))
    assert (store.delete(redis, ACME, model_names={"other"}), store.delete(redis, ACME)) == (1, 0)
    assert (kept(redis, "a", GLOBEX), store.usage_of(redis, ACME)) == ("a", CacheUsage(entries=0, bytes=0))


def test_what_was_stored_anew_since_it_was_found_is_not_deleted(redis: Redis) -> None:
    index = [store.used_key(ACME).removesuffix("used") + part for part in ("known", "used", "ends")]
    keep(redis, "a")
    found = redis.hgetall(index[0])[b"a".hex().encode()]
    keep(redis, "a", key_id=uuid4())
    prefix = store.entry_key(ACME, b"")
    assert redis.eval(store.DROP, 3, *index, prefix, b"a".hex(), found) == 0
    assert (kept(redis, "a"), store.usage_of(redis, ACME)) == ("a", CacheUsage(entries=1, bytes=SIZE))
