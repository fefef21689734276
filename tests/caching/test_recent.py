"""What a process keeps at hand is bounded in bytes and in time."""

from __future__ import annotations

from time import sleep

from caching.recent import Recent


def test_an_entry_is_found_until_it_is_too_old() -> None:
    recent = Recent(max_bytes=100)
    recent.put("a", b"value", ttl_seconds=0.05)
    assert recent.get("a") == b"value"
    sleep(0.06)
    assert recent.get("a") is None


def test_the_least_recently_used_make_room() -> None:
    recent = Recent(max_bytes=10)
    for key in "abc":
        recent.put(key, b"1234", ttl_seconds=9)
        recent.get("a")
    assert [recent.get(key) for key in "abc"] == [b"1234", None, b"1234"]


def test_a_new_value_replaces_the_old_one_and_its_bytes() -> None:
    recent = Recent(max_bytes=10)
    for value in (b"123456", b"12345", b"1234"):
        recent.put("a", value, ttl_seconds=9)
    recent.put("b", b"123456", ttl_seconds=9)
    assert (recent.get("a"), recent.get("b")) == (b"1234", b"123456")


def test_what_is_larger_than_everything_pushes_nothing_out() -> None:
    recent = Recent(max_bytes=10)
    recent.put("a", b"1234", ttl_seconds=9)
    recent.put("b", b"12345678901", ttl_seconds=9)
    assert (recent.get("a"), recent.get("b")) == (b"1234", None)
