"""Which placeholders to make and which are too many, decided from facts alone."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.scheduler.placeholder_policy import Refill, Shelf, refill

FAST, SLOW, LAST = UUID(int=1), UUID(int=2), UUID(int=3)
NEXT = {FAST: SLOW, SLOW: LAST}


def shelf(number: int, *, pool: UUID = FAST, wanted: int = 2, free: int = 4, held: int = 0, calm: bool = True) -> Shelf:
    """Return node ``number`` with ``held`` placeholders, numbered 100 per node."""
    return Shelf(
        node_id=UUID(int=10 + number),
        name=f"n{number}",
        pool_id=pool,
        wanted=wanted,
        free=free,
        held=tuple(UUID(int=100 * number + each) for each in range(held)),
        calm=calm,
    )


def made(*shelves: Shelf) -> list[int]:
    """Return the numbers of the nodes that get a placeholder."""
    return [node_id.int - 10 for node_id in refill(shelves, NEXT).make]


def test_each_node_gets_one_at_a_time_until_it_has_what_its_pool_wants() -> None:
    assert made(shelf(1), shelf(2, held=1), shelf(3, held=2)) == [1, 2]


def test_what_is_as_wanted_is_left_alone() -> None:
    assert refill([shelf(1, held=2), shelf(2, wanted=0)], NEXT) == Refill(make=(), evict=())


def test_the_worst_of_too_many_go() -> None:
    steps = refill([shelf(1, wanted=1, held=3)], NEXT)
    assert steps == Refill(make=(), evict=(UUID(int=101), UUID(int=102)))


def test_nothing_is_made_while_a_replica_starts_there() -> None:
    assert made(shelf(1, calm=False), shelf(2)) == [2]


def test_what_a_full_node_cannot_hold_is_held_by_another_of_its_pool() -> None:
    assert made(shelf(1, free=0), shelf(2, held=2)) == [2]


def test_what_a_full_pool_cannot_hold_is_held_in_the_next_one() -> None:
    assert made(shelf(1, free=0), shelf(2, pool=SLOW, wanted=0)) == [2]
    assert made(shelf(1, free=1, held=1), shelf(2, pool=SLOW, wanted=0)) == [1]


def test_what_two_full_pools_cannot_hold_is_held_in_the_third() -> None:
    full = shelf(1, free=0), shelf(2, pool=SLOW, free=0)
    assert made(*full, shelf(3, pool=LAST, wanted=0)) == [3]
    assert refill(full, NEXT) == Refill(make=(), evict=())


def test_what_is_carried_is_spread_over_the_next_pool_and_stays_where_it_is() -> None:
    full = shelf(1, free=0, wanted=2)
    assert made(full, shelf(2, pool=SLOW, wanted=0), shelf(3, pool=SLOW, wanted=0)) == [2, 3]
    settled = shelf(2, pool=SLOW, wanted=0), shelf(3, pool=SLOW, wanted=0, held=2)
    assert refill([full, *settled], NEXT) == Refill(make=(), evict=())


def test_what_was_carried_goes_once_the_first_pool_has_room_again() -> None:
    steps = refill([shelf(1, wanted=1, held=1), shelf(2, pool=SLOW, wanted=0, held=1)], NEXT)
    assert steps == Refill(make=(), evict=(UUID(int=200),))


def test_pools_of_different_deployments_carry_nothing_to_each_other() -> None:
    steps = refill([shelf(1, free=0), shelf(2, pool=SLOW, wanted=0)], {})
    assert steps == Refill(make=(), evict=())


@st.composite
def any_shelves(draw: st.DrawFn) -> list[Shelf]:
    """Return the nodes of three pools, in the order of the pools."""
    count = st.integers(0, 4)
    return [
        shelf(10 * place + number, pool=pool, wanted=draw(count), free=draw(count), held=draw(count))
        for place, pool in enumerate((FAST, SLOW, LAST))
        for number in range(1, draw(st.integers(0, 3)) + 1)
    ]


@settings(deadline=None)
@given(any_shelves())
def test_repeated_it_comes_to_rest_and_holds_what_is_wanted_and_no_more(shelves: list[Shelf]) -> None:
    for _ in range(100):
        steps = refill(shelves, NEXT)
        if steps == Refill(make=(), evict=()):
            break
        shelves = [_after(each, steps) for each in shelves]
    else:
        raise AssertionError("it never comes to rest")
    assert all(len(each.held) >= min(each.wanted, each.room) for each in shelves)
    assert sum(len(each.held) for each in shelves) <= sum(each.wanted for each in shelves)


def _after(each: Shelf, steps: Refill) -> Shelf:
    """Return the node once its placeholders were evicted and made."""
    kept = tuple(holder for holder in each.held if holder not in steps.evict)
    new = (UUID(int=10_000 + each.node_id.int * 100 + each.free),) if each.node_id in steps.make else ()
    return Shelf(
        node_id=each.node_id,
        name=each.name,
        pool_id=each.pool_id,
        wanted=each.wanted,
        free=each.free + len(each.held) - len(kept) - len(new),
        held=(*kept, *new),
        calm=each.calm,
    )
