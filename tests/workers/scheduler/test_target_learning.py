"""What target load is learned from measured rates: single lessons, and machines of different speeds over time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from workers.scheduler.scaling import target_learning
from workers.scheduler.scaling.target_learning import Curve, Limits, Point

ANY = Limits()


def point(tokens: float, rate: float, ttft: float | None = None, *, windows: int = 5, at: float = 0.0) -> Point:
    return Point(tokens=tokens, rate=rate, ttft_seconds=ttft, windows=windows, at=at)


#: Rates that rise with the load up to 800 tokens in flight.
KNEE = (point(200, 100), point(400, 200), point(800, 390), point(1600, 400), point(3200, 410))


def test_the_target_is_the_lowest_load_whose_rate_is_close_to_the_highest() -> None:
    found = target_learning.lesson(KNEE, 16_384, ANY)
    assert found.tokens == 800
    assert found.reason == "390 tokens/s at 800 tokens in flight, and more load adds little: 410 tokens/s at 3,200"


def test_a_rate_that_still_rises_at_the_target_raises_it() -> None:
    rising = (point(400, 200), point(800, 400))
    found = target_learning.lesson(rising, 900, ANY)
    assert (found.tokens, "still rises" in found.reason) == (round(800 * math.sqrt(2)), True)


def test_a_load_far_below_the_target_says_nothing_about_it() -> None:
    assert target_learning.lesson((point(400, 200), point(800, 400)), 16_384, ANY).tokens is None


def test_the_objective_for_the_first_token_bounds_the_load() -> None:
    late = (point(200, 100, 0.2), point(400, 200, 0.5), point(800, 390, 2.0))
    found = target_learning.lesson(late, 16_384, Limits(ttft_seconds=1.0))
    assert (found.tokens, found.reason) == (400, "at 800 tokens in flight TTFT was 2.00 s")
    everywhere = target_learning.lesson(late[2:], 16_384, Limits(ttft_seconds=1.0))
    assert everywhere.tokens == round(800 / math.sqrt(2))
    assert target_learning.lesson(late[:2], 450, Limits(ttft_seconds=1.0)).tokens == round(400 * math.sqrt(2))


def test_no_target_is_larger_than_the_cache_that_holds_the_tokens() -> None:
    rising = (point(400, 200), point(800, 400))
    assert target_learning.lesson(rising, 900, Limits(cache_tokens=1000)).tokens == 1000


def test_few_windows_and_old_ones_do_not_count() -> None:
    few = [point(each.tokens, each.rate, windows=2) for each in KNEE]
    assert target_learning.lesson(few, 16_384, ANY).tokens is None
    later = target_learning.LASTS_SECONDS + 1
    assert target_learning.with_window(KNEE, point(300, 150, windows=1, at=later)) == (
        point(300, 150, windows=1, at=later),
    )


def test_windows_of_like_loads_are_one_point() -> None:
    curve: Curve = ()
    for tokens, rate in ((400, 200), (420, 230), (380, 170)):
        curve = target_learning.with_window(curve, point(tokens, rate, windows=1))
    (found,) = curve
    assert (round(found.tokens), round(found.rate), found.windows) == (400, 200, 3)


@pytest.mark.parametrize(
    ("present", "wanted", "after"), [(1000, 8000, 1250), (1000, 100, 800), (1000, 1090, 1000), (1000, 1150, 1150)]
)
def test_the_target_moves_in_bounded_steps(present: int, wanted: int, after: int) -> None:
    assert target_learning.moved(present, wanted) == after


@dataclass(frozen=True)
class Machine:
    """An engine whose rate rises with the load up to ``knee`` tokens in flight, where it is ``fastest``."""

    knee: float
    fastest: float

    def rate(self, tokens: float, noise: random.Random) -> float:
        return self.fastest * min(1.0, tokens / self.knee) * noise.uniform(0.93, 1.07)


def learn(machine: Machine, loads: Callable[[int, random.Random], float], *, windows: int = 2000) -> int:
    """Return the target after ``windows`` of load that scaling keeps at the target at most."""
    noise, curve, target = random.Random(7), Curve(), 16_384
    for number in range(windows):
        tokens = max(1.0, min(loads(target, noise), target * 1.3))
        measured = point(tokens, machine.rate(tokens, noise), windows=1, at=number * 20.0)
        curve = target_learning.with_window(curve, measured)
        if number % 3 == 0:  # a target moves once a minute
            wanted = target_learning.lesson(curve, target, ANY).tokens
            target = target if wanted is None else target_learning.moved(target, wanted)
    return target


def test_a_slow_and_a_fast_machine_end_with_targets_of_their_own() -> None:
    def any_load(target: int, noise: random.Random) -> float:
        return noise.uniform(0.05, 1.2) * target

    slow = learn(Machine(knee=600, fastest=40), any_load)
    fast = learn(Machine(knee=120_000, fastest=20_000), any_load)
    assert 450 < slow < 900
    assert 80_000 < fast < 180_000
