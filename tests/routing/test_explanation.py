"""A choice is explained by the term in which it beat the runner-up, and by where its prompt left what is warm."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from catalogue.routing_policy import DEFAULT, TERMS, PolicyName, RoutingPolicy, Weights
from routing import decision_record, explanation
from routing.explanation import MAX_CANDIDATES, Decision
from routing.router import EQUAL_SECONDS, Candidate, Reason, Router, RoutingRequest
from routing.shared.state import private
from tests.routing.prompts import ask, replicas, system, user
from tests.routing.test_router import DOCUMENT, Clock, answer

ONE, OTHER = replicas(2)
REQUEST, TENANT = UUID(int=7), UUID(int=8)


def candidate(replica_id: UUID, **terms: float) -> Candidate:
    """Return a candidate with these terms, warm for 100 tokens."""
    costs_nothing = Candidate(
        replica_id=replica_id, warm_tokens=100, depth=2, backlog=0.0, prefill=0.0, displaced=0.0, decode=0.0
    )
    return msgspec.structs.replace(costs_nothing, **terms)


def decided(
    *candidates: Candidate, reason: Reason = "load", replica_id: UUID = ONE, policy: RoutingPolicy = DEFAULT
) -> Decision:
    """Return a decision among these candidates."""
    return Decision(
        request_id=REQUEST,
        tenant_id=TENANT,
        model="demo",
        at=1e9,
        replica_id=replica_id,
        reason=reason,
        home=OTHER,
        prompt_tokens=400,
        nearest_warm_tokens=100,
        diverged_message=2,
        candidates=candidates,
        candidates_count=len(candidates),
        policy=policy,
    )


def test_a_cost_is_the_sum_of_its_terms() -> None:
    whole = candidate(ONE, **{term: 2.0**position for position, term in enumerate(TERMS)})
    assert whole.cost == 2 ** len(TERMS) - 1


@pytest.mark.parametrize("term", TERMS)
def test_the_term_that_differs_most_from_the_runner_up_decided(term: str) -> None:
    others = [each for each in TERMS if each != term]
    chosen = candidate(ONE, **dict.fromkeys(others, 0.2))
    second = candidate(OTHER, **dict.fromkeys(others, 0.1), **{term: 2.0})
    dearest = candidate(replicas(3)[2], **{others[0]: 9.0})
    found = decided(dearest, second, chosen)
    assert explanation.deciding_term(found) == term
    assert explanation.best_two(found) == (chosen, second)
    assert explanation.ordered(found) == [chosen, second, dearest]


@pytest.mark.parametrize(("reason", "decider"), [("session", "home"), ("load", "idle")])
def test_between_equal_costs_the_home_decided_or_who_waited_longest(reason: Reason, decider: str) -> None:
    found = decided(
        candidate(ONE, backlog=EQUAL_SECONDS / 2, prefill=0.25), candidate(OTHER, prefill=0.25), reason=reason
    )
    assert (
        explanation.header(found) == f"{reason}; by={decider}; warm_tokens=100; seconds=0.25; policy=expected-seconds"
    )


def test_the_weighted_term_that_differs_most_decided() -> None:
    policy = RoutingPolicy(weights=Weights(backlog=10.0))
    chosen, second = candidate(ONE, prefill=1.0), candidate(OTHER, backlog=0.2, weighting=1.8)
    found = decided(chosen, second, policy=policy)
    assert explanation.best_two(found) == (chosen, second)
    assert explanation.deciding_term(found) == "backlog"


@pytest.mark.parametrize(
    ("name", "reason", "requests", "decider", "why"),
    [
        ("least-loaded", "load", 3, "requests", "has the fewest requests"),
        ("least-loaded", "load", 2, "idle", "waited longest for a request"),
        ("round-robin", "load", 3, "idle", "waited longest for a request"),
        ("session", "session", 1, "home", "is the session's home"),
    ],
)
def test_a_policy_without_a_cost_is_named_with_what_it_looks_at(
    name: PolicyName, reason: Reason, requests: int, decider: str, why: str
) -> None:
    chosen = msgspec.structs.replace(candidate(ONE, backlog=9.0), requests=2)
    second = msgspec.structs.replace(candidate(OTHER), requests=requests)
    more = msgspec.structs.replace(candidate(replicas(3)[2]), requests=8)
    found = decided(more, chosen, second, reason=reason, policy=RoutingPolicy(name=name))
    assert explanation.best_two(found) == (chosen, second)
    assert explanation.header(found) == f"{reason}; by={decider}; warm_tokens=100; seconds=9.00; policy={name}"
    assert explanation.outcome(found) == f"{reason}: …000001 {why}, by the policy {name}."


def test_a_decision_of_a_version_without_policies_is_read() -> None:
    written = msgspec.to_builtins(decided(candidate(ONE)))
    del written["policy"]
    for each in written["candidates"]:
        del each["weighting"], each["requests"]
    (found,) = decision_record.of_request([msgspec.msgpack.encode({**written, "request_id": REQUEST.bytes})], REQUEST)
    assert (found.policy, found.candidates[0].cost) == (DEFAULT, 0.0)


def test_the_only_replica_has_no_runner_up() -> None:
    found = decided(candidate(ONE, backlog=1.0, prefill=0.5, decode=3.0), reason="only")
    assert explanation.header(found) == "only; warm_tokens=100; seconds=1.50; policy=expected-seconds"


def served(router: Router, request: RoutingRequest, among: Sequence[UUID]) -> explanation.PrefixMatch | None:
    """Let a request be answered, and return what was expected of its prompt."""
    choice = router.choose(request, among)
    answer(router, choice, computed_tokens=choice.prefix.tokens - choice.warm_tokens)
    return explanation.prefix_match(choice)


def test_a_prompt_is_compared_with_the_nearest_warm_prefix_of_any_replica() -> None:
    router = Router(private(1 << 14, 64), clock=Clock())
    said = [system(DOCUMENT), user("one")]
    first = served(router, ask(*said), [ONE])
    again = served(router, ask(*said), [ONE])
    longer = served(router, ask(*said, user("two")), [ONE])
    elsewhere = served(router, ask(*said, user("three")), [OTHER])
    assert first is not None and again is not None and longer is not None and elsewhere is not None
    assert (first.warm_tokens, first.nearest_warm_tokens, first.diverged_message) == (0, 0, 1)
    assert (again.warm_tokens, again.nearest_warm_tokens, again.diverged_message) == (*[first.prompt_tokens] * 2, None)
    assert (longer.nearest_warm_tokens, longer.diverged_message) == (first.prompt_tokens, 3)
    assert (elsewhere.warm_tokens, elsewhere.diverged_message) == (0, 1)


def test_a_request_that_leaves_its_warm_replica_says_how_much_was_warm_there() -> None:
    router = Router(private(1 << 14, 64), clock=Clock())
    served(router, ask(system(DOCUMENT)), [ONE])
    for number in range(200):  # so busy that the other one is cheaper
        router.choose(ask(user(f"{number}" + DOCUMENT)), [ONE])
    choice = router.choose(ask(system(DOCUMENT), user("next")), [ONE, OTHER])
    match = explanation.prefix_match(choice)
    assert match is not None
    assert (choice.replica_id, choice.reason, explanation.deciding_term(choice)) == (OTHER, "load", "backlog")
    assert (match.warm_tokens, match.diverged_message) == (0, 2)
    assert match.nearest_warm_tokens == len(DOCUMENT) // 4 + len("system") // 4


def test_where_engines_cache_nothing_nothing_is_expected() -> None:
    router = Router(private(1 << 14, 64), clock=Clock())
    assert explanation.prefix_match(router.choose(ask(), [ONE])) is None


def test_of_many_candidates_the_chosen_and_the_cheapest_are_kept() -> None:
    router = Router(private(1 << 16, 64), clock=Clock())
    many = replicas(40)
    for number, each in enumerate(many[1:]):
        for turn in range(number):
            router.choose(ask(user(f"{number} {turn}" + DOCUMENT)), [each])
    choice = router.choose(ask(user("question")), many)
    kept = explanation.decision(choice, None, request_id=REQUEST, tenant_id=TENANT, model="demo", at=1.0)
    assert kept.candidates_count == 40
    assert {each.replica_id for each in kept.candidates} == set(many[:MAX_CANDIDATES])
    assert explanation.header(kept) == explanation.header(choice)


def test_a_kept_decision_is_found_by_its_request_and_no_other() -> None:
    first = decided(candidate(ONE), candidate(OTHER, prefill=1.5), replica_id=OTHER)
    second = decided(candidate(ONE))
    other = msgspec.structs.replace(second, request_id=UUID(int=9), tenant_id=REQUEST)
    of_another_version = msgspec.msgpack.encode({"request_id": REQUEST.bytes})
    packed = [*map(decision_record.encode, [second, other, first]), of_another_version]
    found = decision_record.of_request(packed, REQUEST)
    assert [msgspec.structs.replace(each, candidates=tuple(each.candidates)) for each in found] == [first, second]
    assert decision_record.of_request(packed, UUID(int=10)) == []


def test_a_replica_without_room_is_no_runner_up() -> None:
    chosen, free, full = candidate(ONE, backlog=0.5), candidate(OTHER, prefill=2.0), candidate(replicas(3)[2])
    full = msgspec.structs.replace(full, full=True)
    found = decided(full, free, chosen)
    assert explanation.best_two(found) == (chosen, free)
    assert explanation.header(found).startswith("load; by=prefill;")
    alone = decided(full, chosen, reason="only")
    assert explanation.header(alone).startswith("only; warm_tokens=")
    assert explanation.outcome(alone).endswith("was the only replica that could be tried; the others were full.")


def test_only_those_with_room_are_open_to_a_request_that_waited() -> None:
    router = Router(private(1 << 14, 64), clock=Clock())
    answer(router, router.choose(ask(user(DOCUMENT)), [ONE]), computed_tokens=1000)
    choice = router.choose(ask(user(DOCUMENT)), [ONE, OTHER], free={OTHER})
    assert (choice.replica_id, choice.reason) == (OTHER, "only")
    assert [each.replica_id for each in choice.candidates if each.full] == [ONE]
