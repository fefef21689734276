"""How well two sets of times can be distinguished, checked against manual calculations and published tables."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.isolation_audit.auc import chance_of, kolmogorov, largest_distance, placements, separate

TIMES = st.lists(st.integers(0, 20).map(float), min_size=2, max_size=12)


def test_times_that_overlap_have_the_area_and_variance_worked_out_by_hand() -> None:
    found = separate([1, 2, 3], [2, 3, 4])
    # Shares of fresh times above each cached one: 1, 5/6, 1/2; of cached below each fresh one: 1/2, 5/6, 1.
    assert found.pooled.auc == pytest.approx(7 / 9)
    # Sums per pair 3/2, 5/3, 3/2 around 14/9: (1/18² + 1/9² + 1/18²) / (3 · 2) = (1/18)².
    assert (found.pooled.lower, found.pooled.upper) == pytest.approx((7 / 9 - 2.5758293 / 18, 7 / 9 + 2.5758293 / 18))


def test_pairs_that_are_slow_together_are_no_evidence_of_difference() -> None:
    """The times of each pair are equal, so the pooled variance is zero however much the pairs differ."""
    found = separate([1, 50, 900], [1, 50, 900]).pooled
    assert (found.auc, found.lower, found.upper, found.bound) == (0.5, 0.5, 0.5, 0.5)


def test_a_difference_that_drift_hides_from_the_pooled_times_shows_within_the_pairs() -> None:
    """Every fresh prompt takes 2 longer than its cached one, while the machine gets slower by 1 with each pair."""
    count = 1_000
    found = separate([float(moment) for moment in range(count)], [moment + 2.0 for moment in range(count)])
    assert found.pooled.auc == pytest.approx(0.5, abs=0.003)
    assert (found.paired.auc, found.paired.bound) == (1.0, 1.0)


def test_the_share_within_pairs_has_the_interval_worked_out_by_hand() -> None:
    """Shares 1, 1/2, 0, 1: mean 5/8, squares around it 11/16, over 4 · 3."""
    found = separate([1, 2, 3, 4], [2, 2, 1, 9]).paired
    reach = 2.5758293 * math.sqrt(11 / 16 / 12)
    assert found.auc == 5 / 8
    assert (found.lower, found.upper) == pytest.approx((5 / 8 - reach, 1.0))


@pytest.mark.parametrize(("cached", "fresh", "auc"), [([1, 2], [8, 9], 1.0), ([8, 9], [1, 2], 0.0)])
def test_times_told_apart_without_fail_reach_one_whichever_is_faster(
    cached: list[float], fresh: list[float], auc: float
) -> None:
    separated = separate(cached, fresh)
    for found in (separated.pooled, separated.paired):
        assert (found.auc, found.reached, found.bound, found.excludes_chance) == (auc, 1.0, 1.0, True)


@given(cached=TIMES, data=st.data())
@settings(max_examples=50)
def test_reading_the_times_the_other_way_round_gains_nothing(cached: list[float], data: st.DataObject) -> None:
    fresh = data.draw(st.lists(st.integers(0, 20).map(float), min_size=len(cached), max_size=len(cached)))
    there, back = separate(cached, fresh), separate(fresh, cached)
    for one, other in ((there.pooled, back.pooled), (there.paired, back.paired)):
        assert one.auc == pytest.approx(1 - other.auc)
        assert one.bound == pytest.approx(other.bound)
        assert 0.5 <= one.reached <= one.bound + 1e-12


@given(these=TIMES, among=TIMES)
@settings(max_examples=50)
def test_placements_are_the_shares_counted_one_by_one(these: list[float], among: list[float]) -> None:
    counted = [sum((other < value) + (other == value) / 2 for other in among) / len(among) for value in these]
    assert placements(these, among) == pytest.approx(counted)


def test_ten_thousand_pairs_of_one_distribution_are_bounded_as_the_formula_says() -> None:
    """Without ties the variance of the area is (m + n + 1) / 12mn under one distribution."""
    chance = random.Random(7)
    count = 10_000
    found = separate([chance.gauss(3, 1) for _ in range(count)], [chance.gauss(3, 1) for _ in range(count)]).pooled
    expected = 2.5758293 * math.sqrt((2 * count + 1) / (12 * count * count))
    assert (found.upper - found.lower) / 2 == pytest.approx(expected, rel=0.03)
    assert found.bound <= 0.52
    assert not found.excludes_chance


def test_sets_that_are_no_pairs_are_refused() -> None:
    for cached, fresh in (([1.0], [1.0]), ([1.0, 2.0], [1.0])):
        with pytest.raises(ValueError, match="not two or more pairs"):
            separate(cached, fresh)


@pytest.mark.parametrize(("value", "chance"), [(0.1, 1.0), (1.2239, 0.10), (1.3581, 0.05), (1.6276, 0.01)])
def test_kolmogorovs_statistic_has_the_chances_of_the_tables(value: float, chance: float) -> None:
    assert kolmogorov(value) == pytest.approx(chance, abs=5e-5)


def test_the_largest_distance_is_that_of_the_steps() -> None:
    assert largest_distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert largest_distance([1, 1, 2], [1, 1, 2]) == 0.0
    assert chance_of(0.0, 50, 50) == 1.0
