"""A request goes to its session's replica, the warmest or the least loaded one, and never to an overloaded one."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.errors import NoReplica
from routing.prefix_hash import CHUNK_BYTES
from routing.router import Choice, Router, RoutingRequest
from tests.routing.prompts import ask, replicas, system, user

DOCUMENT = "d" * (20 * CHUNK_BYTES)


def serve(router: Router, request: RoutingRequest, candidates: list[UUID]) -> Choice:
    """Choose a replica for a request that ends immediately."""
    choice = router.choose(request, candidates)
    router.finish(choice)
    return choice


def test_without_a_replica_nothing_is_chosen_and_nothing_counted() -> None:
    router = Router()
    with pytest.raises(NoReplica):
        router.choose(ask(user("hello")), [])


def test_the_only_replica_is_chosen_and_says_so() -> None:
    router = Router()
    (only,) = replicas(1)
    assert serve(router, ask(user("hello"), session="s"), [only]).reason == "only"
    again = serve(router, ask(user("hello"), session="s"), [only])
    assert (again.replica_id, again.reason, again.warm_tokens) == (only, "only", again.tokens - 16)


def test_strangers_to_the_index_take_turns() -> None:
    router = Router()
    chosen = [serve(router, ask(user(f"question {number}")), replicas(3)) for number in range(6)]
    assert [choice.replica_id for choice in chosen] == replicas(3) * 2
    assert {choice.reason for choice in chosen} == {"load"}


def test_ten_turns_of_one_session_stay_on_one_replica() -> None:
    router = Router()
    said = [user("turn 0")]
    chosen = []
    for number in range(10):
        chosen.append(serve(router, ask(*said, session="s"), replicas(4)))
        said += [user(f"answer {number}"), user(f"turn {number + 1}")]
    assert len({choice.replica_id for choice in chosen}) == 1
    assert {choice.reason for choice in chosen} == {"session"}
    assert [choice.warm_tokens > 0 for choice in chosen] == [False] + [True] * 9


def test_a_session_moves_once_when_its_replica_goes_and_stays_when_it_returns() -> None:
    router = Router()
    everybody = replicas(4)
    first = serve(router, ask(user("a"), session="s"), everybody).replica_id
    without = [replica for replica in everybody if replica != first]
    second = serve(router, ask(user("a"), session="s"), without).replica_id
    homes = [serve(router, ask(user("a"), session="s"), everybody).replica_id for _ in range(5)]
    assert second != first
    assert homes == [second] * 5


def test_a_busy_home_is_left_for_one_request_and_returned_to() -> None:
    router = Router()
    everybody = replicas(2)
    home = serve(router, ask(user("a"), session="s"), everybody).replica_id
    other = next(replica for replica in everybody if replica != home)
    router.loads.add(home, 10_000)
    away = serve(router, ask(user("a"), session="s"), everybody)
    router.loads.remove(home, 10_000)
    back = serve(router, ask(user("a"), session="s"), everybody)
    assert (away.replica_id, away.reason) == (other, "load")
    assert (back.replica_id, back.reason) == (home, "session")


def test_a_flapping_replica_does_not_move_its_sessions_twice() -> None:
    router = Router()
    everybody = replicas(3)
    names = [f"session {number}" for number in range(30)]
    flapping = everybody[0]
    before = {name: serve(router, ask(user(name), session=name), everybody).replica_id for name in names}
    for up in (False, True, False, True):
        candidates = everybody if up else everybody[1:]
        after = {name: serve(router, ask(user(name), session=name), candidates).replica_id for name in names}
    moved = {name for name in names if before[name] != after[name]}
    assert moved == {name for name in names if before[name] == flapping}
    assert moved


def test_twenty_prompts_that_share_a_document_land_where_it_is_warm() -> None:
    router = Router()
    chosen = [serve(router, ask(user(DOCUMENT), user(f"question {n}")), replicas(4)) for n in range(20)]
    assert [choice.reason for choice in chosen] == ["load"] + ["prefix"] * 19
    assert len({choice.replica_id for choice in chosen}) == 1
    assert {choice.warm_tokens for choice in chosen[1:]} == {(len(DOCUMENT) + len("user")) // 4}


def test_twenty_prompts_that_share_a_document_spread_when_they_come_at_once() -> None:
    router = Router()
    everybody = replicas(4)
    for number in range(20):
        router.choose(ask(user(DOCUMENT), user(f"question {number}")), everybody)
    one = ask(user(DOCUMENT), user("question 0")).prefix.tokens + 16
    # Each takes requests until it is above 1.25 × the mean of 5, then the next one is warmed.
    assert [router.loads.tokens(replica) // one for replica in everybody] == [6, 6, 6, 2]


def test_a_document_leaves_its_replica_only_while_that_is_loaded() -> None:
    router = Router()
    everybody = replicas(2)
    warm = serve(router, ask(user(DOCUMENT), user("first")), everybody).replica_id
    router.loads.add(warm, 100_000)
    away = router.choose(ask(user(DOCUMENT), user("second")), everybody)
    router.loads.remove(warm, 100_000)
    router.finish(away)
    assert (away.replica_id != warm, away.reason) == (True, "load")


def test_a_system_prompt_alone_piles_nobody_up() -> None:
    router = Router()
    shared = system("s" * (8 * CHUNK_BYTES))
    chosen = [serve(router, ask(shared, user(f"question {number}")), replicas(4)) for number in range(40)]
    assert {choice.reason for choice in chosen} == {"load"}
    assert [sum(choice.replica_id == replica for choice in chosen) for replica in replicas(4)] == [10, 10, 10, 10]


def test_a_document_behind_a_system_prompt_is_followed() -> None:
    router = Router()
    shared = system("be brief")
    first, second = (serve(router, ask(shared, user(DOCUMENT), user(q)), replicas(4)) for q in ("one", "two"))
    assert (second.replica_id, second.reason) == (first.replica_id, "prefix")


def test_the_longest_match_wins() -> None:
    router = Router()
    a, b = replicas(2)
    serve(router, ask(user("d" * CHUNK_BYTES)), [a])
    serve(router, ask(user("d" * (5 * CHUNK_BYTES))), [b])
    choice = serve(router, ask(user("d" * (5 * CHUNK_BYTES)), user("question")), [a, b])
    assert (choice.replica_id, choice.reason) == (b, "prefix")


def test_a_restarted_replica_is_warm_for_nobody_but_keeps_its_sessions() -> None:
    router = Router()
    everybody = replicas(2)
    home = serve(router, ask(user(DOCUMENT), session="s"), everybody).replica_id
    router.forget(home)
    choice = serve(router, ask(user(DOCUMENT), session="s"), everybody)
    assert (choice.replica_id, choice.reason, choice.warm_tokens) == (home, "session", 0)


@given(st.lists(st.text(max_size=5), min_size=1, max_size=40))
def test_every_request_that_is_finished_leaves_no_load(names: list[str]) -> None:
    router = Router()
    choices = [router.choose(ask(user(name), session=name), replicas(3)) for name in names]
    for choice in choices:
        router.finish(choice)
    assert [router.loads.tokens(replica) for replica in replicas(3)] == [0, 0, 0]


class BoundedAffinity(RuleBasedStateMachine):
    """Any order of arrivals and ends: affinity never adds to a replica above 1.25 × the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(index_capacity=200, session_capacity=10)
        self.fleet = replicas(4)
        self.flying: list[Choice] = []

    @rule(document=st.integers(0, 2), session=st.integers(0, 4), length=st.integers(1, 4000), down=st.integers(0, 8))
    def arrive(self, document: int, session: int, length: int, down: int) -> None:
        """A request arrives; ``session`` 0 and ``down`` over 3 mean none."""
        candidates = [replica for number, replica in enumerate(self.fleet) if number != down]
        loads = {replica: self.router.loads.tokens(replica) for replica in candidates}
        request = ask(
            user(str(document) * 1000), user("q"), session=str(session) if session else "", max_new_tokens=length
        )
        choice = self.router.choose(request, candidates)
        self.flying.append(choice)
        if choice.reason in {"session", "prefix"}:
            mean = (sum(loads.values()) + choice.tokens) / len(candidates)
            assert loads[choice.replica_id] <= 1.25 * mean
        else:
            assert loads[choice.replica_id] == min(loads.values())

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Any of the requests in flight ends."""
        position = data.draw(st.integers(0, len(self.flying) - 1))
        self.router.finish(self.flying.pop(position))

    @invariant()
    def loads_are_what_flies(self) -> None:
        """The tracker counts exactly the requests in flight."""
        for replica in self.fleet:
            flying = sum(choice.tokens for choice in self.flying if choice.replica_id == replica)
            assert self.router.loads.tokens(replica) == flying


BoundedAffinity.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBoundedAffinity = BoundedAffinity.TestCase
