"""Prometheus gauges of the drain's lag and of the disk space that the usage log takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from billing.drain.lag import WalBacklog
from billing.wal.disk_usage import DiskUsage


class LagCollector(Collector):
    """Measures at each scrape."""

    def __init__(self, backlog: Callable[[], WalBacklog], disk_usage: Callable[[], DiskUsage]) -> None:
        self._backlog = backlog
        self._disk_usage = disk_usage

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        backlog, disk = self._backlog(), self._disk_usage()
        yield GaugeMetricFamily("hearth_wal_backlog_bytes", "Usage written and not yet in the database.", backlog.bytes)
        yield GaugeMetricFamily(
            "hearth_wal_lag_seconds",
            "Age of the oldest usage that is not yet in the database.",
            backlog.records_lag_seconds,
        )
        yield GaugeMetricFamily("hearth_wal_segments", "Files of the usage log on this host.", backlog.segments)
        yield GaugeMetricFamily("hearth_wal_disk_bytes", "Size of the usage log's files.", disk.bytes)
        yield GaugeMetricFamily("hearth_wal_max_bytes", "Size at which new requests are refused.", disk.max_bytes)
