"""The prefix index: bounded, evicts the least recently used, finds the longest match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.prefix_hash import CHUNK_BYTES, PrefixHashes, PromptMessage
from routing.prefix_index import PrefixIndex
from tests.routing.prompts import prompt, prompts, replicas, shared, user

A, B, C = replicas(3)


def document(chunks: int, fill: str = "d") -> str:
    """Return a text of this many chunks."""
    return fill * (CHUNK_BYTES * chunks)


def test_the_depth_is_the_longest_beginning_each_replica_has_seen() -> None:
    index: PrefixIndex[object] = PrefixIndex()
    index.insert(prompt(user(document(3)), user("one")), A)
    index.insert(prompt(user(document(2)), user("two")), B)
    assert index.depths(prompt(user(document(3)), user("one"))) == {A: 4, B: 2}
    assert index.depths(prompt(user(document(3)), user("three"))) == {A: 3, B: 2}
    assert index.depths(prompt(user("elsewhere"))) == {}


@given(st.lists(st.tuples(prompts, st.sampled_from([A, B, C])), max_size=8), prompts)
def test_depths_equal_a_search_through_everything_inserted(
    seen: list[tuple[list[PromptMessage], object]], wanted: list[PromptMessage]
) -> None:
    index: PrefixIndex[object] = PrefixIndex()
    for said, replica in seen:
        index.insert(prompt(*said), replica)
    expected: dict[object, int] = {}
    for said, replica in seen:
        common = shared(prompt(*said), prompt(*wanted))
        if common:
            expected[replica] = max(common, expected.get(replica, 0))
    assert index.depths(prompt(*wanted)) == expected


@given(st.lists(st.tuples(st.none() | prompts, st.sampled_from([A, B, C])), max_size=12), prompts)
def test_what_is_forgotten_of_one_replica_stays_known_of_the_others(
    done: list[tuple[list[PromptMessage] | None, object]], wanted: list[PromptMessage]
) -> None:
    index: PrefixIndex[object] = PrefixIndex()
    seen: list[tuple[list[PromptMessage], object]] = []
    for said, replica in done:
        if said is None:
            index.forget(replica)
            seen = [each for each in seen if each[1] is not replica]
        else:
            index.insert(prompt(*said), replica)
            seen.append((said, replica))
    alone: PrefixIndex[object] = PrefixIndex()
    for said, replica in seen:
        alone.insert(prompt(*said), replica)
    assert index.depths(prompt(*wanted)) == alone.depths(prompt(*wanted))
    assert len(index) == len(alone)


@given(st.integers(1, 40), st.lists(prompts, max_size=12))
def test_the_index_never_holds_more_than_its_capacity(capacity: int, seen: list[list[PromptMessage]]) -> None:
    index: PrefixIndex[object] = PrefixIndex(capacity)
    for said in seen:
        index.insert(prompt(*said), A)
        assert len(index) <= capacity


def test_the_least_recently_used_prompt_is_forgotten_first() -> None:
    index: PrefixIndex[object] = PrefixIndex(capacity=4)
    old, used, new = (prompt(user(document(2, fill))) for fill in "oun")
    index.insert(old, A)
    index.insert(used, A)
    index.insert(old, A)
    index.insert(new, A)
    assert [index.depths(chain) for chain in (old, used, new)] == [{A: 2}, {}, {A: 2}]


def test_the_tail_of_a_prompt_is_forgotten_before_its_head() -> None:
    index: PrefixIndex[object] = PrefixIndex(capacity=3)
    long = prompt(user(document(5)))
    index.insert(long, A)
    assert index.depths(long) == {A: 3}


def test_a_forgotten_replica_is_warm_nowhere_and_leaves_no_entry() -> None:
    index: PrefixIndex[object] = PrefixIndex()
    both, alone = prompt(user("both")), prompt(user("alone"))
    index.insert(both, A)
    index.insert(both, B)
    index.insert(alone, A)
    index.forget(A)
    assert index.depths(both) == {B: 1}
    assert index.depths(alone) == {}
    assert len(index) == 1


def test_an_index_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PrefixIndex(capacity=0)


def test_an_empty_chain_is_warm_nowhere() -> None:
    index: PrefixIndex[object] = PrefixIndex()
    index.insert(PrefixHashes(hashes=(), ends=(), system_hashes=0, tokens=1), A)
    assert len(index) == 0
