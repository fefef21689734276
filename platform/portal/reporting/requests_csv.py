"""Requests as CSV: every one that fits, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from billing.reports import usage
from billing.reports.usage import Filters, Request
from portal.formats import money
from tenants.ids import TenantId
from tenants.rls import as_tenant

#: Rows read at a time, each page in a transaction of its own.
PAGE_ROWS = 1000
CSV_COLUMNS = (
    "id",
    "started_at",
    "finished_at",
    "project_id",
    "key_id",
    "endpoint",
    "model_name",
    "state",
    "http_status",
    "stream",
    "cache_result",
    "cache_reason",
    "route_reason",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "tokens_source",
    "avoided_prompt_tokens",
    "avoided_cached_prompt_tokens",
    "avoided_completion_tokens",
    "avoided_engine_ms",
    "source_id",
    "ttft_ms",
    "duration_ms",
    "client_request_id",
)
CSV_HEADER = (*CSV_COLUMNS, "currency", "billed", "saved_by_prediction", "saved_by_prefix")


def csv_rows(tenant_id: TenantId, filters: Filters) -> Iterator[tuple[str, ...]]:
    """Yield every request that fits, newest first, reading a thousand at a time."""
    before: UUID | None = None
    while True:
        with as_tenant(tenant_id):
            page = usage.requests(tenant_id, before_id=before, limit=PAGE_ROWS, filters=filters)
        yield from map(csv_row, page)
        if len(page) < PAGE_ROWS:
            return
        before = page[-1].id


def csv_row(found: Request) -> tuple[str, ...]:
    """Return one request as cells; money with all its twelve decimals, empty where there is none."""
    cells = [getattr(found, name) for name in CSV_COLUMNS]
    return (
        *("" if cell is None else cell.isoformat() if hasattr(cell, "isoformat") else str(cell) for cell in cells),
        found.currency,
        money.exact(found.amount_pico),
        money.exact(found.saved_prediction_pico),
        money.exact(found.saved_prefix_pico),
    )
