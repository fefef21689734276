"""What two routing policies did with the requests that were split between them, with 95 % confidence intervals.

Made from usage rows, so a report can be repeated. Intervals are bootstrapped over groups of conversations: requests of
one conversation depend on each other, so as single draws they would promise too much.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import exp, log
from random import Random
from typing import NamedTuple

from billing.models import UsageRecord
from catalogue.routing_policy import Comparison
from tenants.ids import first_id_at

RESAMPLES = 1000
#: A resample draws batches of groups, at most this many, so that memory and time do not grow with the requests. With
#: fewer groups than LEAST_GROUPS there is no interval, because it would be too narrow.
BATCHES = 200
LEAST_GROUPS = 20
#: Times are counted in steps of 1 %.
STEP = log(1.01)
#: The shares of resamples below and above the interval.
TAIL = 0.025
#: The longest that a request may have waited before it got its arm.
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
    """An estimate; ``low`` and ``high`` bound it with 95 % confidence, None with fewer than LEAST_GROUPS."""

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
    samples = {"A": _Sample(), "B": _Sample()}
    failed = {"A": 0, "B": 0}
    for split, state, *values in rows.iterator(chunk_size=5000):
        _, arm, group = split.split("-")
        if state == UsageRecord.State.COMPLETE:
            samples[arm].add(Request(int(group), *values))
        else:
            failed[arm] += 1
    for arm, sample in samples.items():
        sample.finish(Random(f"{comparison.name}-{arm}"))
    a, b = samples["A"], samples["B"]
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

    def __init__(self) -> None:
        self.count = 0
        self.values: dict[str, float | None] = dict.fromkeys(METRICS)
        self.resampled: dict[str, list[float]] = {name: [] for name in METRICS}
        self._groups: set[int] = set()
        #: For each batch the sums of what ratios are made of, and how many streams began in which step of time.
        self._sums: dict[int, _Sums] = defaultdict(_Sums)
        self._steps: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._all_rated = True

    @property
    def groups(self) -> int:
        """Return how many groups of conversations there were."""
        return len(self._groups)

    def add(self, request: Request) -> None:
        """Count a request."""
        batch = request.group % BATCHES
        self.count += 1
        self._groups.add(request.group)
        self._sums[batch].add(request)
        self._all_rated = self._all_rated and request.amount_pico is not None
        if request.ttft_ms is not None:
            step = int(log(max(request.ttft_ms, 1e-3)) // STEP)
            self._steps[batch][step] += 1

    def finish(self, chance: Random) -> None:
        """Compute the metrics, and those of resamples if there are enough groups."""
        batches = sorted(self._sums)
        self.values = self._metrics(dict.fromkeys(batches, 1))
        if self.groups < LEAST_GROUPS:
            return
        for _ in range(RESAMPLES):
            for name, value in self._metrics(Counter(chance.choices(batches, k=len(batches)))).items():
                if value is not None:
                    self.resampled[name].append(value)

    def _metrics(self, weights: Mapping[int, int]) -> dict[str, float | None]:
        """Return each metric with every batch counted as often as its weight says."""
        total = _Sums()
        for batch, weight in weights.items():
            total.add_sums(self._sums[batch], weight)
        return {
            "hit_rate": _ratio(total.cached, total.cached + total.computed),
            **self._percentiles(weights),
            "output_tokens_per_second": _ratio(total.completion, total.seconds),
            "computed_prompt_tokens": _ratio(total.computed, total.requests),
            "amount_pico": _ratio(total.amount, total.requests) if self._all_rated else None,
        }

    def _percentiles(self, weights: Mapping[int, int]) -> dict[str, float | None]:
        counts: dict[int, int] = defaultdict(int)
        for batch, weight in weights.items():
            for step, number in self._steps[batch].items():
                counts[step] += weight * number
        found: dict[str, float | None] = dict.fromkeys(PERCENTILES)
        wanted, before = list(PERCENTILES.items()), 0
        whole = sum(counts.values())
        for step in sorted(counts):
            # Within a step times count as spread evenly: a fixed value would make intervals without width.
            while wanted and before + counts[step] >= wanted[0][1] * whole:
                name, share = wanted.pop(0)
                found[name] = exp(STEP * (step + (share * whole - before) / counts[step]))
            before += counts[step]
        return found


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
        """Count the requests of another ``weight`` times."""
        if weight:
            self.requests += weight * other.requests
            self.computed += weight * other.computed
            self.cached += weight * other.cached
            self.completion += weight * other.completion
            self.seconds += weight * other.seconds
            self.amount += weight * other.amount


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
