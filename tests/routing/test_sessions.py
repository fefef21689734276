"""Replicas of sessions: recorded ones first, rendezvous hashing for new ones."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.sessions import LONGEST_TTL_SECONDS, SessionMap, rendezvous
from tests.routing.prompts import replicas

sessions = st.binary(min_size=32, max_size=32)
NOW = 1000.0


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


def homes_of(entries: int) -> SessionMap:
    """Return an empty map."""
    return SessionMap(memoryview(bytearray(entries * 8)).cast("Q"))


@given(st.lists(sessions, max_size=60))
def test_a_session_that_was_just_settled_is_known(seen: list[bytes]) -> None:
    homes = homes_of(8)
    for number, session in enumerate(seen, start=1):
        homes.settle(session, number, NOW)
        assert homes.home(session, NOW, 60) == number


def test_the_session_used_least_recently_is_forgotten_first() -> None:
    homes = homes_of(4)
    for number, session in enumerate((b"a", b"b", b"c", b"d"), start=1):
        homes.settle(session, number, NOW)
    assert homes.home(b"a", NOW, 60) == 1
    homes.settle(b"e", 5, NOW)
    assert [homes.home(session, NOW, 60) for session in (b"a", b"b", b"c", b"d", b"e")] == [1, None, 3, 4, 5]


def test_a_session_that_moves_has_one_home() -> None:
    homes = homes_of(4)
    for second, (session, replica) in enumerate([(b"a", 1), (b"b", 1), (b"a", 2), (b"c", 3), (b"d", 4)]):
        homes.settle(session, replica, NOW + second)
    assert [homes.home(session, NOW + 5, 60) for session in (b"a", b"b", b"c", b"d")] == [2, 1, 3, 4]


@pytest.mark.parametrize("now", [0.0, NOW, 2**20 - 1.5, 3 * 2**20 - 61.0])
def test_a_session_that_was_not_seen_for_too_long_has_no_home(now: float) -> None:
    homes = homes_of(4)
    homes.settle(b"a", 1, now)
    for at in (60, 120, 180):
        assert homes.home(b"a", now + at, 60) == 1
    assert homes.home(b"a", now + 242, 60) is None
    homes.settle(b"a", 2, now + 242)
    assert homes.home(b"a", now + 242, 60) == 2


def test_the_longest_time_to_live_fits_the_clock() -> None:
    homes = homes_of(4)
    homes.settle(b"a", 1, NOW)
    assert homes.home(b"a", NOW + LONGEST_TTL_SECONDS, LONGEST_TTL_SECONDS) == 1
    assert homes.home(b"a", NOW + 2 * LONGEST_TTL_SECONDS - 60, LONGEST_TTL_SECONDS - 120) is None


def test_a_session_that_another_process_saw_a_moment_later_is_known() -> None:
    homes = homes_of(4)
    homes.settle(b"a", 1, NOW + 2)
    assert homes.home(b"a", NOW, 60) == 1


@pytest.mark.parametrize("entries", [0, 6])
def test_a_map_without_whole_sets_is_refused(entries: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        homes_of(entries)
