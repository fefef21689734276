"""A deployment's policy chooses among its replicas by something else than the cost, or weighs the cost's terms."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from catalogue import routing_policy
from catalogue.routing_policy import DEFAULT, TERMS, BadPolicy, Comparison, PolicyName, Routing, RoutingPolicy, Weights
from routing.router import Candidate, Choice, Router
from routing.shared.state import private
from tests.routing.prompts import ask, replicas, system, user
from tests.routing.test_router import DOCUMENT, Clock, answer

ONE, OTHER, THIRD = EVERYBODY = replicas(3)


@pytest.fixture
def router() -> Router:
    """A router to which each call is a millisecond later, and whose first replica is warm for the document."""
    clock = Clock()

    def later() -> float:
        clock.now += 0.001
        return clock.now

    found = Router(private(1 << 14, 1 << 10), clock=later)
    answer(found, found.choose(ask(system(DOCUMENT)), [ONE]), computed_tokens=1000)
    return found


def named(name: PolicyName) -> RoutingPolicy:
    return RoutingPolicy(name=name)


def keep_busy(router: Router, replica_id: UUID, requests: int = 1) -> list[Choice]:
    """Let requests run on a replica."""
    return [router.choose(ask(user(f"{number}{DOCUMENT}")), [replica_id]) for number in range(requests)]


def test_each_term_of_a_cost_has_a_weight() -> None:
    terms = {name for name in Candidate.__struct_fields__ if name in TERMS}
    assert terms == set(TERMS)
    one = msgspec.convert({"replica_id": ONE, "warm_tokens": 0, "depth": 0, **dict.fromkeys(TERMS, 1.0)}, Candidate)
    assert one.cost == len(TERMS)


def test_round_robin_takes_turns_whatever_is_warm_or_busy(router: Router) -> None:
    busy = keep_busy(router, OTHER, 5)
    chosen = [router.choose(ask(system(DOCUMENT)), EVERYBODY, policy=named("round-robin")) for _ in range(6)]
    assert [each.replica_id for each in chosen] == [THIRD, ONE, OTHER] * 2
    assert {each.reason for each in chosen} == {"load"}
    assert {each.policy.name for each in chosen} == {"round-robin"} != {each.policy.name for each in busy}


def test_least_loaded_counts_requests_and_takes_turns_among_equals(router: Router) -> None:
    keep_busy(router, OTHER, 2)
    chosen = [router.choose(ask(system(DOCUMENT)), EVERYBODY, policy=named("least-loaded")) for _ in range(5)]
    assert [each.replica_id for each in chosen] == [THIRD, ONE, THIRD, ONE, OTHER]
    assert [each.requests for each in chosen[-1].candidates] == [2, 2, 2]


def test_session_stays_at_home_and_a_request_without_one_goes_to_the_fewest_requests(router: Router) -> None:
    policy = named("session")
    home = router.choose(ask(user("one"), session="s"), EVERYBODY, policy=policy).replica_id
    keep_busy(router, home, 20)
    for _ in range(3):
        turn = router.choose(ask(user("two"), session="s"), EVERYBODY, policy=policy)
        assert (turn.replica_id, turn.reason) == (home, "session")
    elsewhere = router.choose(ask(user("two")), EVERYBODY, policy=policy)
    assert (elsewhere.replica_id != home, elsewhere.reason) == (True, "load")
    others = {each for each in EVERYBODY if each != home}
    waited = router.choose(ask(user("two"), session="s"), EVERYBODY, policy=policy, free=others)
    assert waited.replica_id in others
    assert router.choose(ask(user("two"), session="s"), EVERYBODY, policy=policy).replica_id == home


@pytest.mark.parametrize("name", ["round-robin", "least-loaded"])
def test_a_strict_session_stays_at_home_under_every_policy(router: Router, name: PolicyName) -> None:
    def turn() -> Choice:
        request = msgspec.structs.replace(ask(user("one"), session="s"), strict=True)
        return router.choose(request, EVERYBODY, policy=named(name))

    home = turn().replica_id
    keep_busy(router, home, 5)
    assert [turn().replica_id for _ in range(3)] == [home] * 3


def test_a_weight_turns_a_term_up_or_off(router: Router) -> None:
    keep_busy(router, ONE, 3)
    request = ask(system(DOCUMENT))
    assert router.choose(request, [ONE, OTHER]).replica_id == OTHER  # computing it again takes less than the wait
    careless = router.choose(request, [ONE, THIRD], policy=RoutingPolicy(weights=Weights(backlog=0.0, decode=0.0)))
    assert (careless.replica_id, careless.reason) == (ONE, "prefix")
    warm = careless.candidates[0]
    assert warm.backlog > 0 and warm.cost == pytest.approx(warm.prefill + warm.displaced)


def test_even_weights_decide_as_without_any(router: Router) -> None:
    keep_busy(router, ONE, 2)
    plain, weighed = (
        router.choose(ask(user("same")), EVERYBODY, policy=policy)
        for policy in (DEFAULT, RoutingPolicy(weights=Weights(decode=1.0)))
    )
    assert {each.weighting for each in (*plain.candidates, *weighed.candidates)} == {0.0}


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("round-robin", RoutingPolicy(name="round-robin")),
        ("expected-seconds", DEFAULT),
        ("expected-seconds: displaced=0.5, decode=2", RoutingPolicy(weights=Weights(displaced=0.5, decode=2.0))),
        ("expected-seconds:decode=1", DEFAULT),
    ],
)
def test_a_policy_is_written_as_it_is_read(text: str, policy: RoutingPolicy) -> None:
    assert routing_policy.parse(text) == policy
    assert routing_policy.parse(str(policy)) == policy
    assert routing_policy.read(routing_policy.to_json(Routing(policy=policy))) == Routing(policy=policy)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("fastest", "policy"),
        ("", "policy"),
        ("expected-seconds:home=1", "weights.home"),
        ("expected-seconds:decode=11", "weights.decode"),
        ("expected-seconds:decode=-0.1", "weights.decode"),
        ("expected-seconds:decode=nan", "weights.decode"),
        ("expected-seconds:decode=inf", "weights.decode"),
        ("expected-seconds:decode", "weights"),
        ("session:decode=1", "weights"),
    ],
)
def test_what_is_no_policy_says_where_and_what_is_allowed(text: str, field: str) -> None:
    with pytest.raises(BadPolicy) as refused:
        routing_policy.parse(text)
    assert refused.value.field == field
    assert refused.value.allowed in str(refused.value)


COMPARISON = Comparison(
    name="c0ffee11", policy=DEFAULT, against=RoutingPolicy(name="round-robin"), share=0.3, began=1000.0, until=1600.0
)


def test_a_comparison_gives_each_policy_its_share_of_the_conversations_for_as_long_as_it_runs() -> None:
    routing = Routing(policy=RoutingPolicy(name="session"), comparison=COMPARISON)
    conversations = [str(number).encode() for number in range(10_000)]
    chosen = [routing.of(each, 1599.9) for each in conversations]
    by_b = [split for policy, split in chosen if policy == COMPARISON.against]
    assert len(by_b) == pytest.approx(3000, abs=120)
    assert {tuple(split.split("-")[:2]) for split in by_b} == {("c0ffee11", "B")}
    assert {policy for policy, _ in chosen} == {COMPARISON.policy, COMPARISON.against}
    assert [routing.of(each, 1000.0) for each in conversations] == chosen  # each stays where it is
    assert max(len(split) for _, split in chosen) <= 24
    assert {routing.of(each, 1600.0) for each in conversations} == {(routing.policy, "")}
    again = Routing(comparison=msgspec.structs.replace(COMPARISON, name="c0ffee12"))
    moved = sum(again.of(each, 1000.0)[0] != policy for each, (policy, _) in zip(conversations, chosen, strict=True))
    assert moved == pytest.approx(2 * 0.3 * 0.7 * 10_000, abs=200)  # another comparison draws others
    assert routing_policy.read(routing_policy.to_json(routing)) == routing
