"""Whether engines, usage, the ledger and closed months agree: the last comparison, and every engine process."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_GET

from billing.stripe import comparison
from portal.access.principal import Principal
from portal.errors import BadQuery
from portal.formats import csv_export
from portal.pages.base import operator_page, show, with_query
from portal.reporting.boots_csv import CSV_HEADER, csv_rows
from reconciliation import report
from reconciliation.models import BootResult

PAGE_ROWS = 50
STATES = tuple(BootResult.State.values)
#: The symbol of each result.
SHAPES = {
    "equal": "ok",
    "bounded": "ok",
    "lost": "warn",
    "gap": "bad",
    "running": "busy",
    "settling": "busy",
    "partial": "off",
}


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the last comparison, the sums that differ, and engine processes, the newest first."""
    state = _state(request)
    found = report.page(state=state, before=_before(request), limit=PAGE_ROWS + 1)
    context = {
        "report": report.read(),
        "stripe": comparison.findings(),
        "boots": [(boot, SHAPES[boot.state]) for boot in found[:PAGE_ROWS]],
        "older": with_query(request, after=str(found[PAGE_ROWS - 1].id)) if len(found) > PAGE_ROWS else None,
        "state": state or "",
        "states": STATES,
    }
    return show(request, principal, "portal/reconciliation.html", context, active="reconciliation")


@require_GET
@operator_page
def as_csv(request: HttpRequest, principal: Principal) -> StreamingHttpResponse:
    """Download every engine process, or those in a state."""
    return csv_export.attachment(request, "engine-boots", CSV_HEADER, csv_rows(_state(request)))


def _state(request: HttpRequest) -> str | None:
    """Read the state from the query. Raises BadQuery."""
    state = request.GET.get("state") or None
    if state is not None and state not in STATES:
        raise BadQuery("state", state, f"one of {', '.join(STATES)}")
    return state


def _before(request: HttpRequest) -> UUID | None:
    after = request.GET.get("after")
    try:
        return UUID(after) if after else None
    except ValueError:
        raise BadQuery("after", after or "", "the link 'Older' of the previous page") from None
