"""Which placeholders to create and which to evict, decided from facts alone."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from workers.scheduler.placeholder_policy import NodePlaceholders, PlaceholderPlan, plan

FAST, SLOW, LAST = UUID(int=1), UUID(int=2), UUID(int=3)
NEXT = {FAST: SLOW, SLOW: LAST}


def node(
    number: int, *, pool: UUID = FAST, wanted: int = 2, free: int = 4, held: int = 0, may_make: bool = True
) -> NodePlaceholders:
    """Return node ``number`` with ``held`` placeholders, numbered 100 per node."""
    return NodePlaceholders(
        node_id=UUID(int=10 + number),
        name=f"n{number}",
        pool_id=pool,
        wanted=wanted,
        free=free,
        placeholder_ids=tuple(UUID(int=100 * number + each) for each in range(held)),
        may_make=may_make,
    )


def made(*nodes: NodePlaceholders) -> list[int]:
    """Return the numbers of the nodes that get a placeholder."""
    return [node_id.int - 10 for node_id in plan(nodes, NEXT).make]


def test_each_node_gets_one_at_a_time_until_it_has_what_its_pool_wants() -> None:
    assert made(node(1), node(2, held=1), node(3, held=2)) == [1, 2]


def test_what_is_as_wanted_is_left_alone() -> None:
    assert plan([node(1, held=2), node(2, wanted=0)], NEXT) == PlaceholderPlan(make=(), evict=())


def test_the_worst_of_too_many_go() -> None:
    steps = plan([node(1, wanted=1, held=3)], NEXT)
    assert steps == PlaceholderPlan(make=(), evict=(UUID(int=101), UUID(int=102)))


def test_nothing_is_made_while_a_replica_starts_there() -> None:
    assert made(node(1, may_make=False), node(2)) == [2]


def test_what_a_full_node_cannot_hold_is_held_by_another_of_its_pool() -> None:
    assert made(node(1, free=0), node(2, held=2)) == [2]


def test_what_a_full_pool_cannot_hold_is_held_in_the_next_one() -> None:
    assert made(node(1, free=0), node(2, pool=SLOW, wanted=0)) == [2]
    assert made(node(1, free=1, held=1), node(2, pool=SLOW, wanted=0)) == [1]


def test_what_two_full_pools_cannot_hold_is_held_in_the_third() -> None:
    full = node(1, free=0), node(2, pool=SLOW, free=0)
    assert made(*full, node(3, pool=LAST, wanted=0)) == [3]
    assert plan(full, NEXT) == PlaceholderPlan(make=(), evict=())


def test_what_is_carried_is_spread_over_the_next_pool_and_stays_where_it_is() -> None:
    full = node(1, free=0, wanted=2)
    assert made(full, node(2, pool=SLOW, wanted=0), node(3, pool=SLOW, wanted=0)) == [2, 3]
    settled = node(2, pool=SLOW, wanted=0), node(3, pool=SLOW, wanted=0, held=2)
    assert plan([full, *settled], NEXT) == PlaceholderPlan(make=(), evict=())


def test_what_was_carried_goes_once_the_first_pool_has_room_again() -> None:
    steps = plan([node(1, wanted=1, held=1), node(2, pool=SLOW, wanted=0, held=1)], NEXT)
    assert steps == PlaceholderPlan(make=(), evict=(UUID(int=200),))


def test_pools_of_different_deployments_carry_nothing_to_each_other() -> None:
    steps = plan([node(1, free=0), node(2, pool=SLOW, wanted=0)], {})
    assert steps == PlaceholderPlan(make=(), evict=())


@st.composite
def any_nodes(draw: st.DrawFn) -> list[NodePlaceholders]:
    """Return the nodes of three pools, in the order of the pools."""
    count = st.integers(0, 4)
    return [
        node(10 * place + number, pool=pool, wanted=draw(count), free=draw(count), held=draw(count))
        for place, pool in enumerate((FAST, SLOW, LAST))
        for number in range(1, draw(st.integers(0, 3)) + 1)
    ]


@settings(deadline=None)
@given(any_nodes())
def test_repeated_it_comes_to_rest_and_holds_what_is_wanted_and_no_more(nodes: list[NodePlaceholders]) -> None:
    for _ in range(100):
        steps = plan(nodes, NEXT)
        if steps == PlaceholderPlan(make=(), evict=()):
            break
        nodes = [_after(each, steps) for each in nodes]
    else:
        raise AssertionError("it never comes to rest")
    assert all(len(each.placeholder_ids) >= min(each.wanted, each.capacity) for each in nodes)
    assert sum(len(each.placeholder_ids) for each in nodes) <= sum(each.wanted for each in nodes)


def _after(each: NodePlaceholders, steps: PlaceholderPlan) -> NodePlaceholders:
    """Return the node once its placeholders were evicted and made."""
    kept = tuple(holder for holder in each.placeholder_ids if holder not in steps.evict)
    new = (UUID(int=10_000 + each.node_id.int * 100 + each.free),) if each.node_id in steps.make else ()
    return NodePlaceholders(
        node_id=each.node_id,
        name=each.name,
        pool_id=each.pool_id,
        wanted=each.wanted,
        free=each.free + len(each.placeholder_ids) - len(kept) - len(new),
        placeholder_ids=(*kept, *new),
        may_make=each.may_make,
    )
