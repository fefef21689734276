"""The gateway's own counters are exported like prometheus_client's."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from gateway.counters import CounterVec, HistogramVec

BOUNDS = (0.005, 0.5, 1.0, 300.0)


def shown(*collectors: Collector) -> list[str]:
    """Return what is exposed, without the times at which counters began."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_counters_and_histograms_are_told_as_prometheus_tells_its_own() -> None:
    tallies, counter = (
        CounterVec("t", "Things.", ("model", "kind")),
        Counter("t", "Things.", ("model", "kind"), registry=None),
    )
    spreads = HistogramVec("d", "Durations.", ("model",), bounds=BOUNDS)
    histogram = Histogram("d", "Durations.", ("model",), buckets=BOUNDS, registry=None)
    for kind, amount in (("prompt", 3), ("prompt", 2**40), ("completion", 1)):
        tallies.labels("m", kind).inc(amount)
        counter.labels("m", kind).inc(amount)
    for seconds in (0.0, 0.005, 0.0051, 0.5, 299.0, 300.5):  # a bucket includes its bound
        spreads.labels("m").observe(seconds)
        histogram.labels("m").observe(seconds)
    assert shown(tallies, spreads) == shown(counter, histogram)
