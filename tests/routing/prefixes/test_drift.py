"""A replica whose cache is predicted wrongly for long is routed by load and session until predictions are right."""

from __future__ import annotations

from routing.prefixes.drift import ANSWERS, LEAST_OTHERS, LEAST_TOKENS, Drift
from routing.replicas.load import PRIOR_SECONDS_PER_TOKEN
from routing.router import Boot, Choice, Router, RoutingRequest
from routing.shared.state import private
from tests.routing.prompts import ask, replicas, system, user
from tests.routing.test_router import DOCUMENT, Clock, answer

ONE, OTHER = replicas(2)
ACME, GLOBEX = b"acme", b"globex"


class Fleet:
    """Two replicas; the first one's engine caches only while ``caches``."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.router = Router(private(1 << 14, 1 << 10), clock=self.clock)
        self.router.follow({ONE: Boot(cache_tokens=10**6), OTHER: Boot(cache_tokens=10**6)})
        self.caches = False

    def serve(self, request: RoutingRequest) -> Choice:
        """Let a request be answered."""
        self.clock.now += 60
        choice = self.router.choose(request, [ONE])
        cached = choice.held_tokens if self.caches else 0
        computed = choice.prefix.tokens - cached
        self.clock.now += computed * PRIOR_SECONDS_PER_TOKEN  # as fast as the other one is taken to be
        answer(self.router, choice, computed_tokens=computed, cached_tokens=cached)
        return choice

    def repeat(self, answers: int) -> None:
        """Ask about the same document until this many ``answers`` were expected to be warm."""
        counted = 0
        while counted < answers:
            counted += self.serve(ask(system(DOCUMENT * 4), user("again"))).held_tokens > LEAST_TOKENS

    def chosen(self) -> Choice:
        """Choose for another question, while a little work waits at the first replica."""
        self.clock.now += 60
        busy = self.router.choose(ask(user("a little")), [ONE])
        choice = self.router.choose(ask(system(DOCUMENT * 4), user("again")), [ONE, OTHER])
        for each in (choice, busy):
            self.router.finish(each, answered=False)
        return choice


def test_a_cache_that_holds_nothing_of_what_is_expected_attracts_nothing_until_it_does() -> None:
    fleet = Fleet()
    fleet.repeat(1)
    assert (fleet.chosen().replica_id, fleet.router.drifting) == (ONE, 0)
    fleet.repeat(ANSWERS)
    away = fleet.chosen()
    assert (away.replica_id, away.reason, fleet.router.drifting) == (OTHER, "load", 1)
    assert [(each.warm_tokens, each.drifts) for each in away.candidates] == [(0, True), (0, False)]
    fleet.caches = True
    fleet.repeat(2 * ANSWERS)  # the rest of those that are compared together, and as many
    back = fleet.chosen()
    assert (back.replica_id, back.reason, fleet.router.drifting) == (ONE, "prefix", 0)


def test_a_session_stays_at_a_home_that_drifts() -> None:
    fleet = Fleet()
    fleet.repeat(ANSWERS + 1)
    assert fleet.router.drifting == 1
    turn = ask(system(DOCUMENT), user("session"), session="s")
    home = fleet.router.choose(turn, [ONE])
    answer(fleet.router, home, computed_tokens=home.prefix.tokens, cached_tokens=0)
    fleet.clock.now += 60
    again = fleet.router.choose(turn, [ONE, OTHER])
    assert (again.replica_id, again.reason) == (ONE, "session")


def test_another_boot_of_the_engine_is_believed() -> None:
    fleet = Fleet()
    fleet.repeat(ANSWERS + 1)
    fleet.router.follow({ONE: Boot(generation=1), OTHER: Boot(cache_tokens=10**6)})
    assert fleet.router.drifting == 0


def test_half_is_enough_and_short_predictions_say_nothing() -> None:
    drift = Drift()
    for cached, lasts in ((1000, False), (999, True), (1000, False)):
        for _ in range(ANSWERS):
            drift.compare(ACME, 2000, cached)
            drift.compare(ACME, LEAST_TOKENS, 0)
        assert drift.lasts is lasts, cached
    for number in range(2 * ANSWERS):
        drift.compare(ACME, 2000, 2000 if number % 2 else 0)
        assert not drift.lasts


def test_each_answer_counts_once_however_long_its_prompt_is() -> None:
    drift = Drift()
    for number in range(ANSWERS):
        drift.compare(*((GLOBEX, 90_000, 0) if number % 16 == 0 else (ACME, 5000, 5000)))
    assert not drift.lasts


def test_one_tenant_whose_prompts_are_never_cached_changes_nothing_for_the_others() -> None:
    drift = Drift()
    for number in range(ANSWERS):  # of as many beginnings as it likes
        drift.compare(*((ACME, 5000, 5000) if number % 3 == 0 else (GLOBEX, 90_000, 0)))
    assert (drift.concerns(GLOBEX), drift.concerns(ACME)) == (True, False)
    for number in range(ANSWERS):  # few answers of others say nothing, also if they are wrong
        drift.compare(ACME if number < LEAST_OTHERS - 1 else GLOBEX, 5000, 0)
    assert (drift.concerns(GLOBEX), drift.concerns(ACME), drift.lasts) == (True, False, True)


def test_an_engine_that_holds_nothing_for_anybody_is_believed_by_nobody() -> None:
    drift = Drift()
    for number in range(ANSWERS):
        drift.compare(ACME if number < LEAST_OTHERS else GLOBEX, 5000, 0)
    assert all(drift.concerns(tenant) for tenant in (ACME, GLOBEX, b"who never asked"))


def test_a_tenant_on_a_replica_of_which_another_was_never_served_right_is_routed_by_its_prefix() -> None:
    fleet = Fleet()
    hostile = ask(system(DOCUMENT * 4), user("again"), tenant=GLOBEX)
    for _ in range(2 * ANSWERS):
        fleet.serve(hostile)
    fleet.caches = True
    fleet.repeat(1)
    fleet.clock.now += 60
    mine = fleet.router.choose(ask(system(DOCUMENT * 4), user("again")), [ONE, OTHER])
    theirs = fleet.router.choose(hostile, [ONE, OTHER])
    assert (mine.replica_id, [each.drifts for each in mine.candidates]) == (ONE, [False, False])
    assert [each.drifts for each in theirs.candidates] == [True, False]


def test_an_emptied_cache_is_corrected_before_it_counts_as_drifting() -> None:
    fleet = Fleet()
    prompts = [ask(system(f"{number} {DOCUMENT}"), user("again")) for number in range(64)]
    fleet.caches = True
    for _ in range(3):
        for prompt in prompts:
            fleet.serve(prompt)
    for prompt in prompts:  # each is missing once
        fleet.caches = False
        fleet.serve(prompt)
        fleet.caches = True
        fleet.serve(prompt)
        fleet.serve(prompt)
        assert fleet.router.drifting == 0
