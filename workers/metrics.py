"""The fleet's metrics for Prometheus. No label names a tenant.

The control worker exports the whole fleet as the database has it; an agent exports what it did itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    # This module is imported before Django is set up; the fleet's counts need its models.
    from workers.fleet_counts import FleetCounts, StartHistogram

#: Seconds; a promoted zygote on a CPU takes 3 s, a large model on a GPU minutes.
_LONG = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_SHORT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

RECONCILE_SECONDS = Histogram(
    "hearth_reconcile_tick_seconds", "Duration of a tick of the reconciler.", buckets=_SHORT, registry=None
)
LEASE_EXPIRATIONS = Counter(
    "hearth_lease_expirations", "Replicas marked lost because their node's lease expired.", registry=None
)
STALE_FENCE_REJECTS = Counter(
    "hearth_stale_fence_rejects",
    "Writes of an agent that changed nothing, because its epoch or the row's fence was stale.",
    registry=None,
)
EVICT_SECONDS = Histogram(
    "hearth_placeholder_evict_seconds",
    "From when an agent first sees an evicted placeholder until all its processes have ended.",
    buckets=_SHORT,
    registry=None,
)
DRAIN_SECONDS = Histogram(
    "hearth_replica_drain_seconds",
    "From the start of a replica's drain until all its processes have ended.",
    buckets=_LONG,
    registry=None,
)

#: Metrics of an agent, and of the control worker.
AGENT = (STALE_FENCE_REJECTS, EVICT_SECONDS, DRAIN_SECONDS)
CONTROL = (RECONCILE_SECONDS, LEASE_EXPIRATIONS)


class Ticks:
    """When the reconciler last ran a tick in this process."""

    def __init__(self) -> None:
        self._at: float | None = None

    def count(self, seconds: float, *, lost: int) -> None:
        """Record a tick that took ``seconds`` and marked ``lost`` replicas lost."""
        self._at = time.monotonic()
        RECONCILE_SECONDS.observe(seconds)
        LEASE_EXPIRATIONS.inc(lost)

    def age_seconds(self) -> float | None:
        """Return the time since the last tick; None before the first."""
        return None if self._at is None else time.monotonic() - self._at


TICKS = Ticks()


class AgeGauge(Collector):
    """The time since something last happened in this process; absent before the first time."""

    def __init__(self, name: str, text: str, age_seconds: Callable[[], float | None]) -> None:
        self._name = name
        self._text = text
        self._age_seconds = age_seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the age."""
        age = self._age_seconds()
        if age is not None:
            yield GaugeMetricFamily(self._name, self._text, age)


@dataclass(slots=True)
class AgentCounters:
    """What one agent did since its process started. Only the agent's thread writes it; any thread may read it."""

    adopted: int = 0
    orphans_killed: int = 0
    placeholders_evicted: int = 0
    promoted: int = 0
    promotions_failed: int = 0
    slots_quarantined: int = 0
    weights_bytes: int = 0
    weights_failed: int = 0


class AgentCollector(Collector):
    """Counters of the agents of this process."""

    def __init__(self, counts: Callable[[], Sequence[AgentCounters]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the counters, summed over the agents."""
        done = self._counts()
        adopted, killed = sum(each.adopted for each in done), sum(each.orphans_killed for each in done)
        adoptions = CounterMetricFamily(
            "hearth_adoptions", "Processes that an agent found when it took over its node.", labels=("outcome",)
        )
        adoptions.add_metric(("adopted",), adopted)
        yield adoptions
        promoted, failed = sum(each.promoted for each in done), sum(each.promotions_failed for each in done)
        promotions = CounterMetricFamily(
            "hearth_promotions", "Attempts to promote a placeholder to a replica.", labels=("outcome",)
        )
        promotions.add_metric(("promoted",), promoted)
        promotions.add_metric(("failed",), failed)
        yield promotions
        yield CounterMetricFamily(
            "hearth_orphans_killed", "Processes killed because no database row names them.", killed
        )
        yield CounterMetricFamily(
            "hearth_slots_quarantined", "Slots taken out of use.", sum(each.slots_quarantined for each in done)
        )
        yield CounterMetricFamily(
            "hearth_weights_fetched_bytes",
            "Bytes of models that came onto the node's disk.",
            sum(each.weights_bytes for each in done),
        )
        yield CounterMetricFamily(
            "hearth_weights_failures",
            "Attempts to fetch a model's files that failed.",
            sum(each.weights_failed for each in done),
        )


class FleetCollector(Collector):
    """The fleet as the database has it. ``read`` returns None while the database is unavailable."""

    def __init__(self, read: Callable[[], FleetCounts | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges and the histogram of starts; nothing while the database is unavailable."""
        counts = self._read()
        if counts is None:
            return
        yield _gauge("hearth_replicas", "Replicas by state.", ("deployment", "state"), counts.replicas)
        yield _gauge("hearth_desired_replicas", "Replicas wanted.", ("deployment",), counts.desired)
        yield _gauge(
            "hearth_target_tokens",
            "Tokens in flight that one replica should have; origin: set, learned or default.",
            ("deployment", "pool", "origin"),
            counts.targets,
        )
        yield _gauge("hearth_slots", "Slots by holder.", ("pool", "state"), counts.slots)
        yield _gauge("hearth_placeholders", "Placeholders.", ("pool", "level", "state"), counts.placeholders)
        yield _gauge(
            "hearth_node_certificate_life_seconds",
            "Time until the certificate of a live node expires.",
            ("node",),
            counts.certificates,
        )
        yield _gauge(
            "hearth_staged_resident_bytes",
            "Bytes of models' files that are in the page cache of a node.",
            ("node", "model"),
            counts.staged_resident,
        )
        yield _gauge("hearth_staged_bytes", "Bytes of these files in all.", ("node", "model"), counts.staged_total)
        for name, text, column in _COSTS:
            today: dict[tuple[str, ...], float] = {
                (each.pool,): float(getattr(each, column)) for each in counts.placeholder_costs
            }
            yield _gauge(f"hearth_placeholder_{name}_today", f"{text}, on this day of UTC until now.", ("pool",), today)
        starts = HistogramMetricFamily(
            "hearth_promotion_seconds",
            "From the decision to start a replica to its first token, by the level it started from: cold, h0 or h2.",
            labels=("level", "pool", "model"),
        )
        for start in counts.starts:
            _add_starts(starts, (), start, counts.start_bounds)
        yield starts
        parts = HistogramMetricFamily(
            "hearth_start_part_seconds",
            "Parts of the starts that have them: fetch, load, compile, warm_up.",
            labels=("part", "level", "pool", "model"),
        )
        for part, found in counts.start_parts.items():
            for start in found:
                _add_starts(parts, (part,), start, counts.start_bounds)
        yield parts


#: Name, help and value of what placeholders cost and saved.
_COSTS = (
    ("slot_hours", "Hours of slots that placeholders held", "slot_hours"),
    ("waited_hours", "Those of them in which a replica waited for a slot", "waited_hours"),
    ("memory_gib_hours", "Host memory of placeholders times hours, GiB", "memory_gib_hours"),
    ("saved_seconds", "How much sooner promoted replicas served than cold starts", "saved_seconds"),
)


def _add_starts(
    family: HistogramMetricFamily, labels: tuple[str, ...], start: StartHistogram, bounds: Sequence[float]
) -> None:
    buckets = [(str(bound), float(count)) for bound, count in zip(bounds, start.counts, strict=True)]
    family.add_metric(
        (*labels, start.level, start.pool, start.model),
        [*buckets, ("+Inf", float(start.count))],
        sum_value=start.seconds,
    )


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
