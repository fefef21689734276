"""Prometheus counters of the usage log's writers and of the drain. No label names a tenant."""

from __future__ import annotations

from prometheus_client import Counter

APPENDED_BYTES = Counter("hearth_wal_appended_bytes", "Usage written to the log by this process.", registry=None)
APPEND_ERRORS = Counter(
    "hearth_wal_append_errors", "Usage that could not be written; its request was not served.", registry=None
)
DRAINED_RECORDS = Counter(
    "hearth_wal_drained_records", "Usage rows stored in the database from the log.", registry=None
)
REFUSED_RECORDS = Counter(
    "hearth_wal_refused_records", "Usage rows that the database rejected, kept in refused.jsonl.", registry=None
)

BUDGET_RECOUNTS = Counter(
    "hearth_budget_recounts",
    "Times a tenant's budget counters were recomputed: new, changed, lost, or not equal to the stored charges.",
    registry=None,
)

#: Metrics of a process that writes usage, and of the drain.
WRITER = (APPENDED_BYTES, APPEND_ERRORS)
DRAIN = (DRAINED_RECORDS, REFUSED_RECORDS, BUDGET_RECOUNTS)
