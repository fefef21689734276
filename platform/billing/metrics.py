"""What the writers of the usage log and its drain count, for Prometheus. No label names a tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    # The log is written without Django, the backlog is measured with it.
    from billing.drain.lag import WalBacklog
    from billing.wal.disk_usage import DiskUsage

APPENDED_BYTES = Counter("hearth_wal_appended_bytes", "Usage written to the log by this process.", registry=None)
APPEND_ERRORS = Counter(
    "hearth_wal_append_errors", "Usage that could not be written; its request was not served.", registry=None
)
DRAINED_RECORDS = Counter(
    "hearth_wal_drained_records", "Usage rows brought from the log into the database.", registry=None
)
REFUSED_RECORDS = Counter(
    "hearth_wal_refused_records", "Usage rows that the database refuses, kept in refused.jsonl.", registry=None
)

BUDGET_RECOUNTS = Counter(
    "hearth_budget_recounts",
    "Times a tenant's budget counters were set anew: new, changed, lost, or not equal to what is stored.",
    registry=None,
)

#: What a process that writes usage shows, and what the drain does.
WRITER = (APPENDED_BYTES, APPEND_ERRORS)
DRAIN = (DRAINED_RECORDS, REFUSED_RECORDS, BUDGET_RECOUNTS)


class Backlog(Collector):
    """How far a drain is behind, and how much of the disk the log takes."""

    def __init__(self, measure: Callable[[], WalBacklog], occupancy: Callable[[], DiskUsage]) -> None:
        self._measure = measure
        self._occupancy = occupancy

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        found, taken = self._measure(), self._occupancy()
        yield GaugeMetricFamily("hearth_wal_backlog_bytes", "Usage written and not yet in the database.", found.bytes)
        yield GaugeMetricFamily(
            "hearth_wal_lag_seconds",
            "Age of the oldest usage that is not yet in the database.",
            found.records_lag_seconds,
        )
        yield GaugeMetricFamily("hearth_wal_segments", "Files of the usage log on this host.", found.segments)
        yield GaugeMetricFamily("hearth_wal_disk_bytes", "What these files take.", taken.bytes)
        yield GaugeMetricFamily(
            "hearth_wal_max_bytes", "What they may take; then nothing new is served.", taken.max_bytes
        )
