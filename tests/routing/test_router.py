"""A request goes where it costs everybody the fewest seconds; a session stays where that makes no difference."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from routing.errors import NoReplica
from routing.prefixes.prefix_hash import CHUNK_BYTES
from routing.replicas.load import PRIOR_SECONDS_PER_TOKEN
from routing.router import Boot, Choice, Router, RoutingRequest
from routing.shared.state import private
from tests.routing.prompts import ask, replicas, system, user

DOCUMENT = "d" * (20 * CHUNK_BYTES)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time of the router."""
    return Clock()


@pytest.fixture
def router(clock: Clock) -> Router:
    """A router with a small table."""
    return Router(private(1 << 14, 1 << 10), clock=clock)


def serve(router: Router, request: RoutingRequest, candidates: list[UUID]) -> Choice:
    """Choose a replica for a request that is answered and ends immediately."""
    choice = router.choose(request, candidates)
    answer(router, choice, computed_tokens=choice.prefix.tokens - choice.warm_tokens)
    return choice


def answer(
    router: Router,
    choice: Choice,
    *,
    computed_tokens: int,
    cached_tokens: int | None = None,
    completion_tokens: int = 1,
) -> None:
    """Let the engine answer, and end."""
    start = router.answered(choice, streamed=True)
    router.learn(
        choice,
        start,
        computed_tokens=computed_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=completion_tokens,
    )
    router.finish(choice, answered=True)


def test_without_a_replica_nothing_is_chosen(router: Router) -> None:
    with pytest.raises(NoReplica):
        router.choose(ask(user("hello")), [])


def test_the_only_replica_is_chosen_and_says_so(router: Router) -> None:
    (only,) = replicas(1)
    assert serve(router, ask(user("hello"), session="s"), [only]).reason == "only"
    again = serve(router, ask(user("hello"), session="s"), [only])
    assert (again.replica_id, again.reason, again.warm_tokens) == (only, "only", again.tokens - 16)


def test_strangers_to_each_other_take_turns(router: Router, clock: Clock) -> None:
    chosen = []
    for number in range(6):
        clock.now += 0.001
        chosen.append(serve(router, ask(user(f"question {number}")), replicas(3)))
    assert [choice.replica_id for choice in chosen] == replicas(3) * 2
    assert {choice.reason for choice in chosen} == {"load"}


def test_a_replica_that_is_new_is_expected_to_get_what_its_fellows_get(router: Router, clock: Clock) -> None:
    """Else a cold prompt would displace nothing there, and each would be sent there."""
    *fellows, new = replicas(3)
    for number in range(20):
        clock.now += 0.5
        for each in fellows:
            serve(router, ask(user(f"{number} {each}")), [each])
    router.follow({each: Boot() for each in (*fellows, new)})
    cold = ask(user(DOCUMENT))
    others = [router.costs(cold, [each], clock.now)[0].displaced for each in fellows]
    costs = router.costs(cold, replicas(3), clock.now)
    assert costs[-1].displaced > min(others) / 4
    clock.now += 600
    for each in fellows:
        serve(router, ask(user(f"later {each}")), [each])
    assert router.costs(cold, [*fellows, new], clock.now)[-1].displaced < costs[-1].displaced / 100


def test_ten_turns_of_one_session_stay_on_one_replica(router: Router) -> None:
    said = [user("turn 0")]
    chosen = []
    for number in range(10):
        chosen.append(serve(router, ask(*said, session="s"), replicas(4)))
        said += [user(f"answer {number}"), user(f"turn {number + 1}")]
    assert len({choice.replica_id for choice in chosen}) == 1
    assert {choice.reason for choice in chosen} == {"session"}
    assert [choice.warm_tokens > 0 for choice in chosen] == [False] + [True] * 9


def test_two_processes_send_a_new_session_to_the_same_replica(clock: Clock) -> None:
    for name in ("a", "b", "c", "d"):
        homes = {
            serve(Router(private(1024, 64), clock=clock), ask(user("a"), session=name), replicas(4)).replica_id
            for _ in range(2)
        }
        assert len(homes) == 1


def test_beside_other_processes_a_session_stays_at_home_though_most_turns_came_through_them(clock: Clock) -> None:
    here, other = (Router(private(1 << 14, 64), clock=clock) for _ in range(2))
    here.has_peers = other.has_peers = True
    said = [user(DOCUMENT)]
    chosen = []
    for number in range(8):
        router = here if number in {0, 7} else other
        chosen.append(serve(router, ask(*said, session="s"), replicas(4)).replica_id)
        said += [user(f"answer {number} " * 300), user(f"turn {number + 1} " * 300)]
        clock.now += 1
        if number == 6:  # more work waits at home than the part of the prompt that this process has sent there
            here.choose(ask(user("x" * 14_400), streamed=False), [chosen[0]])
    assert len(set(chosen)) == 1


def test_a_session_moves_once_when_its_replica_goes_and_stays_when_it_returns(router: Router) -> None:
    everybody = replicas(4)
    first = serve(router, ask(user("a"), session="s"), everybody).replica_id
    without = [replica for replica in everybody if replica != first]
    second = serve(router, ask(user("a"), session="s"), without).replica_id
    homes = [serve(router, ask(user("a"), session="s"), everybody).replica_id for _ in range(5)]
    assert second != first
    assert homes == [second] * 5


def test_a_busy_home_is_left_for_one_request_and_returned_to(router: Router, clock: Clock) -> None:
    everybody = replicas(2)
    home = serve(router, ask(user("a"), session="s"), everybody).replica_id
    busy = router.choose(ask(user("x" * 100_000)), [home])
    away = serve(router, ask(user("a"), session="s"), everybody)
    clock.now += 60
    router.finish(busy, answered=False)
    back = serve(router, ask(user("a"), session="s"), everybody)
    assert (away.replica_id != home, away.reason) == (True, "load")
    assert (back.replica_id, back.reason) == (home, "session")


def test_a_strict_session_waits_at_a_busy_home_and_moves_when_that_is_gone(router: Router) -> None:
    everybody = replicas(2)
    turn = ask(user("a"), session="s", strict=True)
    home = serve(router, turn, everybody).replica_id
    router.choose(ask(user("x" * 100_000)), [home])
    stays = serve(router, turn, everybody)
    (other,) = (each for each in everybody if each != home)
    moved = [serve(router, turn, candidates).replica_id for candidates in ([other], everybody)]
    assert (stays.replica_id, stays.reason, moved) == (home, "session", [other, other])


def test_the_home_of_a_strict_session_is_where_its_first_request_is_cheapest(router: Router) -> None:
    busy, idle = replicas(2)
    router.choose(ask(user("x" * 100_000)), [busy])
    names = [f"session {number}" for number in range(8)]
    for _ in range(2):
        turns = [serve(router, ask(user("a"), session=name, strict=True), [busy, idle]) for name in names]
        assert {turn.replica_id for turn in turns} == {idle}


def test_a_session_that_was_not_seen_for_an_hour_begins_again(router: Router, clock: Clock) -> None:
    everybody = replicas(2)
    turn = ask(user("a"), session="s", strict=True)
    home = serve(router, turn, everybody).replica_id
    chosen = []
    for seconds in (3600, 3602):
        clock.now += seconds
        busy = router.choose(ask(user("x" * 100_000)), [home])
        chosen.append(serve(router, turn, everybody).replica_id)
        router.finish(busy, answered=False)
    assert (chosen[0] == home, chosen[1] == home) == (True, False)


@pytest.mark.parametrize("strict", [False, True])
def test_a_session_moves_while_the_replica_that_it_leaves_still_serves(
    router: Router, clock: Clock, strict: bool
) -> None:
    everybody = replicas(3)
    boots = {replica: Boot() for replica in everybody}
    turn = ask(user(DOCUMENT), session="s", strict=strict)
    router.follow(boots)
    home = serve(router, turn, everybody).replica_id
    router.follow(boots, leaving=frozenset({home}))
    first, second = (serve(router, turn, everybody) for _ in range(2))
    router.follow(boots)
    third = serve(router, turn, everybody)
    assert first.replica_id != home
    assert {turn.replica_id for turn in (second, third)} == {first.replica_id}
    assert (first.warm_tokens, second.warm_tokens) == (0, second.prefix.tokens)


def test_a_replica_that_leaves_takes_requests_while_the_others_are_busy(router: Router) -> None:
    everybody = replicas(2)
    leaving, other = everybody
    router.follow({replica: Boot() for replica in everybody}, leaving=frozenset({leaving}))
    router.choose(ask(user("x" * 100_000)), [other])
    assert serve(router, ask(user("a"), session="s", strict=True), everybody).replica_id == leaving
    assert serve(router, ask(user("a"), session="s", strict=True), [leaving]).replica_id == leaving


def test_sessions_stay_where_they_are_while_all_replicas_leave(router: Router) -> None:
    everybody = replicas(4)
    boots = {replica: Boot() for replica in everybody}
    turn = ask(user(DOCUMENT), session="s")
    router.follow(boots)
    home = serve(router, turn, everybody).replica_id
    router.follow(boots, leaving=frozenset(everybody))
    assert [serve(router, turn, everybody).replica_id for _ in range(3)] == [home] * 3


def test_a_flapping_replica_does_not_move_its_sessions_twice(router: Router) -> None:
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


def test_twenty_prompts_that_share_a_document_land_where_it_is_warm(router: Router, clock: Clock) -> None:
    chosen = []
    for number in range(20):
        chosen.append(serve(router, ask(user(DOCUMENT), user(f"question {number}")), replicas(4)))
        clock.now += 1
    assert [choice.reason for choice in chosen] == ["load"] + ["prefix"] * 19
    assert len({choice.replica_id for choice in chosen}) == 1
    assert {choice.warm_tokens for choice in chosen[1:]} == {(len(DOCUMENT) + len("user")) // 4}


def test_prompts_that_come_at_once_wait_for_a_warm_replica_only_while_that_is_cheaper(router: Router) -> None:
    """A document of 1,280 tokens is warm once its replica has computed it, and each question costs little."""
    everybody = replicas(4)
    choices = [router.choose(ask(user(DOCUMENT), user(f"question {number}")), everybody) for number in range(400)]
    first = [choice.replica_id for choice in choices].count(choices[0].replica_id)
    cold = {choice.replica_id for choice in choices if not choice.warm_tokens}
    assert 1 < first < 400
    assert cold == set(everybody)
    assert len([choice for choice in choices if not choice.warm_tokens]) == 4


def test_a_document_leaves_its_replica_only_while_that_is_loaded(router: Router, clock: Clock) -> None:
    everybody = replicas(2)
    warm = serve(router, ask(user(DOCUMENT), user("first")), everybody).replica_id
    router.choose(ask(user("x" * 100_000)), [warm])
    away = serve(router, ask(user(DOCUMENT), user("second")), everybody)
    assert (away.replica_id != warm, away.reason) == (True, "load")


def test_many_answers_that_are_written_on_one_replica_make_it_dearer(router: Router, clock: Clock) -> None:
    everybody = replicas(2)
    home = serve(router, ask(user(DOCUMENT)), everybody).replica_id
    chosen = []
    for number in range(12):
        choice = router.choose(ask(user(DOCUMENT), user(f"question {number}"), max_new_tokens=2000), everybody)
        clock.now += 1
        router.answered(choice, streamed=True)
        chosen.append(choice.replica_id)
    assert chosen[:3] == [home] * 3
    assert set(chosen) == set(everybody)


def test_load_runs_down_by_the_clock_even_while_answers_are_written(router: Router, clock: Clock) -> None:
    one, other = replicas(2)
    router.choose(ask(user("x" * 40_000), streamed=False), [one])
    assert [each.backlog > 0 for each in router.costs(ask(user("a")), [one, other], clock.now)] == [True, False]
    clock.now += 10_000 * PRIOR_SECONDS_PER_TOKEN + 0.1
    assert [each.backlog for each in router.costs(ask(user("a")), [one, other], clock.now)] == [0, 0]


def test_a_document_behind_a_system_prompt_is_followed(router: Router) -> None:
    shared = system("be brief")
    first, second = (serve(router, ask(shared, user(DOCUMENT), user(q)), replicas(4)) for q in ("one", "two"))
    assert (second.replica_id, second.reason) == (first.replica_id, "prefix")


def test_the_longest_match_wins(router: Router) -> None:
    a, b = replicas(2)
    serve(router, ask(user("d" * CHUNK_BYTES)), [a])
    serve(router, ask(user("d" * (5 * CHUNK_BYTES))), [b])
    choice = serve(router, ask(user("d" * (5 * CHUNK_BYTES)), user("question")), [a, b])
    assert (choice.replica_id, choice.reason) == (b, "prefix")


def test_a_slow_replica_gets_less(router: Router, clock: Clock) -> None:
    fast, slow = replicas(2)
    served = {fast: 0, slow: 0}
    free_at = {fast: clock.now, slow: clock.now}
    waiting: list[tuple[float, Choice]] = []
    for number in range(400):
        clock.now += 0.1
        for at, choice in sorted(each for each in waiting if each[0] <= clock.now):
            waiting.remove((at, choice))
            now, clock.now = clock.now, at
            answer(router, choice, computed_tokens=choice.prefix.tokens)
            clock.now = now
        choice = router.choose(ask(user(f"{number} " * 400)), [fast, slow])
        seconds = choice.prefix.tokens / (10_000 if choice.replica_id == fast else 2_000)
        free_at[choice.replica_id] = max(free_at[choice.replica_id], clock.now) + seconds
        waiting.append((free_at[choice.replica_id], choice))
        served[choice.replica_id] += number >= 200
    assert served[fast] > 2 * served[slow]


def test_a_restarted_replica_is_warm_for_nobody_but_keeps_its_sessions(router: Router) -> None:
    everybody = replicas(2)
    home = serve(router, ask(user(DOCUMENT), session="s"), everybody).replica_id
    router.follow({replica: Boot(generation=1 if replica == home else 0) for replica in everybody})
    choice = serve(router, ask(user(DOCUMENT), session="s"), everybody)
    assert (choice.replica_id, choice.reason, choice.warm_tokens) == (home, "session", 0)


def test_a_request_that_ends_after_its_replica_was_forgotten_changes_nothing(router: Router) -> None:
    (only,) = replicas(1)
    choice = router.choose(ask(user(DOCUMENT)), [only])
    router.follow({})
    answer(router, choice, computed_tokens=1280, completion_tokens=5)
    assert router.tokens_in_flight(only) == 0
    assert router.costs(ask(user("a")), [only], 1000.0)[0].backlog == 0


def test_a_request_that_no_engine_answers_leaves_no_trace(router: Router, clock: Clock) -> None:
    """The engine refuses a prompt that is too long; nobody is charged for it, so anybody may send many."""
    one, other = replicas(2)
    serve(router, ask(user(DOCUMENT)), [one])
    for number in range(30):
        refused = router.choose(ask(user(f"{number}" * 5_000_000)), [one])
        router.finish(refused, answered=False)
    costs = router.costs(ask(user(DOCUMENT)), [one, other], clock.now)
    assert [each.backlog for each in costs] == [0, 0]
    assert [each.warm_tokens > 1000 for each in costs] == [True, False]
    again = router.choose(ask(user("7" * 5_000_000)), [one])
    assert again.warm_tokens == 0


def filled(router: Router, clock: Clock, *, cache_tokens: int) -> UUID:
    """Return a replica whose engine has answered questions about twenty documents, one a second."""
    (only,) = replicas(1)
    router.follow({only: Boot(cache_tokens=cache_tokens)})
    for number in range(20):
        clock.now += 1
        serve(router, ask(user(f"{number:2}" + DOCUMENT)), [only])
    return only


def warm_documents(router: Router, clock: Clock, replica: UUID) -> list[bool]:
    """Return for each of the twenty documents whether it is known to be warm."""
    documents = [ask(user(f"{number:2}" + DOCUMENT)) for number in range(20)]
    return [router.costs(each, [replica], clock.now)[0].warm_tokens > 0 for each in documents]


def test_answers_that_were_not_cached_show_that_a_cache_was_emptied(router: Router, clock: Clock) -> None:
    """An engine's cache is reset; twenty documents filled it before."""
    only = filled(router, clock, cache_tokens=30_000)
    warm = []
    for number in reversed(range(20)):
        clock.now += 1
        choice = router.choose(ask(user(f"{number:2}" + DOCUMENT)), [only])
        warm.append(choice.warm_tokens > 0)
        answer(router, choice, computed_tokens=choice.prefix.tokens, cached_tokens=0)
    wrong = warm.index(False)
    assert warm == [True] * wrong + [False] * (20 - wrong)
    assert wrong <= 8


def test_a_prompt_that_is_being_answered_is_never_evicted(router: Router, clock: Clock) -> None:
    (only,) = replicas(1)
    router.follow({only: Boot(cache_tokens=30_000)})
    long = router.choose(ask(user("long" + DOCUMENT)), [only])
    start = router.answered(long, streamed=True)

    def is_warm_after_others(first: int) -> bool:
        for number in range(first, first + 60):
            clock.now += 1
            serve(router, ask(user(f"{number}" + DOCUMENT)), [only])
        return router.costs(ask(user("long" + DOCUMENT)), [only], clock.now)[0].warm_tokens > 0

    assert is_warm_after_others(100)
    router.learn(long, start, computed_tokens=long.prefix.tokens, cached_tokens=0, completion_tokens=100)
    router.finish(long, answered=True)
    assert not is_warm_after_others(200)


def test_one_prompt_that_was_not_held_says_nothing_of_others(router: Router, clock: Clock) -> None:
    """A client can make an engine compute what it holds, by fields that change a prompt and not its links."""
    only = filled(router, clock, cache_tokens=60_000)
    for _ in range(10):
        clock.now += 1
        choice = router.choose(ask(user("19" + DOCUMENT)), [only])
        answer(router, choice, computed_tokens=choice.prefix.tokens, cached_tokens=0)
    assert warm_documents(router, clock, only) == [True] * 20


def test_a_wrong_estimate_of_a_parts_tokens_is_no_contradiction(router: Router, clock: Clock) -> None:
    only = filled(router, clock, cache_tokens=30_000)
    for number in (18, 19):
        choice = router.choose(ask(user(f"{number:2}" + DOCUMENT)), [only])
        held = choice.held_tokens
        answer(router, choice, computed_tokens=choice.prefix.tokens - held * 3 // 4, cached_tokens=held * 3 // 4)
    assert warm_documents(router, clock, only) == [True] * 20


def test_two_answers_give_up_a_small_part_of_what_is_known(router: Router, clock: Clock) -> None:
    only = filled(router, clock, cache_tokens=30_000)
    for number in (18, 19):
        choice = router.choose(ask(user(f"{number}" + DOCUMENT)), [only])
        answer(router, choice, computed_tokens=choice.prefix.tokens, cached_tokens=0)
    assert warm_documents(router, clock, only) == [False] * 3 + [True] * 17


def test_a_replica_that_comes_back_is_warm_if_its_engine_never_ended(router: Router) -> None:
    one, other = replicas(2)
    for replica in (one, other):
        serve(router, ask(user(DOCUMENT)), [replica])
    router.follow({})
    router.follow({one: Boot(), other: Boot(generation=1)})
    assert [each.warm_tokens > 0 for each in router.costs(ask(user(DOCUMENT)), [one, other], 0.0)] == [True, False]


def test_a_cache_of_another_size_begins_empty(router: Router, clock: Clock) -> None:
    (only,) = replicas(1)
    serve(router, ask(user(DOCUMENT)), [only])
    router.follow({only: Boot(cache_tokens=640)})
    found = []
    for text in (DOCUMENT, "a", DOCUMENT, "a"):  # the document is twice as long as the cache
        clock.now += 1
        found.append(serve(router, ask(user(text)), [only]).warm_tokens)
    assert found[:3] == [0, 0, 0]


@given(st.lists(st.text(max_size=5), min_size=1, max_size=40))
def test_every_request_that_is_finished_leaves_no_load(names: list[str]) -> None:
    router = Router(private(1024, 64))
    choices = [router.choose(ask(user(name), session=name), replicas(3)) for name in names]
    for choice in choices:
        router.finish(choice, answered=False)
    assert [router.tokens_in_flight(replica) for replica in replicas(3)] == [0, 0, 0]


class Cheapest(RuleBasedStateMachine):
    """Any order of arrivals, first tokens and ends: what is chosen is never dearer than another."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.router = Router(private(256, 8), clock=self.clock)
        self.fleet = replicas(4)
        self.flying: list[Choice] = []
        self.ids = itertools.count()

    @rule(document=st.integers(0, 2), session=st.integers(0, 4), length=st.integers(1, 4000), down=st.integers(0, 8))
    def arrive(self, document: int, session: int, length: int, down: int) -> None:
        """A request arrives; ``session`` 0 and ``down`` over 3 mean none."""
        candidates = [replica for number, replica in enumerate(self.fleet) if number != down]
        request = ask(
            user(str(document) * 1000), user("q"), session=str(session) if session else "", max_new_tokens=length
        )
        costs = {each.replica_id: each.cost for each in self.router.costs(request, candidates, self.clock.now)}
        choice = self.router.choose(request, candidates)
        self.flying.append(choice)
        assert costs[choice.replica_id] - min(costs.values()) < 0.001
        assert all(cost >= 0 for cost in costs.values())

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), seconds=st.floats(0, 5))
    def finish(self, data: st.DataObject, seconds: float) -> None:
        """Any of the requests in flight is answered and ends, after some time."""
        self.clock.now += seconds
        choice = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        answer(self.router, choice, computed_tokens=choice.prefix.tokens, completion_tokens=3)

    @invariant()
    def loads_are_what_flies(self) -> None:
        """The router counts exactly the requests in flight."""
        for replica in self.fleet:
            flying = sum(choice.tokens for choice in self.flying if choice.replica_id == replica)
            assert self.router.tokens_in_flight(replica) == flying


Cheapest.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCheapest = Cheapest.TestCase
