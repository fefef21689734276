"""The number of replicas over time: bursts, ramps and whole days, simulated."""

from __future__ import annotations

import math
from itertools import pairwise
from uuid import UUID

import pytest

from tests.workers.scheduler.scaling_simulation import Moment, SimulatedFleet, SimulatedPool, tokens
from workers.serving.gateway_load import DeploymentLoad

FIRST, NEXT = UUID(int=1), UUID(int=2)
IDLE = DeploymentLoad()


def one_pool(slots: int = 12, start_seconds: float = 10.0) -> tuple[SimulatedPool, ...]:
    return (SimulatedPool(id=FIRST, slots=slots, start_seconds=start_seconds),)


def two_pools(start_seconds: float) -> tuple[SimulatedPool, ...]:
    return (
        SimulatedPool(id=FIRST, slots=10, start_seconds=start_seconds),
        SimulatedPool(id=NEXT, slots=10, start_seconds=start_seconds),
    )


def actions(moments: list[Moment]) -> list[str]:
    return [step.action for moment in moments for step in moment.steps]


def turns(moments: list[Moment]) -> int:
    """Count how often the desired number changes direction."""
    changes = [after.desired - before.desired for before, after in pairwise(moments)]
    ways = [change > 0 for change in changes if change]
    return sum(before != after for before, after in pairwise(ways))


def test_a_burst_from_zero_is_one_wake_and_never_more_than_it_asks_for() -> None:
    fleet = SimulatedFleet(pools=one_pool(), minimum=0, maximum=10, desired=0)

    def load(now: float, ready: int) -> DeploymentLoad:
        if now < 4:
            return IDLE
        return tokens(2500) if ready else tokens(0, held=2500) if now < 40 else IDLE

    moments = fleet.run(load, 38)
    assert actions(moments) == ["wake"]
    assert {moment.desired for moment in moments} == {0, 3}


def test_the_queue_of_a_first_start_is_no_reason_for_more() -> None:
    """Knative issue 4344: requests that wait for the first replica look like a high concurrency."""
    fleet = SimulatedFleet(pools=one_pool(start_seconds=30), minimum=0, maximum=10, desired=0)
    moments = fleet.run(lambda now, ready: tokens(500) if ready else tokens(0, held=500 + int(now) * 300), 120)
    assert actions(moments) == ["wake"]
    assert moments[-1].desired == 1


def test_a_ramp_is_followed_without_overshoot_and_given_back_once() -> None:
    fleet = SimulatedFleet(pools=one_pool(), minimum=1, maximum=12, desired=1)

    def load(now: float, ready: int) -> DeploymentLoad:
        return tokens(min(8000, int(now) * 20) if now < 1000 else 400)

    moments = fleet.run(load, 2000)
    assert max(moment.desired for moment in moments) == 8
    assert moments[-1].desired == 1
    assert turns(moments) == 1
    for moment in moments:
        assert moment.load is not None
        assert moment.desired <= math.ceil(8000 / 1000)


def test_a_load_around_a_boundary_does_not_make_the_fleet_swing() -> None:
    fleet = SimulatedFleet(pools=one_pool(), minimum=1, maximum=12, desired=1, up_delay_seconds=0.0)
    moments = fleet.run(lambda now, ready: tokens(900 if int(now) % 4 else 1100), 3600)
    assert actions(moments) == ["up"]


def test_days_go_up_once_and_down_once_each() -> None:
    fleet = SimulatedFleet(pools=one_pool(), minimum=1, maximum=12, desired=1, tick_seconds=20.0)
    day = 86_400

    def load(now: float, ready: int) -> DeploymentLoad:
        return tokens(int(4000 - 3500 * math.cos(2 * math.pi * now / day)))

    moments = fleet.run(load, 2 * day)
    assert turns(moments) == 3
    late = [moment for moment in moments if moment.seconds > 60]
    assert all(moment.load and moment.desired * 1000 >= moment.load.in_flight_tokens - 100 for moment in late)


def test_silent_gateways_freeze_the_fleet_in_simulated_time_too() -> None:
    fleet = SimulatedFleet(pools=one_pool(), minimum=0, maximum=12, desired=4)
    moments = fleet.run(lambda now, ready: None if now < 1000 else IDLE, 1400)
    ((gone, down),) = [(moment.seconds, moment.desired) for moment in moments if moment.steps]
    assert (gone, down) == (1300, 0)


@pytest.mark.parametrize(("percent_per_second", "start_seconds"), [(10, 1.5), (5, 4.0), (1, 26.0), (0.2, 120.0)])
def test_the_next_pool_serves_before_the_first_is_full(percent_per_second: float, start_seconds: float) -> None:
    fleet = SimulatedFleet(
        pools=two_pools(start_seconds), minimum=1, maximum=20, desired=1, up_delay_seconds=0.0, tick_seconds=1.0
    )
    full = 100 / percent_per_second
    moments = fleet.run(lambda now, ready: tokens(int(now * percent_per_second * 100)), full)
    ready = next(moment.seconds for moment in moments if moment.ready[NEXT])
    assert full - ready > 0
    assert moments[-1].there[NEXT] == 1


@pytest.mark.parametrize(("percent_per_second", "start_seconds"), [(10, 1.5), (5, 4.0), (1, 20.0), (0.2, 120.0)])
def test_nothing_is_prepared_for_a_ramp_that_stops_at_sixty_percent(
    percent_per_second: float, start_seconds: float
) -> None:
    fleet = SimulatedFleet(
        pools=two_pools(start_seconds), minimum=1, maximum=20, desired=1, up_delay_seconds=0.0, tick_seconds=1.0
    )
    moments = fleet.run(lambda now, ready: tokens(int(min(60, now * percent_per_second) * 100)), 900)
    assert "prepare" not in actions(moments)
    assert all(moment.there[NEXT] == 0 for moment in moments)


def test_what_was_prepared_goes_when_the_load_went_and_the_fleet_shrinks_to_its_minimum() -> None:
    fleet = SimulatedFleet(pools=two_pools(2.0), minimum=1, maximum=20, desired=1)

    def load(now: float, ready: int) -> DeploymentLoad:
        return tokens(min(7500, int(now) * 100) if now < 600 else 300)

    moments = fleet.run(load, 1600)
    assert (actions(moments).count("prepare"), actions(moments).count("release")) == (1, 1)
    assert (moments[-1].desired, moments[-1].there) == (1, {FIRST: 1, NEXT: 0})


def test_the_example_of_the_documentation_is_what_happens() -> None:
    pools = (
        SimulatedPool(id=FIRST, slots=4, start_seconds=2.0),
        SimulatedPool(id=NEXT, slots=8, start_seconds=2.0),
    )
    fleet = SimulatedFleet(pools=pools, minimum=1, maximum=8, desired=1, tick_seconds=1.0)
    loads = {0: 600, 10: 2431, 40: 2800, 60: 4500, 100: 1700}
    moments = fleet.run(lambda now, ready: tokens(loads[max(since for since in loads if since <= now)]), 720)
    decided = [(moment.seconds, step.action, step.before, step.after) for moment in moments for step in moment.steps]
    assert decided == [
        (15, "up", 1, 3),
        (40, "prepare", 3, 4),
        (65, "up", 4, 5),
        (400, "release", 5, 4),
        (400, "down", 4, 3),
        (701, "down", 3, 2),
    ]
    there = {moment.seconds: (moment.there[FIRST], moment.there[NEXT]) for moment in moments}
    assert [there[at] for at in (39, 41, 66, 401, 702)] == [(3, 0), (3, 1), (4, 1), (3, 0), (2, 0)]
