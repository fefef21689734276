"""A report compares what usage rows say of both policies, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from billing.ledger.usage_rows import UsageRow
from billing.reports import routing_comparison
from billing.reports.routing_comparison import METRICS, RESAMPLES, Interval, Report, Request
from catalogue.routing_policy import DEFAULT, Comparison, RoutingPolicy
from tenants.ids import TenantId, new_id
from tests.billing.usage_records import row_at, store

pytestmark = pytest.mark.django_db

TENANT = TenantId(new_id())
BEGAN = datetime(2026, 11, 2, 12, tzinfo=UTC)
COMPARISON = Comparison(
    name="c0ffee11",
    policy=DEFAULT,
    against=RoutingPolicy(name="least-loaded"),
    share=0.5,
    began=BEGAN.timestamp(),
    until=BEGAN.timestamp() + 600,
)


def answered(seconds: float, arm: str, group: int, *, name: str = COMPARISON.name, **changes: Any) -> UsageRow:
    """Return a row of a request in an arm: 1,000 prompt tokens, 750 of them cached, 100 tokens written in 2 s."""
    found = row_at(BEGAN + timedelta(seconds=seconds), TENANT, tokens=(250, 750, 100))
    values = {"ttft_ms": 300.0, "duration_ms": 2000.0, "routing_split": f"{name}-{arm}-{group}"}
    return msgspec.structs.replace(found, **{**values, **changes})


def report(rows: Iterable[UsageRow]) -> Report:
    """Store the rows, and return the report."""
    store(*rows)
    return routing_comparison.of("demo", COMPARISON)


def test_equal_requests_have_no_spread_and_others_are_not_counted() -> None:
    found = report(
        [
            *(answered(number, "A", number) for number in range(20)),
            *(answered(number, "B", number, cached_prompt_tokens=250, ttft_ms=500.0) for number in range(20, 50)),
            answered(51, "A", 1, state="engine_error", ttft_ms=9000.0),
            answered(52, "A", 1, name="c0ffee12", ttft_ms=9000.0),
            answered(53, "A", 1, model_name="other", ttft_ms=9000.0),
            answered(54, "A", 1, routing_split="", ttft_ms=9000.0),
            answered(800, "A", 1, ttft_ms=9000.0),
        ]
    )
    assert (found.a.policy, found.b.policy) == ("expected-seconds", "least-loaded")
    assert (found.a.requests, found.a.failed, found.a.groups) == (20, 1, 20)
    assert (found.b.requests, found.b.failed, found.b.groups) == (30, 0, 30)
    exact = {
        "hit_rate": (0.75, 0.5),
        "output_tokens_per_second": (50.0, 50.0),
        "computed_prompt_tokens": (250.0, 250.0),
    }
    for name in routing_comparison.PERCENTILES:
        one, other = found.a.metrics[name], found.b.metrics[name]
        assert one and other
        assert one.value == pytest.approx(300, rel=0.01)
        assert other.value == pytest.approx(500, rel=0.01)
    for name, (a, b) in exact.items():
        assert found.a.metrics[name] == Interval(value=a, low=a, high=a), name
        assert found.b.metrics[name] == Interval(value=b, low=b, high=b), name
        assert found.difference[name] == Interval(value=b - a, low=b - a, high=b - a), name
    assert {name for name, each in found.difference.items() if each and each.excludes_zero} == {
        "hit_rate", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms",
    }  # fmt: skip
    assert found.a.metrics["amount_pico"] is None  # no price
    assert routing_comparison.of("demo", COMPARISON) == found


def test_an_interval_is_as_wide_as_conversations_differ() -> None:
    chance = Random(1)
    times = [chance.expovariate(1 / 300) for _ in range(400)]
    single = report(answered(number, "A", number, ttft_ms=each) for number, each in enumerate(times)).a
    p50 = single.metrics["ttft_p50_ms"]
    assert p50 is not None and p50.low is not None and p50.high is not None
    assert p50.value == pytest.approx(sorted(times)[199], rel=0.01)
    # a median of 400 exponential draws has a standard deviation of 300 / sqrt(400)
    assert p50.high - p50.low == pytest.approx(2 * 1.96 * 15, rel=0.35)
    assert p50.low < p50.value < p50.high


def test_requests_of_one_conversation_are_no_single_draws() -> None:
    chance = Random(2)
    speeds = [chance.uniform(100, 900) for _ in range(20)]
    rows = [answered(number, "A", number % 20, ttft_ms=speeds[number % 20]) for number in range(400)]
    rows += [answered(number, "B", number, ttft_ms=speeds[number % 20]) for number in range(400, 590)]
    found = report(rows)
    few, many = found.a.metrics["ttft_p50_ms"], found.b.metrics["ttft_p50_ms"]
    assert few and many and few.low and few.high and many.low and many.high
    assert few.high - few.low > 1.5 * (many.high - many.low)


def test_few_groups_have_no_interval_because_it_would_be_too_narrow() -> None:
    few = routing_comparison.LEAST_GROUPS - 1
    found = report([answered(number, arm, number % few, ttft_ms=number + 1) for number in range(100) for arm in "AB"])
    assert {(each.low, each.high) for each in found.a.metrics.values() if each} == {(None, None)}
    assert not any(each.excludes_zero for each in found.difference.values() if each)


def test_a_percentile_is_within_a_step_of_the_sorted_times() -> None:
    chance = Random(3)
    times = [chance.lognormvariate(5, 1) for _ in range(2000)]
    found = report(answered(number / 10, "A", number, ttft_ms=each) for number, each in enumerate(times)).a
    for name, share in routing_comparison.PERCENTILES.items():
        each = found.metrics[name]
        assert each is not None
        assert each.value == pytest.approx(sorted(times)[int(share * 2000) - 1], rel=0.01)


def test_equal_policies_with_close_times_do_not_differ() -> None:
    """Times within a few steps of 1 % must not make an interval without width."""
    chance = Random(4)
    samples = [routing_comparison._Sample() for _ in "AB"]
    for sample in samples:
        for number in range(8000):
            ttft = chance.lognormvariate(5, 0.05)
            sample.add(Request(number, 100, 50, 10, ttft, 1000.0, None))
        sample.finish(chance)
    a, b = samples
    for name in routing_comparison.PERCENTILES:
        difference = routing_comparison._difference(a, b, name)
        assert difference is not None and difference.low is not None and difference.high is not None
        assert difference.low < 0 < difference.high, name


def test_what_is_missing_is_left_out() -> None:
    empty = report([])
    assert (empty.a.requests, set(empty.a.metrics.values()), set(empty.difference.values())) == (0, {None}, {None})
    found = report([answered(1, "A", 1, ttft_ms=None), answered(2, "A", 1, ttft_ms=None)])
    assert found.a.metrics["ttft_p50_ms"] is None
    assert found.a.metrics["hit_rate"] == Interval(value=0.75, low=None, high=None)
    assert set(found.difference) == set(METRICS) and RESAMPLES == 1000
