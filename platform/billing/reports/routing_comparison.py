"""What two routing policies did with the requests that were split between them, with 95 % confidence intervals.

Made from usage rows, so a report can be repeated. Intervals are bootstrapped over groups of conversations: requests of
one conversation depend on each other, so as single draws they would promise too much.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from billing.models import UsageRecord
from catalogue.routing_policy import Comparison
from tenants.ids import first_id_at

RESAMPLES = 1000
#: The shares of resamples below and above the interval.
TAIL = 0.025
#: A request may have waited so long before it got its arm.
LONGEST_WAIT = timedelta(hours=1)
PERCENTILES = {"ttft_p50_ms": 0.5, "ttft_p90_ms": 0.9, "ttft_p99_ms": 0.99}
#: Cached share of prompt tokens; time to the first token of streams; output tokens per second of a request's duration;
#: prompt tokens computed, and charge, per complete request.
METRICS = ("hit_rate", *PERCENTILES, "output_tokens_per_second", "computed_prompt_tokens", "amount_pico")


class Request(NamedTuple):
    """One complete request, as far as the report needs it. ``group``: of conversations."""

    group: int
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    ttft_ms: float | None
    duration_ms: float
    amount_pico: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate; ``low`` and ``high`` bound it with 95 % confidence, None with too few conversations."""

    value: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """Return whether zero is outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


#: None where nothing was measured, such as the TTFT without a stream.
Metrics = Mapping[str, Interval | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport:
    """One policy's part. ``failed``: requests that did not complete, of which nothing else is counted."""

    policy: str
    requests: int
    failed: int
    groups: int
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Both parts, and how much more ``b`` has of each metric than ``a``."""

    model: str
    began: datetime
    until: datetime
    share: float
    a: ArmReport
    b: ArmReport
    difference: Metrics


def of(model: str, comparison: Comparison) -> Report:
    """Return the report of a comparison from the rows that are stored by now."""
    began, until = (datetime.fromtimestamp(each, tz=UTC) for each in (comparison.began, comparison.until))
    rows = UsageRecord.objects.filter(
        id__gte=first_id_at(began - LONGEST_WAIT),
        id__lt=first_id_at(until + timedelta(minutes=1)),
        model_name=model,
        routing_split__startswith=f"{comparison.name}-",
    ).values_list("routing_split", "state", *Request._fields[1:])
    requests: dict[str, list[Request]] = {"A": [], "B": []}
    failed = {"A": 0, "B": 0}
    for split, state, *values in rows.iterator(chunk_size=5000):
        _, arm, group = split.split("-")
        if state == UsageRecord.State.COMPLETE:
            requests[arm].append(Request(int(group), *values))
        else:
            failed[arm] += 1
    a, b = (_Sample(requests[arm], seed=f"{comparison.name}-{arm}") for arm in ("A", "B"))
    return Report(
        model=model,
        began=began,
        until=until,
        share=comparison.share,
        a=_arm(a, str(comparison.policy), failed["A"]),
        b=_arm(b, str(comparison.against), failed["B"]),
        difference={name: _difference(a, b, name) for name in METRICS},
    )


def _arm(sample: _Sample, policy: str, failed: int) -> ArmReport:
    metrics = {name: _interval(sample.values[name], sample.resampled[name]) for name in METRICS}
    return ArmReport(policy=policy, requests=sample.count, failed=failed, groups=sample.groups, metrics=metrics)


def _difference(a: _Sample, b: _Sample, name: str) -> Interval | None:
    one, other = a.values[name], b.values[name]
    if one is None or other is None:
        return None
    pairs = zip(a.resampled[name], b.resampled[name], strict=False)
    return _interval(other - one, [y - x for x, y in pairs])


def _interval(value: float | None, resampled: Sequence[float]) -> Interval | None:
    if value is None:
        return None
    if not resampled:
        return Interval(value=value, low=None, high=None)
    ordered = sorted(resampled)
    edge = int(TAIL * len(ordered))
    return Interval(value=value, low=ordered[edge], high=ordered[-1 - edge])


class _Sample:
    """The complete requests of one arm, their metrics, and those of resamples."""

    def __init__(self, requests: Sequence[Request], *, seed: str) -> None:
        self.count = len(requests)
        numbers = {group: number for number, group in enumerate(sorted({each.group for each in requests}))}
        self.groups = len(numbers)
        #: For each group the sums of what ratios are made of.
        self._sums = [_Sums() for _ in numbers]
        for each in requests:
            self._sums[numbers[each.group]].add(each)
        timed = sorted((each.ttft_ms, numbers[each.group]) for each in requests if each.ttft_ms is not None)
        self._ttfts = [ttft for ttft, _ in timed]
        self._groups_of_ttfts = [group for _, group in timed]
        self._all_rated = all(each.amount_pico is not None for each in requests)
        self.values = self._metrics([1] * self.groups)
        self.resampled: dict[str, list[float]] = {name: [] for name in METRICS}
        if self.groups > 1:
            self._resample(random.Random(seed))

    def _resample(self, chance: random.Random) -> None:
        for _ in range(RESAMPLES):
            weights = [0] * self.groups
            for group in chance.choices(range(self.groups), k=self.groups):
                weights[group] += 1
            for name, value in self._metrics(weights).items():
                if value is not None:
                    self.resampled[name].append(value)

    def _metrics(self, weights: Sequence[int]) -> dict[str, float | None]:
        """Return each metric with every group counted so many times."""
        total = _Sums()
        for sums, weight in zip(self._sums, weights, strict=True):
            total.add_sums(sums, weight)
        return {
            "hit_rate": _ratio(total.cached, total.cached + total.computed),
            **self._percentiles(weights),
            "output_tokens_per_second": _ratio(total.completion, total.seconds),
            "computed_prompt_tokens": _ratio(total.computed, total.requests),
            "amount_pico": _ratio(total.amount, total.requests) if self._all_rated else None,
        }

    def _percentiles(self, weights: Sequence[int]) -> dict[str, float | None]:
        counts = list(accumulate(map(weights.__getitem__, self._groups_of_ttfts)))
        if not counts or not counts[-1]:
            return dict.fromkeys(PERCENTILES)
        return {name: self._ttfts[bisect_left(counts, share * counts[-1])] for name, share in PERCENTILES.items()}


class _Sums:
    """Sums over requests."""

    __slots__ = ("amount", "cached", "completion", "computed", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = self.computed = self.cached = self.completion = self.amount = 0
        self.seconds = 0.0

    def add(self, request: Request) -> None:
        """Count a request."""
        self.requests += 1
        self.computed += request.prompt_tokens
        self.cached += request.cached_prompt_tokens
        self.completion += request.completion_tokens
        self.seconds += request.duration_ms / 1000
        self.amount += request.amount_pico or 0

    def add_sums(self, other: _Sums, weight: int) -> None:
        """Count those of another so many times."""
        if weight:
            self.requests += weight * other.requests
            self.computed += weight * other.computed
            self.cached += weight * other.cached
            self.completion += weight * other.completion
            self.seconds += weight * other.seconds
            self.amount += weight * other.amount


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
