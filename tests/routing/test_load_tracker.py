"""Tokens in flight, the bound on affinity, and turns among equally loaded replicas."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from routing.load_tracker import LOAD_BOUND, LoadTracker
from tests.routing.prompts import replicas

A, B, C = replicas(3)


def board(*tokens: int) -> LoadTracker[UUID]:
    """Return a tracker with these tokens in flight on the first replicas."""
    loads: LoadTracker[UUID] = LoadTracker()
    for replica, count in zip(replicas(len(tokens)), tokens, strict=True):
        loads.add(replica, count)
    return loads


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12), st.integers(1, 10_000))
def test_the_bound_admits_exactly_those_not_above_the_mean_by_a_quarter(tokens: list[int], arriving: int) -> None:
    everybody = replicas(len(tokens))
    mean = (sum(tokens) + arriving) / len(tokens)
    assert board(*tokens).below_bound(everybody, arriving) == {
        replica for replica, count in zip(everybody, tokens, strict=True) if count <= 1.25 * mean
    }
    assert LOAD_BOUND == 1.25


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12), st.integers(1, 10_000))
def test_somebody_is_always_below_the_bound(tokens: list[int], arriving: int) -> None:
    everybody = replicas(len(tokens))
    assert min(everybody, key=board(*tokens).tokens) in board(*tokens).below_bound(everybody, arriving)


def test_nobody_is_below_the_bound_of_an_empty_fleet() -> None:
    assert board().below_bound([], 10) == set()


@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(1, 1000)), max_size=30))
def test_what_was_taken_and_given_back_leaves_nothing(taken: list[tuple[UUID, int]]) -> None:
    loads: LoadTracker[UUID] = LoadTracker()
    for replica, tokens in taken:
        loads.add(replica, tokens)
    for replica, tokens in reversed(taken):
        loads.remove(replica, tokens)
    assert [loads.tokens(replica) for replica in (A, B, C)] == [0, 0, 0]


def test_equals_take_turns() -> None:
    loads: LoadTracker[UUID] = LoadTracker()
    turns = []
    for _ in range(6):
        chosen = min((A, B, C), key=loads.order)
        turns.append(chosen)
        loads.add(chosen, 10)
        loads.remove(chosen, 10)
    assert turns == [A, B, C, A, B, C]


def test_a_replica_that_joins_gets_one_turn_and_not_all_that_others_had() -> None:
    loads: LoadTracker[UUID] = LoadTracker()
    for replica in [A, B] * 50:
        loads.add(replica, 1)
        loads.remove(replica, 1)
    turns = []
    for _ in range(3):
        chosen = min((A, B, C), key=loads.order)
        turns.append(chosen)
        loads.add(chosen, 1)
        loads.remove(chosen, 1)
    assert turns == [C, A, B]


def test_the_least_loaded_goes_before_any_turn() -> None:
    loads = board(5, 1, 3)
    assert sorted((A, B, C), key=loads.order) == [B, C, A]


def test_what_a_forgotten_replica_has_in_flight_is_counted_until_it_ends() -> None:
    loads = board(0, 100)
    loads.forget(B)
    loads.add(B, 40)
    loads.remove(B, 100)
    assert loads.tokens(B) == 40
