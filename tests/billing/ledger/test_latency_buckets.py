"""Percentiles from histograms are the exact ones to within 4.9 %, and histograms add up."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.ledger import latency_buckets
from billing.ledger.latency_buckets import BUCKETS, Percentiles

#: The square root of the ratio of a bucket's edges.
WORST = 1.1**0.5 + 1e-9
times = st.lists(st.floats(min_value=0.1, max_value=1e6), min_size=1, max_size=60)


def exact(values: list[float], percent: int) -> float:
    """Return the time of the request with this rank."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


@given(ttft=times, tpot=times)
def test_a_percentile_is_near_the_exact_one(ttft: list[float], tpot: list[float]) -> None:
    histogram = latency_buckets.of_times([*ttft, None], [None, *tpot])
    found = latency_buckets.latency(histogram)
    for percentiles, values in ((found.ttft, ttft), (found.tpot, tpot)):
        assert percentiles.requests == len(values)
        for percent, estimate in ((50, percentiles.p50_ms), (95, percentiles.p95_ms), (99, percentiles.p99_ms)):
            assert estimate is not None
            assert 1 / WORST <= estimate / exact(values, percent) <= WORST


@given(first=times, second=times)
def test_two_histograms_together_are_that_of_all(first: list[float], second: list[float]) -> None:
    both = latency_buckets.of_times([*first, *second], [*second, *first])
    assert both == Counter(latency_buckets.of_times(first, second)) + Counter(latency_buckets.of_times(second, first))


@pytest.mark.parametrize("ms", [0.0, -1.0, 1e-9, 0.1, 1e300, float("inf"), float("nan")])
def test_any_time_is_in_a_bucket(ms: float) -> None:
    [(number, count)] = latency_buckets.of_times([ms], []).items()
    assert 0 <= number < BUCKETS
    assert count == 1


def test_without_requests_there_are_no_percentiles() -> None:
    found = latency_buckets.latency({})
    assert found.ttft == found.tpot == Percentiles(requests=0, p50_ms=None, p95_ms=None, p99_ms=None)
