"""Replicas of sessions: recorded ones first, rendezvous hashing for new ones."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.sessions import SessionMap, rendezvous
from tests.routing.prompts import replicas

sessions = st.binary(min_size=32, max_size=32)


def order(session: bytes, among: list[UUID]) -> list[UUID]:
    """Return the session's order of preference."""
    return rendezvous(session, among, lambda replica: replica.bytes)


@given(sessions, st.integers(2, 12), st.data())
def test_removing_a_replica_changes_nothing_else_in_a_sessions_order(
    session: bytes, count: int, data: st.DataObject
) -> None:
    everybody = replicas(count)
    gone = data.draw(st.sampled_from(everybody))
    assert order(session, [r for r in everybody if r != gone]) == [r for r in order(session, everybody) if r != gone]


@given(sessions, st.permutations(replicas(6)))
def test_the_order_does_not_depend_on_how_replicas_are_listed(session: bytes, listed: list[UUID]) -> None:
    assert order(session, listed) == order(session, replicas(6))


def test_sessions_spread_evenly_and_a_new_replica_takes_only_its_share() -> None:
    names = [number.to_bytes(32, "big") for number in range(4000)]
    before = {name: order(name, replicas(4))[0] for name in names}
    after = {name: order(name, replicas(5))[0] for name in names}
    moved = [name for name in names if before[name] != after[name]]
    assert {after[name] for name in moved} == {replicas(5)[-1]}
    # 4000 draws: expected 1000 each with deviation 27, and 800 moved with deviation 25
    assert all(900 < sum(home == replica for home in before.values()) < 1100 for replica in replicas(4))
    assert 700 < len(moved) < 900


@given(st.integers(1, 20), st.lists(sessions, max_size=60))
def test_the_map_never_holds_more_than_its_capacity(capacity: int, seen: list[bytes]) -> None:
    homes: SessionMap[str] = SessionMap(capacity)
    for session in seen:
        homes.settle(session, "home")
        assert len(homes) <= capacity
        assert homes.home(session) == "home"


def test_the_session_used_least_recently_is_forgotten_first() -> None:
    homes: SessionMap[str] = SessionMap(capacity=2)
    homes.settle(b"a", "A")
    homes.settle(b"b", "B")
    assert homes.home(b"a") == "A"
    homes.settle(b"c", "C")
    assert [homes.home(session) for session in (b"a", b"b", b"c")] == ["A", None, "C"]


def test_a_map_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SessionMap(capacity=0)
