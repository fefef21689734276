"""What an engine keeps in host memory is a tier of its own: dearer than its cache, cheaper than computing it again."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec
import pytest

from catalogue import routing_policy
from routing import decision_record, explanation
from routing.prefixes.warm_prefixes import ReplicaCache
from routing.replicas.load import PRIOR_SECONDS_PER_TOKEN as PRIOR_COMPUTING
from routing.replicas.reload_speed import LEAST_TOKENS, PRIOR_SECONDS_PER_TOKEN, ReloadSpeed
from routing.router import Boot, Candidate, Choice, Router
from routing.shared.state import private, private_place
from tests.routing.prefixes.test_warm_prefixes import LINK_TOKENS, chain, table_of
from tests.routing.prompts import ask, replicas, user
from tests.routing.shared.test_file import path, processes  # noqa: F401 (fixtures)
from tests.routing.test_exchange import Elsewhere, Host, tell
from tests.routing.test_explanation import decided
from tests.routing.test_router import DOCUMENT, Clock, answer, serve

HELD, OTHER = replicas(2)
#: Tokens of a question about a document; a cache that holds three of them, and host memory for twenty-three.
LONG = DOCUMENT * 8
TOKENS = len(LONG) // 4
TIERS = Boot(cache_tokens=35_000, host_cache_tokens=240_000)
NONE = Boot(cache_tokens=35_000)


@pytest.fixture
def clock() -> Clock:
    """The time of the router."""
    return Clock()


@pytest.fixture
def router(clock: Clock) -> Router:
    """A router whose first replica has host memory."""
    found = Router(private(1 << 16, 1 << 10), clock=clock)
    found.follow({HELD: TIERS, OTHER: NONE})
    return found


def compute(router: Router, clock: Clock, replica: UUID, text: str) -> None:
    """Let a replica answer a question; it computes in a second what its cache does not hold."""
    choice = router.choose(ask(user(text)), [replica])
    clock.now += 1
    cached = choice.warm_tokens - choice.host_tokens
    answer(router, choice, computed_tokens=choice.prefix.tokens - cached, cached_tokens=cached)


def fill(router: Router, clock: Clock, replica: UUID, count: int, name: str = "other") -> None:
    """Let a replica answer questions about ``count`` documents, one a second."""
    for number in range(count):
        compute(router, clock, replica, f"{name}{number:3}" + LONG)


def cost(router: Router, clock: Clock, replica: UUID, text: str = "first" + LONG) -> Candidate:
    return router.costs(ask(user(text)), [replica], clock.now)[0]


def evicted(router: Router, clock: Clock, replica: UUID = HELD) -> None:
    """Let a replica answer a question, and then so many others that its cache no longer holds the first."""
    compute(router, clock, replica, "first" + LONG)
    fill(router, clock, replica, 8)


def test_what_a_cache_evicts_is_reloaded_where_host_memory_holds_it(router: Router, clock: Clock) -> None:
    for replica in (HELD, OTHER):
        evicted(router, clock, replica)
    held, lost = (cost(router, clock, each) for each in (HELD, OTHER))
    assert held.warm_tokens == held.host_tokens > 9_000
    assert held.reload == pytest.approx(held.host_tokens * PRIOR_SECONDS_PER_TOKEN)
    assert held.prefill < lost.prefill / 20
    assert (lost.warm_tokens, lost.host_tokens, lost.reload) == (0, 0, 0.0)
    assert held.cost == pytest.approx(
        held.backlog + held.prefill + held.reload + held.displaced + held.decode + held.leaving
    )
    choice = router.choose(ask(user("first" + LONG)), [OTHER, HELD])
    assert (choice.replica_id, choice.reason) == (HELD, "prefix")
    assert choice.host_tokens == held.host_tokens


def test_what_is_in_the_cache_is_not_reloaded(router: Router, clock: Clock) -> None:
    serve(router, ask(user("first" + LONG)), [HELD])
    found = cost(router, clock, HELD)
    assert found.warm_tokens > 9_000
    assert (found.host_tokens, found.reload) == (0, 0.0)


def test_a_prompt_that_was_reloaded_is_in_the_cache_again(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    assert cost(router, clock, HELD).host_tokens
    choice = router.choose(ask(user("first" + LONG)), [HELD])
    answer(router, choice, computed_tokens=10, cached_tokens=choice.prefix.tokens - 10)
    assert cost(router, clock, HELD).host_tokens == 0
    clock.now += 1
    fill(router, clock, HELD, 1, "one more")
    assert cost(router, clock, HELD, "other  7" + LONG).host_tokens == 0
    assert cost(router, clock, HELD, "other  3" + LONG).host_tokens > 9_000  # it made room for what was reloaded


def test_host_memory_overwrites_what_was_used_longest_ago(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    fill(router, clock, HELD, 30, "more")
    assert cost(router, clock, HELD).warm_tokens == 0
    assert cost(router, clock, HELD, "more 14" + LONG).host_tokens > 9_000


def test_answers_are_not_in_host_memory(router: Router, clock: Clock) -> None:
    for number in range(10):
        clock.now += 1
        choice = router.choose(ask(user(f"{number:4}" + LONG)), [HELD])
        answer(router, choice, computed_tokens=choice.prefix.tokens, cached_tokens=0, completion_tokens=20_000)
    assert cost(router, clock, HELD, "   0" + LONG).host_tokens > 9_000
    assert cost(router, clock, HELD, "   5" + LONG).host_tokens > 9_000


def test_host_memory_that_is_no_larger_than_the_cache_changes_nothing() -> None:
    assert ReplicaCache(1000, host_capacity=1000).host is None
    assert ReplicaCache(1000, host_capacity=1001).host is not None


def test_two_counts_over_one_table_are_two_least_recently_used_caches() -> None:
    table, cache = table_of(1 << 16), ReplicaCache(50 * LINK_TOKENS, host_capacity=200 * LINK_TOKENS)
    for now in range(1, 301):
        cache.hold(table.use(chain(now), cache, now))
    cached = [table.depth(chain(now), cache) for now in range(1, 301)]
    reached = [table.reach(chain(now), cache, depth) for now, depth in enumerate(cached, start=1)]
    assert cached == [0] * (300 - sum(cached)) + [1] * sum(cached)
    assert reached == [0] * (300 - sum(reached)) + [1] * sum(reached)
    assert 48 <= sum(cached) <= 52
    assert 196 <= sum(reached) <= 203


def test_the_end_of_a_prompt_may_be_in_host_memory_alone(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    serve(router, ask(user("first" + DOCUMENT * 4)), [HELD])  # the first half is used again
    found = cost(router, clock, HELD)
    cached = found.warm_tokens - found.host_tokens
    assert cached == pytest.approx(TOKENS // 2, rel=0.1)
    assert found.host_tokens == pytest.approx(TOKENS // 2, rel=0.1)


def test_answers_that_were_not_cached_show_that_host_memory_was_emptied(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    held = [cost(router, clock, HELD, f"other{number:3}" + LONG).warm_tokens > 0 for number in range(8)]
    assert held == [True] * 8
    for number in (1, 2, 3, 4):
        clock.now += 1
        choice = router.choose(ask(user(f"other{number:3}" + LONG)), [HELD])
        answer(router, choice, computed_tokens=choice.prefix.tokens, cached_tokens=0)
    assert cost(router, clock, HELD).warm_tokens == 0


def test_processes_of_a_host_see_the_same(processes: list[Router], clock: Clock) -> None:  # noqa: F811
    for each in processes:
        each.follow({HELD: TIERS})
    evicted(processes[0], clock)
    seen = [cost(each, clock, HELD) for each in processes]
    assert {each.host_tokens for each in seen} == {seen[0].host_tokens}
    assert seen[0].host_tokens > 9_000


def test_hosts_see_the_same(clock: Clock) -> None:
    hosts = [Host(clock), Host(Elsewhere(clock))]
    for host in hosts:
        host.router.follow({HELD: TIERS})
    serve(hosts[0].router, ask(user("first" + LONG)), [HELD])
    tell(hosts, clock)
    for number in range(8):
        serve(hosts[0].router, ask(user(f"other{number:3}" + LONG)), [HELD])
        tell(hosts, clock)
    own = hosts[0].router.costs(ask(user("first" + LONG)), [HELD], clock.now)[0]
    told = hosts[1].router.costs(ask(user("first" + LONG)), [HELD], clock.now + 5000.0)[0]
    assert own.host_tokens == told.host_tokens > 9_000


def reload_alone(router: Router, clock: Clock, number: int, seconds: float) -> Choice:
    """Let the prompt of a document be reloaded, and its answer begin after so long."""
    choice = router.choose(ask(user(f"other{number:3}" + LONG)), [HELD])
    clock.now += seconds
    answer(router, choice, computed_tokens=10, cached_tokens=choice.prefix.tokens - 10)
    return choice


def test_the_speed_of_reloading_is_learned_from_answers(router: Router, clock: Clock) -> None:
    fill(router, clock, HELD, 18)
    before = cost(router, clock, HELD, "other  0" + LONG)
    for number in range(10):
        clock.now += 1
        assert reload_alone(router, clock, number, 1.0).host_tokens > 9_000
    clock.now += 1
    after = cost(router, clock, HELD, "other 10" + LONG)
    assert after.reload > 4 * before.reload
    assert after.prefill == pytest.approx(before.prefill)  # what was reloaded says nothing of computing


def test_one_answer_teaches_a_bounded_factor_and_a_short_reload_nothing() -> None:
    speed = ReloadSpeed()
    speed.learn(1e6, 20_000, 1.0, most=1e6)
    learned = speed.seconds_per_token(1.0)
    assert PRIOR_SECONDS_PER_TOKEN < learned < 4 * PRIOR_SECONDS_PER_TOKEN
    speed.learn(1e6, LEAST_TOKENS - 1, 1.0, most=1e6)
    assert speed.seconds_per_token(1.0) == learned
    for _ in range(400):
        speed.learn(-1.0, 20_000, 1.0, most=1e6)
    assert 0 < speed.seconds_per_token(1.0) < PRIOR_SECONDS_PER_TOKEN / 50


def test_what_is_learned_of_copies_fades_and_is_never_dearer_than_computing() -> None:
    speed = ReloadSpeed()
    for _ in range(100):
        speed.learn(1e6, 20_000, 1.0, most=20_000 * PRIOR_COMPUTING)
    learned = speed.seconds_per_token(1.0)
    assert PRIOR_COMPUTING / 2 < learned < PRIOR_COMPUTING
    assert speed.seconds_per_token(3600.0) == pytest.approx(PRIOR_SECONDS_PER_TOKEN, rel=0.02)


def test_a_replica_whose_copies_seem_slow_costs_no_more_than_one_that_must_compute(
    router: Router, clock: Clock
) -> None:
    fill(router, clock, HELD, 18)
    for number in range(10):
        clock.now += 1
        assert reload_alone(router, clock, number, 500.0).host_tokens > 9_000
    clock.now += 1
    held, cold = (cost(router, clock, HELD, text + LONG) for text in ("other 10", "new"))
    assert held.host_tokens > 9_000
    assert held.reload / held.host_tokens <= 1.001 * cold.prefill / TOKENS


def test_a_prompt_that_is_sent_while_another_is_reloaded_does_not_make_copies_seem_slow(
    router: Router, clock: Clock
) -> None:
    """Nothing shows when a replica computes one that is not streamed."""
    fill(router, clock, HELD, 18)
    before = cost(router, clock, HELD, "other  0" + LONG)
    reloaded = router.choose(ask(user("other  1" + LONG)), [HELD])
    clock.now += 0.01
    beside = router.choose(ask(user("new" + LONG), streamed=False), [HELD])
    clock.now += 3.0
    answer(router, reloaded, computed_tokens=10, cached_tokens=reloaded.prefix.tokens - 10)
    start = router.answered(beside, streamed=False)
    router.learn(beside, start, computed_tokens=TOKENS, cached_tokens=0, completion_tokens=9)
    router.finish(beside, answered=True)
    after = cost(router, clock, HELD, "other  0" + LONG)
    assert after.reload == before.reload
    assert after.prefill == pytest.approx(before.prefill, rel=0.01)


def test_where_each_turn_reloads_the_speed_of_computing_is_not_forgotten(router: Router, clock: Clock) -> None:
    """An engine that computes 30,000 tokens a second, five times the guess, and copies as fast as is guessed."""

    def turn(number: int, tail: str) -> Choice:
        choice = router.choose(ask(user(f"other{number % 18:3}" + LONG), user(tail)), [HELD])
        cached = choice.warm_tokens
        computed = choice.prefix.tokens - cached
        clock.now += computed / 30_000 + choice.host_tokens * PRIOR_SECONDS_PER_TOKEN
        answer(router, choice, computed_tokens=computed, cached_tokens=cached)
        clock.now += 2
        return choice

    for number in range(18):
        turn(number, "")
    for number in range(450):
        assert turn(number, f"{number:5}" * 1000).host_tokens > 9_000
    held, cold = (cost(router, clock, HELD, text + LONG) for text in ("other  0", "new"))
    assert TOKENS / cold.prefill > 12_000
    assert held.reload > held.host_tokens * PRIOR_SECONDS_PER_TOKEN / 2


def test_a_reload_is_of_no_more_tokens_than_the_models_context(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    image = ask(user("first" + LONG))  # of which more tokens are estimated than it has
    asked = msgspec.structs.replace(image, most_prompt_tokens=1500)
    (found,) = router.costs(asked, [HELD], clock.now)
    assert found.host_tokens > 9_000
    assert found.reload == pytest.approx(1500 * PRIOR_SECONDS_PER_TOKEN)


def test_a_request_that_is_not_answered_leaves_its_prompt_in_host_memory_alone(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    before = cost(router, clock, HELD)
    for _ in range(100):
        clock.now += 1
        router.finish(router.choose(ask(user("first" + LONG), user("new" * 1000)), [HELD]), answered=False)
    after = cost(router, clock, HELD)
    assert after.warm_tokens == after.host_tokens == before.host_tokens > 9_000
    assert cost(router, clock, HELD, "other  7" + LONG).host_tokens == 0
    fill(router, clock, HELD, 12, "more")
    assert cost(router, clock, HELD, "other  1" + LONG).host_tokens > 9_000  # nothing was counted that made no room


def test_a_use_that_is_taken_back_changes_no_count_of_host_memory() -> None:
    memory = private_place()
    table = table_of(1 << 16)
    cache = ReplicaCache(50 * LINK_TOKENS, memory, host_capacity=200 * LINK_TOKENS)
    for now in range(1, 150):
        cache.hold(table.use(chain(now, 1000 + now), cache, now))
    asked = chain(80, 1080, 5000)
    reach = table.reach(asked, cache, table.depth(asked, cache))
    assert cache.host is not None
    cache.host.advance(150)
    before = list(memory.host)
    use = table.use(asked, cache, 151)
    assert (use.cached_links, reach) == (0, 2)
    assert list(memory.host) != before
    table.drop(asked, reach, cache, use, use.stamp)
    assert list(memory.host) == before
    assert (table.depth(asked, cache), table.reach(asked, cache, 0)) == (0, 2)


def test_hosts_correct_alike_what_was_estimated_too_large(clock: Clock) -> None:
    hosts = [Host(clock), Host(Elsewhere(clock))]
    for host in hosts:
        host.router.follow({HELD: TIERS})
    there = hosts[0].router
    fill(there, clock, HELD, 8, "early")
    tell(hosts, clock)
    for number in range(4):
        image = there.choose(ask(user(f"image{number}" + LONG * 3)), [HELD])
        answer(there, image, computed_tokens=1500, cached_tokens=0)
        clock.now += 1
        tell(hosts, clock)
    fill(there, clock, HELD, 8, "late")
    tell(hosts, clock)
    asked = [ask(user(f"early{number:3}" + LONG)) for number in range(8)]
    own = [there.costs(each, [HELD], clock.now)[0].warm_tokens for each in asked]
    told = [hosts[1].router.costs(each, [HELD], clock.now + 5000.0)[0].warm_tokens for each in asked]
    assert told == own
    assert min(own) > 9_000


def test_a_request_behind_others_teaches_nothing_of_reloading(router: Router, clock: Clock) -> None:
    fill(router, clock, HELD, 18)
    before = cost(router, clock, HELD, "other  0" + LONG).reload
    first = router.choose(ask(user("new" + LONG)), [HELD])
    behind = router.choose(ask(user("other  1" + LONG)), [HELD])
    clock.now += 3.0
    for choice, cached in ((first, 0), (behind, behind.prefix.tokens - 10)):
        answer(router, choice, computed_tokens=choice.prefix.tokens - cached, cached_tokens=cached)
    assert cost(router, clock, HELD, "other  0" + LONG).reload == before


def test_a_reload_has_a_weight_and_decides_where_it_differs_most(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    request = ask(user("first" + LONG))
    weights = routing_policy.parse("expected-seconds:reload=10").weights
    plain, dear = (router.costs(request, [HELD], clock.now, weights=each)[0] for each in (routing_policy.EVEN, weights))
    assert dear.cost - plain.cost == pytest.approx(9 * plain.reload)
    near = Candidate(replica_id=OTHER, warm_tokens=1, depth=1, backlog=0, prefill=0, displaced=0, decode=0)
    far = msgspec.structs.replace(near, replica_id=HELD, reload=1.0, host_tokens=1)
    assert explanation.deciding_term(decided(near, far, replica_id=OTHER)) == "reload"


def test_a_replica_that_must_reload_needs_room_for_it(router: Router, clock: Clock) -> None:
    evicted(router, clock)
    choice = router.choose(ask(user("first" + LONG)), [HELD])
    assert choice.added_tokens >= choice.host_tokens > 9_000


def test_a_decision_of_an_earlier_gateway_has_nothing_in_host_memory() -> None:
    kept = decided(Candidate(replica_id=HELD, warm_tokens=1, depth=1, backlog=0, prefill=0, displaced=0, decode=0))
    kept = msgspec.structs.replace(kept, request_id=uuid4())
    written = msgspec.msgpack.decode(decision_record.encode(kept))
    for each in written["candidates"]:
        del each["reload"], each["host_tokens"]
    earlier = msgspec.msgpack.encode(written)
    (found,) = decision_record.of_request([earlier], kept.request_id)
    assert (found.candidates[0].reload, found.candidates[0].host_tokens) == (0.0, 0)
