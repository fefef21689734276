"""A stored response is read back unchanged, or not at all."""

from __future__ import annotations

import dataclasses
import os
import time

from django.conf import LazySettings
from django.conf import settings as django_settings
from hypothesis import given
from hypothesis import strategies as st

from caching.entry import PLAIN_BYTES, Entry, decode, encode
from hearth.secrets import Secrets, VersionedKey
from tenants.caller_limits import LARGEST_ENTRY_BYTES
from tenants.isolation import sealed
from tests.caching.entries import NAME, entry_of

names = st.binary(min_size=32, max_size=32)
entries = st.builds(
    Entry,
    body=st.one_of(st.binary(max_size=200), st.just(b"long" * PLAIN_BYTES)),
    prompt_tokens=st.integers(0, 2**31),
    cached_prompt_tokens=st.integers(0, 2**31),
    completion_tokens=st.integers(0, 2**31),
    engine_ms=st.floats(0, 1e9),
    source_id=st.uuids(),
    key_id=st.uuids(),
    stored_at=st.floats(0, 2e9),
    ttl_seconds=st.integers(0, 2**31),
)


@given(names, entries)
def test_what_is_stored_is_read_back(name: bytes, entry: Entry) -> None:
    assert decode(name, encode(name, entry)) == entry


@given(entries, st.data())
def test_an_altered_byte_is_a_miss(entry: Entry, data: st.DataObject) -> None:
    value = bytearray(encode(NAME, entry))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    assert decode(NAME, bytes(value)) is None


@given(entries, st.data())
def test_a_cut_value_is_a_miss(entry: Entry, data: st.DataObject) -> None:
    value = encode(NAME, entry)
    assert decode(NAME, value[: data.draw(st.integers(0, len(value) - 1))]) is None


@given(entries, names)
def test_a_value_moved_to_another_name_is_a_miss(entry: Entry, other: bytes) -> None:
    assert (decode(other, encode(NAME, entry)) is None) == (other != NAME)


@given(st.binary(max_size=300))
def test_anything_else_is_a_miss(junk: bytes) -> None:
    assert decode(NAME, junk) is None
    assert decode(NAME, sealed.seal(NAME, junk)) is None


def test_a_value_under_a_key_of_another_version_is_a_miss(settings: LazySettings) -> None:
    stored = encode(NAME, entry_of(b"{}"))
    secrets: Secrets = django_settings.SECRETS
    other = VersionedKey(current=2, versions={2: b"2" * 32})
    settings.SECRETS = dataclasses.replace(secrets, cache_mac=other)
    assert decode(NAME, stored) is None


def test_the_largest_entry_is_read_back() -> None:
    largest = entry_of(os.urandom(LARGEST_ENTRY_BYTES))
    assert decode(NAME, encode(NAME, largest)) == largest


def test_a_large_entry_is_stored_in_less_than_it_has_and_a_small_one_as_it_is() -> None:
    large, small = entry_of(b"word " * PLAIN_BYTES), entry_of(b"word")
    assert len(encode(NAME, large)) < len(large.body) / 10
    assert small.body in encode(NAME, small)


def test_the_age_is_in_whole_seconds_and_never_negative() -> None:
    def at(stored_at: float) -> Entry:
        return entry_of(b"", stored_at=stored_at)

    assert at(time.time() - 90.5).age_seconds() == 90
    assert at(time.time() + 1000).age_seconds() == 0
