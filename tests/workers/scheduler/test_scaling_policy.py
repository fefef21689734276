"""The desired number of replicas: single decisions, and properties of all decisions."""

from __future__ import annotations

import datetime as dt
import json
import math
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.workers.scheduler.scaling_simulation import facts_from, tokens
from workers.scheduler.scaling import scaling_policy
from workers.scheduler.scaling.scaling_policy import Facts, Memory, PoolFacts
from workers.serving.gateway_load import DeploymentLoad

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FIRST, NEXT = UUID(int=1), UUID(int=2)
IDLE = DeploymentLoad()
#: A busy machine must not fail the test.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ago(seconds: float) -> dt.datetime:
    return NOW - dt.timedelta(seconds=seconds)


def pool(number: int = 1, **changes: object) -> PoolFacts:
    facts = PoolFacts(
        id=UUID(int=number), name=f"p{number}", replicas=0, starting=0, room=4, high_water=0.7, low_water=0.45
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def facts(load: DeploymentLoad | None, desired: int, *pools: PoolFacts, **changes: object) -> Facts:
    """Return one deployment of 0 to 8 replicas of 1,000 tokens; all desired replicas are ready in its first pool."""
    made = Facts(
        now=NOW,
        desired=desired,
        min_replicas=0,
        max_replicas=8,
        target_tokens=1000,
        up_delay_seconds=5.0,
        down_delay_seconds=300.0,
        load=load,
        pools=pools or (pool(replicas=desired),),
        memory=Memory(),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_more_are_desired_once_more_were_wanted_for_the_up_delay() -> None:
    at_first = facts(tokens(2431), 1)
    decision = scaling_policy.decide(at_first)
    assert (decision.desired, decision.steps) == (1, ())
    assert decision.memory.more_wanted_since == NOW
    later = replace(at_first, memory=Memory(more_wanted_since=ago(5)))
    decision = scaling_policy.decide(later)
    (step,) = decision.steps
    assert (step.action, step.before, step.after, decision.desired) == ("up", 1, 3, 3)
    assert step.reason == "2,431 tokens in flight want 3 replicas of 1,000, for 5 s; 1 exists, 0 start"
    assert decision.memory.more_wanted_since is None


def test_a_load_that_falls_back_before_the_delay_is_forgotten() -> None:
    decision = scaling_policy.decide(facts(tokens(900), 1, memory=Memory(more_wanted_since=ago(4))))
    assert (decision.desired, decision.memory.more_wanted_since) == (1, None)


def test_while_replicas_start_nothing_is_added_however_much_waits() -> None:
    starting = pool(replicas=2, starting=1)
    decision = scaling_policy.decide(
        facts(tokens(1000, held=6000), 2, starting, memory=Memory(more_wanted_since=ago(60)))
    )
    assert (decision.desired, decision.memory.more_wanted_since) == (2, None)


def test_one_request_wakes_a_deployment_at_once_and_only_once() -> None:
    decision = scaling_policy.decide(facts(tokens(0, held=100), 0))
    (step,) = decision.steps
    assert (step.action, decision.desired) == ("wake", 1)
    assert step.reason.startswith("1 request waits and there is no replica: 100 tokens in flight, 100 of them waiting")
    again = facts(tokens(0, held=9000), 1, pool(replicas=1, starting=1), memory=decision.memory)
    assert scaling_policy.decide(again).steps == ()


def test_a_wake_asks_for_what_waits_within_the_maximum() -> None:
    assert scaling_policy.decide(facts(tokens(0, held=2500), 0)).desired == 3
    assert scaling_policy.decide(facts(tokens(0, held=99_000), 0)).desired == 8
    assert scaling_policy.decide(facts(DeploymentLoad(queued_requests=1), 0)).desired == 1


def test_fewer_are_desired_after_the_down_delay_and_as_many_as_were_wanted_meanwhile() -> None:
    seen = Memory(less_wanted_since=ago(200), less_wanted_peak=1)
    decision = scaling_policy.decide(facts(tokens(2500), 5, memory=seen))
    assert (decision.desired, decision.memory.less_wanted_since, decision.memory.less_wanted_peak) == (5, ago(200), 3)
    seen = Memory(less_wanted_since=ago(300), less_wanted_peak=3)
    decision = scaling_policy.decide(facts(tokens(900), 5, memory=seen))
    (step,) = decision.steps
    assert (step.action, step.before, step.after) == ("down", 5, 3)
    assert step.reason == (
        "no more than 3 replicas were wanted for 300 s; 900 tokens in flight now, 1,000 to a replica"
    )


def test_to_zero_only_when_nothing_at_all_was_in_flight_for_the_down_delay() -> None:
    nothing = Memory(less_wanted_since=ago(300), less_wanted_peak=0)
    assert scaling_policy.decide(facts(IDLE, 1, memory=nothing)).desired == 0
    assert scaling_policy.decide(facts(DeploymentLoad(in_flight_requests=1), 1, memory=nothing)).desired == 1
    assert scaling_policy.decide(facts(IDLE, 1, min_replicas=1, memory=nothing)).desired == 1
    lately = facts(IDLE, 1, memory=nothing, busy_at=ago(299))
    assert (scaling_policy.decide(lately).desired, scaling_policy.decide(lately).memory.less_wanted_since) == (
        1,
        ago(300),
    )
    assert scaling_policy.decide(replace(lately, desired=3, pools=(pool(replicas=3),))).desired == 1
    assert scaling_policy.decide(replace(lately, busy_at=ago(300))).desired == 0
    something = Memory(less_wanted_since=ago(300), less_wanted_peak=1)
    assert scaling_policy.decide(facts(IDLE, 2, memory=something)).desired == 1


def test_a_fixed_deployment_is_left_alone_and_prepares_nothing() -> None:
    fixed = facts(tokens(9000), 2, pool(replicas=2), pool(2, prepared=1, replicas=1), min_replicas=2, max_replicas=2)
    decision = scaling_policy.decide(fixed)
    assert (decision.desired, decision.prepared) == (2, {FIRST: 0, NEXT: 0})
    assert [step.action for step in decision.steps] == ["release"]


def test_without_any_report_nothing_changes_and_no_delay_goes_on() -> None:
    running = Memory(less_wanted_since=ago(900), more_wanted_since=ago(900))
    decision = scaling_policy.decide(facts(None, 5, pool(replicas=5), pool(2, prepared=1), memory=running))
    assert (decision.desired, decision.steps, decision.memory) == (5, (), Memory())
    assert decision.prepared == {FIRST: 0, NEXT: 1}


def test_the_next_pool_is_prepared_at_high_water_whatever_the_delays() -> None:
    below = facts(tokens(2799), 3, pool(replicas=3, room=1), pool(2))
    assert scaling_policy.decide(below).steps == ()
    decision = scaling_policy.decide(replace(below, load=tokens(2800)))
    (step,) = decision.steps
    assert (step.action, step.pool_id, step.before, step.after) == ("prepare", NEXT, 3, 4)
    assert step.reason == "pool p1 is 70% full, high water is 70%: one replica is prepared in pool p2"
    assert decision.prepared == {FIRST: 0, NEXT: 1}
    kept = facts(tokens(2800), 4, pool(replicas=3, room=1), pool(2, replicas=1, prepared=1))
    assert scaling_policy.decide(kept).steps == ()


def test_the_next_pool_is_prepared_early_when_its_start_takes_longer_than_this_pool_lasts() -> None:
    rising = Memory(sampled_tokens=1600, sampled_at=ago(4))
    slow = pool(2, start_seconds=20.0)
    ask = facts(tokens(2400), 3, pool(replicas=3, room=1), slow, memory=rising)
    (step,) = scaling_policy.decide(ask).steps
    assert step.reason.startswith("pool p1 is 60% full and full in 8.0 s at this pace, while a start in p2 takes 20.0")
    quick = replace(ask, pools=(ask.pools[0], replace(slow, start_seconds=5.0)))
    assert scaling_policy.decide(quick).steps == ()
    unmeasured = replace(ask, pools=(ask.pools[0], replace(slow, start_seconds=None)))
    assert scaling_policy.decide(unmeasured).steps == ()
    early = replace(ask, load=tokens(1700), memory=Memory(sampled_tokens=0, sampled_at=ago(4)))
    assert scaling_policy.decide(early).steps == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"max_replicas": 4}, "all that may ever be fit in the first pool"),
        ({"pools": (pool(replicas=4, room=0), pool(2, room=0))}, "the next pool has no room"),
        ({"pools": (pool(replicas=0, room=0), pool(2, replicas=4))}, "the first pool has nothing that fills up"),
    ],
)
def test_nothing_is_prepared_in_vain(changes: dict[str, object], why: str) -> None:
    ask = facts(tokens(3900), 4, pool(replicas=4, room=0), pool(2), **changes)
    assert scaling_policy.decide(ask).prepared[NEXT] == 0, why


def test_what_is_prepared_is_given_up_after_the_down_delay_below_low_water() -> None:
    def ask(load: DeploymentLoad, since: dt.datetime | None) -> Facts:
        prepared = pool(2, replicas=1, prepared=1, not_needed_since=since)
        return facts(load, 4, pool(replicas=3, room=1), prepared, memory=Memory(less_wanted_since=ago(100)))

    decision = scaling_policy.decide(ask(tokens(1700), None))
    assert (decision.prepared[NEXT], decision.not_needed_since[NEXT]) == (1, NOW)
    decision = scaling_policy.decide(ask(tokens(2000), ago(400)))
    assert (decision.prepared[NEXT], decision.not_needed_since[NEXT]) == (1, None)
    decision = scaling_policy.decide(ask(tokens(1700), ago(300)))
    (step,) = decision.steps
    assert (step.action, step.before, step.after, decision.prepared[NEXT]) == ("release", 4, 3, 0)
    assert step.reason == "pool p1 was below 45% for 300 s: what is prepared in pool p2 is given up"


def test_a_prepared_replica_serves_the_overflow_and_is_not_one_more_then() -> None:
    ask = facts(IDLE, 4, pool(replicas=3, room=1), pool(2, replicas=1, prepared=1))
    totals = [scaling_policy.with_prepared(ask, wanted, {FIRST: 0, NEXT: 1}) for wanted in range(9)]
    assert totals == [1, 2, 3, 4, 5, 5, 6, 7, 8]


@st.composite
def any_facts(draw: st.DrawFn) -> Facts:
    """Return possible facts: the desired number is within the bounds, and pools have any content."""
    count = st.integers(0, 6)
    minimum = draw(count)
    maximum = draw(st.integers(minimum, 12))
    moments = st.none() | st.integers(0, 1000).map(ago)
    amounts = st.integers(0, 20_000)
    loads = st.builds(
        DeploymentLoad, in_flight_requests=count, in_flight_tokens=amounts, queued_requests=count, queued_tokens=amounts
    )
    pools = []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        replicas = draw(count)
        pools.append(
            pool(
                number,
                replicas=replicas,
                starting=draw(st.integers(0, replicas)),
                room=draw(count),
                prepared=draw(st.integers(0, 1)) if number > 1 else 0,
                start_seconds=draw(st.none() | st.floats(0.1, 100)),
                not_needed_since=draw(moments),
            )
        )
    memory = st.builds(
        Memory,
        more_wanted_since=moments,
        less_wanted_since=moments,
        less_wanted_peak=st.just(minimum),
        sampled_tokens=st.none() | amounts,
        sampled_at=moments,
    )
    return facts(
        draw(st.none() | loads | st.just(IDLE)),
        draw(st.integers(minimum, maximum)),
        *pools,
        min_replicas=minimum,
        max_replicas=maximum,
        memory=draw(memory),
        busy_at=draw(moments),
    )


@unhurried
@given(any_facts())
def test_the_bounds_hold_and_the_steps_lead_from_what_was_to_what_is(ask: Facts) -> None:
    decision = scaling_policy.decide(ask)
    assert ask.min_replicas <= decision.desired <= ask.max_replicas
    assert [ask.desired, *(step.after for step in decision.steps)] == [
        *(step.before for step in decision.steps),
        decision.desired,
    ]
    assert all(0 < len(step.reason) <= 500 for step in decision.steps)
    prepared = {each.id: each.prepared for each in ask.pools}
    for step in decision.steps:
        if step.pool_id is not None:
            prepared[step.pool_id] = int(step.action == "prepare")
    assert decision.prepared == prepared


@unhurried
@given(any_facts())
def test_something_serves_while_anything_is_in_flight(ask: Facts) -> None:
    busy = ask.load is not None and ask.load != IDLE
    if busy and ask.max_replicas > 0:
        assert scaling_policy.decide(ask).desired >= 1


@unhurried
@given(any_facts())
def test_no_decision_overshoots_the_load_or_adds_while_replicas_start(ask: Facts) -> None:
    decision = scaling_policy.decide(ask)
    if decision.desired <= ask.desired:
        return
    assert ask.load is not None
    load = ask.load.in_flight_tokens + ask.load.queued_tokens
    prepared = sum(decision.prepared.values())
    assert decision.desired <= max(ask.desired, ask.min_replicas, math.ceil(load / 1000), 1) + prepared
    if any(step.action == "up" for step in decision.steps):
        assert sum(max(0, each.starting - decision.prepared[each.id]) for each in ask.pools) == 0


def test_a_replica_that_starts_in_a_released_pool_counts_as_starting() -> None:
    pools = (
        pool(1, replicas=3, room=2),
        pool(2, room=1),
        pool(3, replicas=1, starting=1, room=1, prepared=1, not_needed_since=ago(301)),
    )
    decision = scaling_policy.decide(
        facts(tokens(1500), 1, *pools, max_replicas=2, memory=Memory(more_wanted_since=ago(600)))
    )
    assert [step.action for step in decision.steps] == ["release"]
    assert decision.desired == 1


@unhurried
@given(any_facts())
def test_a_decision_can_be_made_again_from_its_inputs(ask: Facts) -> None:
    stored = json.loads(json.dumps(scaling_policy.inputs_of(ask)))
    assert facts_from(stored) == ask
    assert scaling_policy.decide(facts_from(stored)) == scaling_policy.decide(ask)


@unhurried
@given(any_facts())
def test_silence_and_fixed_numbers_change_nothing(ask: Facts) -> None:
    silent = scaling_policy.decide(replace(ask, load=None, min_replicas=0, max_replicas=12))
    assert (silent.desired, silent.steps) == (ask.desired, ())
    fixed = scaling_policy.decide(replace(ask, min_replicas=ask.desired, max_replicas=ask.desired))
    assert fixed.desired == ask.desired


def eu_only(tokens_of_them: int, in_all: int | None = None) -> DeploymentLoad:
    """Return a load, part of which may run in one region only."""
    return DeploymentLoad(
        in_flight_requests=1,
        in_flight_tokens=tokens_of_them if in_all is None else in_all,
        regional_tokens={"eu": tokens_of_them},
    )


@pytest.mark.parametrize("desired", [0, 1])
def test_what_may_run_in_one_region_alone_gets_its_replicas_there(desired: int) -> None:
    pools = pool(1, region="us", replicas=desired), pool(2, region="eu")
    decision = scaling_policy.decide(facts(eu_only(1500), desired, *pools))
    (step,) = decision.steps
    assert (step.action, step.pool_id, step.after, decision.desired) == ("prepare", NEXT, desired + 2, desired + 2)
    assert step.reason == "requests need 2 replicas in region eu: as many are prepared in pool p2"
    assert decision.prepared == {FIRST: 0, NEXT: 2}
    there = replace(pools[1], replicas=2, prepared=2)
    again = scaling_policy.decide(facts(eu_only(1500), desired + 2, pools[0], there))
    assert (again.steps, again.prepared[NEXT]) == ((), 2)


def test_those_elsewhere_are_given_up_when_they_serve_nothing() -> None:
    pools = pool(1, region="us", replicas=1), pool(2, region="eu", replicas=2, prepared=2)
    memory = Memory(less_wanted_since=ago(300), less_wanted_peak=2)
    decision = scaling_policy.decide(facts(eu_only(1500), 3, *pools, memory=memory))
    assert (decision.desired, decision.prepared[NEXT]) == (2, 2)


def test_while_one_starts_in_a_region_no_more_are_started_there() -> None:
    pools = (
        pool(1, region="us", replicas=1),
        pool(2, region="eu", replicas=1, starting=1, prepared=1),
        pool(3, region="eu"),
    )
    decision = scaling_policy.decide(facts(eu_only(4000), 2, *pools))
    assert (decision.desired, decision.steps, decision.prepared[NEXT]) == (2, (), 1)


def test_extra_replicas_of_a_rollout_raise_nothing() -> None:
    pools = pool(1, region="us", replicas=2), pool(2, region="eu", replicas=2, prepared=1)
    decision = scaling_policy.decide(facts(eu_only(900), 2, *pools))
    assert (decision.desired, decision.steps) == (2, ())


def test_without_room_in_the_region_nothing_is_started_elsewhere_for_it() -> None:
    pools = pool(1, region="us", replicas=1), pool(2, region="eu", room=0)
    decision = scaling_policy.decide(facts(eu_only(900), 1, *pools))
    assert (decision.steps, decision.prepared) == ((), {FIRST: 0, NEXT: 0})


def test_replicas_of_a_region_are_released_when_nothing_was_bound_to_it_for_the_down_delay() -> None:
    pools = pool(1, region="us", replicas=1), pool(2, region="eu", replicas=1, prepared=1)
    decision = scaling_policy.decide(facts(tokens(500), 2, *pools))
    assert (decision.steps, decision.not_needed_since[NEXT]) == ((), NOW)
    pools = pools[0], replace(pools[1], not_needed_since=ago(300))
    (step,) = scaling_policy.decide(facts(tokens(500), 2, *pools)).steps
    assert (step.action, step.after) == ("release", 1)
