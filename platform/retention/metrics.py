"""Prometheus counters of what was retired. The control worker exports them."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

RETIRED_ROWS = Counter("hearth_retired_rows", "Rows deleted because of their age, by kind.", ("kind",), registry=None)
FAILURES = Counter("hearth_retention_failures", "Attempts that ended with an error, by kind.", ("kind",), registry=None)
HELD_MONTHS = Gauge(
    "hearth_retention_held_months",
    "Months of requests past their retention that this process could not retire at its last attempt.",
    registry=None,
)
CONTROL = (RETIRED_ROWS, FAILURES, HELD_MONTHS)
