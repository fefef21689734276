"""What a process keeps at hand is bounded in bytes and in time, and no tenant's flood reaches another's share."""

from __future__ import annotations

from time import sleep
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from caching.recent import OVERHEAD_BYTES, Recent

ACME, GLOBEX = UUID(int=1), UUID(int=2)
SIZE = OVERHEAD_BYTES + 4


def test_an_entry_is_found_until_it_is_too_old() -> None:
    recent = Recent(max_bytes=SIZE)
    recent.put(ACME, "a", b"1234", ttl_seconds=0.05)
    assert recent.get(ACME, "a") == b"1234"
    sleep(0.06)
    assert recent.get(ACME, "a") is None


def test_the_least_recently_used_make_room() -> None:
    recent = Recent(max_bytes=2 * SIZE)
    for key in "abc":
        recent.put(ACME, key, b"1234", ttl_seconds=9)
        recent.get(ACME, "a")
    assert [recent.get(ACME, key) for key in "abc"] == [b"1234", None, b"1234"]


def test_a_new_value_replaces_the_old_one_and_its_bytes() -> None:
    recent = Recent(max_bytes=2 * SIZE)
    for value in (b"123456", b"12345", b"1234"):
        recent.put(ACME, "a", value, ttl_seconds=9)
    recent.put(ACME, "b", b"1234", ttl_seconds=9)
    assert (recent.get(ACME, "a"), recent.get(ACME, "b")) == (b"1234", b"1234")


def test_what_is_larger_than_everything_pushes_nothing_out() -> None:
    recent = Recent(max_bytes=SIZE)
    recent.put(ACME, "a", b"1234", ttl_seconds=9)
    recent.put(ACME, "b", b"12345", ttl_seconds=9)
    assert (recent.get(ACME, "a"), recent.get(ACME, "b")) == (b"1234", None)


def test_a_tenant_finds_nothing_of_another_under_the_same_key() -> None:
    recent = Recent(max_bytes=9 * SIZE)
    recent.put(ACME, "a", b"1234", ttl_seconds=9)
    assert recent.get(GLOBEX, "a") is None
    recent.drop(GLOBEX, "a")
    assert recent.get(ACME, "a") == b"1234"


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(2, 4), st.integers(0, 30), st.integers(0, 2000)), max_size=60))
def test_a_flood_never_pushes_out_a_tenant_that_holds_less_than_its_share(flood: list[tuple[int, int, int]]) -> None:
    recent = Recent(max_bytes=16 * SIZE)
    for key in "abcd":
        recent.put(ACME, key, b"1234", ttl_seconds=50)
    for tenant, number, size in flood:
        recent.put(UUID(int=tenant), str(number), bytes(size), ttl_seconds=50)
    assert [recent.get(ACME, key) for key in "abcd"] == [b"1234"] * 4
