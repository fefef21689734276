"""Fast counters and histograms for what every request counts: one addition each, exported to Prometheus on demand.

Those of prometheus_client take a lock and five calls per count, and a request counts a dozen times. These are counted
on one thread, the process's event loop; any thread may collect them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Add an amount."""
        self.value += amount


class CounterVec(Collector):
    """A counter for each combination of label values."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        """``name`` is without ``_total``."""
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labels)
        self._children: dict[tuple[str, ...], Counter] = {}

    def labels(self, *labels: str) -> Counter:
        """Return the counter of these label values."""
        found = self._children.get(labels)
        if found is None:
            assert len(labels) == len(self._labelnames), self._name
            found = self._children[labels] = Counter()
        return found

    def keep(self, label: str, values: Collection[str]) -> None:
        """Forget the counters whose label has another value."""
        position = self._labelnames.index(label)
        self._children = {labels: each for labels, each in self._children.items() if labels[position] in values}

    def collect(self) -> Iterator[Metric]:
        """Yield the metric family."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, counter in list(self._children.items()):
            family.add_metric(labels, counter.value)
        yield family


class Histogram:
    """Counts of values by bucket. ``bounds``: the inclusive upper bounds of the buckets, ascending."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """Return the number of values up to each bound, the last of which is infinite, and the sum of all."""
        counts, within = list(self._counts), 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], counts, strict=True):
            within += count
            buckets.append((bound, within))
        return buckets, self._sum


class HistogramVec(Collector):
    """A histogram for each combination of label values."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._labelnames = tuple(labels)
        self._bounds = bounds
        self._children: dict[tuple[str, ...], Histogram] = {}

    def labels(self, *labels: str) -> Histogram:
        """Return the histogram of these label values."""
        found = self._children.get(labels)
        if found is None:
            assert len(labels) == len(self._labelnames), self._name
            found = self._children[labels] = Histogram(self._bounds)
        return found

    def keep(self, label: str, values: Collection[str]) -> None:
        """Forget the histograms whose label has another value."""
        position = self._labelnames.index(label)
        self._children = {labels: each for labels, each in self._children.items() if labels[position] in values}

    def collect(self) -> Iterator[Metric]:
        """Yield the metric family."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, histogram in list(self._children.items()):
            buckets, total = histogram.cumulative()
            family.add_metric(labels, buckets, total)
        yield family
