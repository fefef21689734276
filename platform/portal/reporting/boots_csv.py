"""Engine processes and the results of their comparisons, as CSV."""

from __future__ import annotations

from collections.abc import Iterator

from portal.formats.csv_export import cell
from reconciliation import report
from reconciliation.report import Boot

#: Processes that one query reads.
ROWS_AT_ONCE = 500
_NAMES = (
    *("id", "replica_id", "generation", "model", "state", "end", "started_at", "ended_at", "counted_at"),
    *("counted_tokens", "used_tokens", "cut_requests", "cut_tokens", "unattributed_tokens", "allowed_tokens"),
    *("lost_tokens", "gap_tokens", "note"),
)
_PURPOSES = ("tenant", "canary", "retry", "prewarm")
CSV_HEADER = (*_NAMES, *(f"{name}_tokens" for name in _PURPOSES), "candidates")


def csv_rows(state: str | None = None) -> Iterator[tuple[str, ...]]:
    """Yield a row for each process, the newest first: those in a state, or all."""
    before = None
    while found := report.page(state=state, before=before, limit=ROWS_AT_ONCE):
        yield from map(_row, found)
        before = found[-1].id


def _row(boot: Boot) -> tuple[str, ...]:
    values = (str(getattr(boot, name)) if name == "id" else cell(getattr(boot, name)) for name in _NAMES)
    purposes = (str(boot.by_purpose.get(name, 0)) for name in _PURPOSES)
    return (*values, *purposes, " ".join(boot.candidates))
