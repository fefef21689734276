"""Histograms of TTFT and TPOT: buckets whose edges are fixed, so that histograms of any periods and keys add up.

A bucket's upper edge is 1.1 times its lower one. A percentile is read as the geometric middle of its bucket, so it is
at most 4.9 % above or below a time that was measured. Times outside of 0.1 ms to 17 million ms are in the first or the
last bucket. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

RATIO = 1.1
FIRST_MS = 0.1
#: Buckets of one kind of time. TPOT's numbers follow those of TTFT.
BUCKETS = 200
#: Lower edges of all buckets but the first.
_EDGES = tuple(FIRST_MS * math.pow(RATIO, number) for number in range(1, BUCKETS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of a time over ``requests``, in milliseconds; None without requests."""

    requests: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles of the time to the first token, and of the time per token after it."""

    ttft: Percentiles
    tpot: Percentiles


def of_times(ttft_ms: Iterable[float | None], tpot_ms: Iterable[float | None]) -> dict[int, int]:
    """Return the histogram of requests with these times, in milliseconds; None: the request has no such time."""
    numbers = [bisect_right(_EDGES, ms) for ms in ttft_ms if ms is not None]
    numbers += [BUCKETS + bisect_right(_EDGES, ms) for ms in tpot_ms if ms is not None]
    found: dict[int, int] = {}
    for number in numbers:
        found[number] = found.get(number, 0) + 1
    return found


def latency(histogram: Mapping[int, int]) -> Latency:
    """Return the percentiles of a histogram."""
    return Latency(ttft=_percentiles(histogram, 0), tpot=_percentiles(histogram, BUCKETS))


def _percentiles(histogram: Mapping[int, int], first: int) -> Percentiles:
    counts = sorted((number - first, count) for number, count in histogram.items() if first <= number < first + BUCKETS)
    total = sum(count for _, count in counts)
    if not total:
        return Percentiles()
    p50, p95, p99 = (_quantile(counts, math.ceil(total * percent / 100)) for percent in (50, 95, 99))
    return Percentiles(requests=total, p50_ms=p50, p95_ms=p95, p99_ms=p99)


def _quantile(counts: list[tuple[int, int]], rank: int) -> float:
    """Return the time of the request with this rank, counted from 1."""
    seen = 0
    for number, count in counts:
        seen += count
        if seen >= rank:
            return FIRST_MS * math.pow(RATIO, number + 0.5)
    raise ValueError(f"there is no request {rank} of {seen}")
