"""Requests as CSV: all that match the filters, in pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from billing.ledger.usage_rows import SHOWN_COLUMNS
from billing.reports import usage
from billing.reports.usage import Filters
from portal.formats import money
from tenants import cost_centres
from tenants.database.rls import as_tenant
from tenants.ids import TenantId

#: Rows of one page; each page is read in its own transaction.
PAGE_ROWS = 1000
_FIRST = ("id", "started_at", "finished_at")
CSV_COLUMNS = (*_FIRST, *(each.name for each in SHOWN_COLUMNS if each.shown.in_csv and each.name not in _FIRST))
CSV_HEADER = (*CSV_COLUMNS, "currency", "billed", "saved_by_prediction", "saved_by_prefix", "cost_centre")
_READ = (*CSV_COLUMNS, "currency", "amount_pico", "saved_prediction_pico", "saved_prefix_pico")
_ID, _PROJECT = (_READ.index(name) for name in ("id", "project_id"))


def csv_rows(tenant_id: TenantId, filters: Filters) -> Iterator[tuple[str, ...]]:
    """Yield every matching request, newest first, in pages of PAGE_ROWS."""
    before: UUID | None = None
    while True:
        with as_tenant(tenant_id):
            page = usage.values(tenant_id, _READ, before_id=before, limit=PAGE_ROWS, filters=filters)
            centres = cost_centres.of_projects({row[_PROJECT] for row in page})
        for row in page:
            yield _cells(row, centres.get(row[_PROJECT], ""))
        if len(page) < PAGE_ROWS:
            return
        before = page[-1][_ID]


def _cells(row: tuple[Any, ...], cost_centre: str) -> tuple[str, ...]:
    """Return one request as cells; money with twelve decimals, empty where there is none."""
    *shown, currency, billed, by_prediction, by_prefix = row
    return (
        *(cell if type(cell) is str else _text(cell) for cell in shown),
        currency,
        money.exact(billed),
        money.exact(by_prediction),
        money.exact(by_prefix),
        cost_centre,
    )


def _text(cell: object) -> str:
    if cell is None:
        return ""
    if isinstance(cell, dict):
        return json.dumps(cell, ensure_ascii=False, sort_keys=True) if cell else ""
    return cell.isoformat() if isinstance(cell, datetime) else str(cell)
