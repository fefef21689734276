"""Prometheus metrics of the usage log's writers, of the drain and of dunning. No label names a tenant."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

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

DUNNING_STEPS = Counter(
    "hearth_dunning_steps", "Reminders, notices and suspensions of invoices that are not paid in time.", registry=None
)
DUNNING_FAILURES = Counter(
    "hearth_dunning_failures", "Invoices that dunning could not look at; the next run tries them again.", registry=None
)
DUNNING_SUSPENDED = Gauge(
    "hearth_payment_suspended_tenants",
    "Tenants whose requests are refused because invoices are not paid, as dunning's last run here found it.",
    registry=None,
)

#: Metrics of a process that writes usage, and of the drain.
WRITER = (APPENDED_BYTES, APPEND_ERRORS)
DRAIN = (DRAINED_RECORDS, REFUSED_RECORDS, BUDGET_RECOUNTS)
#: Of the worker that runs dunning.
DUNNING = (DUNNING_STEPS, DUNNING_FAILURES, DUNNING_SUSPENDED)
