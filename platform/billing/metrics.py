"""What the writers of the usage log and its drain count, for Prometheus. No label names a tenant."""

from __future__ import annotations

from prometheus_client import Counter

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
