"""Counters and histograms for what every request counts: an addition each, put into Prometheus's form when asked.

prometheus_client's own take a lock and five calls each time, and a request counts a dozen times. These are counted on
one thread, a process's event loop; any thread may ask.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Tally:
    """One number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Count so many more."""
        self.value += amount


class Tallies(Collector):
    """A counter: a tally for each combination of labels."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        """``name`` is without ``_total``."""
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labels)
        self._tallies: dict[tuple[str, ...], Tally] = {}

    def of(self, *labels: str) -> Tally:
        """Return the tally of these labels."""
        found = self._tallies.get(labels)
        if found is None:
            assert len(labels) == len(self._labelnames), self._name
            found = self._tallies[labels] = Tally()
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, tally in list(self._tallies.items()):
            family.add_metric(labels, tally.value)
        yield family


class Spread:
    """How measurements spread over buckets; ``bounds`` are those a bucket includes, ascending."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one measurement."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def told(self) -> tuple[list[tuple[str, float]], float]:
        """Return how many are within each bound, the last of which is infinite, and their sum."""
        counts, within = list(self._counts), 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
            within += count
            buckets.append((bound, within))
        return buckets, self._sum


class Spreads(Collector):
    """A histogram: a spread for each combination of labels."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labels)
        self._bounds = bounds
        self._spreads: dict[tuple[str, ...], Spread] = {}

    def of(self, *labels: str) -> Spread:
        """Return the spread of these labels."""
        found = self._spreads.get(labels)
        if found is None:
            assert len(labels) == len(self._labelnames), self._name
            found = self._spreads[labels] = Spread(self._bounds)
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, spread in list(self._spreads.items()):
            buckets, total = spread.told()
            family.add_metric(labels, buckets, total)
        yield family
