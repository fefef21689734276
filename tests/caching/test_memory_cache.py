"""The memory cache is bounded in bytes and time, and one tenant's writes do not evict another's share."""

from __future__ import annotations

import os
import tracemalloc
from time import sleep
from uuid import UUID, uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from caching.entry import Entry, decode, encode
from caching.memory_cache import OVERHEAD_BYTES, MemoryCache
from tests.caching.entries import entry_of

ACME, GLOBEX = UUID(int=1), UUID(int=2)
ENTRY = entry_of(b"1234")
SIZE = OVERHEAD_BYTES + 4


def kept(recent: MemoryCache, names: str, tenant: UUID = ACME) -> str:
    """Return which of these one-letter names are cached."""
    return "".join(name for name in names if recent.get(tenant, name.encode()) is not None)


def test_an_entry_is_found_until_it_is_too_old() -> None:
    recent = MemoryCache(max_bytes=SIZE)
    recent.put(ACME, b"a", ENTRY, seconds=30)
    assert recent.get(ACME, b"a") is ENTRY
    recent.put(ACME, b"a", ENTRY, seconds=0.01)
    sleep(0.02)
    assert (recent.get(ACME, b"a"), recent.bytes) == (None, 0)


def test_the_least_recently_used_make_room() -> None:
    recent = MemoryCache(max_bytes=2 * SIZE)
    for name in (b"a", b"b", b"c"):
        recent.put(ACME, name, ENTRY, seconds=9)
        recent.get(ACME, b"a")
    assert (kept(recent, "abc"), recent.evicted) == ("ac", 1)


def test_a_new_entry_replaces_the_old_one_and_its_bytes() -> None:
    recent = MemoryCache(max_bytes=2 * SIZE)
    for body in (b"123456", b"12345", b"1234"):
        recent.put(ACME, b"a", entry_of(body), seconds=9)
    recent.put(ACME, b"b", ENTRY, seconds=9)
    assert (recent.get(ACME, b"a"), recent.get(ACME, b"b"), recent.bytes) == (ENTRY, ENTRY, 2 * SIZE)


def test_what_is_larger_than_everything_pushes_nothing_out() -> None:
    recent = MemoryCache(max_bytes=SIZE)
    recent.put(ACME, b"a", ENTRY, seconds=9)
    recent.put(ACME, b"b", entry_of(b"12345"), seconds=9)
    assert kept(recent, "ab") == "a"


def test_where_nothing_may_be_at_hand_nothing_is() -> None:
    recent = MemoryCache(max_bytes=0)
    recent.put(ACME, b"a", ENTRY, seconds=9)
    assert kept(recent, "a") == ""


def test_a_tenant_finds_nothing_of_another_under_the_same_name() -> None:
    recent = MemoryCache(max_bytes=9 * SIZE)
    recent.put(ACME, b"a", ENTRY, seconds=9)
    assert recent.get(GLOBEX, b"a") is None
    recent.drop(GLOBEX, b"a")
    assert kept(recent, "a") == "a"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(2, 4), st.integers(0, 30), st.integers(0, 4000)), max_size=60))
def test_a_flood_never_pushes_out_a_tenant_that_holds_less_than_its_share(flood: list[tuple[int, int, int]]) -> None:
    recent = MemoryCache(max_bytes=16 * SIZE)
    for name in "abcd":
        recent.put(ACME, name.encode(), ENTRY, seconds=50)
    for tenant, number, size in flood:
        recent.put(UUID(int=tenant), bytes([number]), entry_of(bytes(size)), seconds=50)
        assert recent.bytes <= recent.max_bytes
    assert kept(recent, "abcd") == "abcd"


def test_what_is_kept_takes_no_more_memory_than_it_is_counted_for() -> None:
    recent = MemoryCache(max_bytes=1 << 30)
    fresh = [(os.urandom(32), new_entry(number)) for number in range(2000)]
    values = [(name, encode(name, entry)) for name, entry in fresh]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name, value in values:
            found = decode(name, value)
            assert found is not None
            recent.put(ACME, bytes(bytearray(name)), found, seconds=50)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0 < after - before <= recent.bytes


def new_entry(number: int) -> Entry:
    """Return an entry that shares no objects with any other."""
    return entry_of(
        b"x",
        prompt_tokens=1000 + number,
        cached_prompt_tokens=1000 + number,
        completion_tokens=1000 + number,
        engine_ms=0.5 + number,
        source_id=uuid4(),
        key_id=uuid4(),
        stored_at=0.5 + number,
        ttl_seconds=1000 + number,
    )
