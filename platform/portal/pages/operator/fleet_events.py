"""The events of the fleet, and the logs of its engines. For operators."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_noop
from django.views.decorators.http import require_GET

from portal.access.principal import Principal
from portal.errors import BadQuery
from portal.fleet import fleet_events
from portal.formats import query_params
from portal.formats.table_csv import most
from portal.pages.base import operator_page, period_of, show, with_query
from portal.pages.usage import presets
from tenants import errors as tenants
from workers.engines import engine_log
from workers.fleet.status import engine_logs
from workers.fleet.status.fleet_events import KINDS, EventFilters
from workers.models import Replica

PAGE_ROWS = 100
#: The filters that are typed: parameter and placeholder.
TEXT_FILTERS = (
    ("node", gettext_noop("any node")),
    ("pool", gettext_noop("any pool")),
    ("deployment", gettext_noop("any deployment")),
    ("replica", gettext_noop("any replica")),
)
LINES = (100, engine_logs.LINES, engine_logs.MOST_LINES)


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List what happened in the fleet, newest first."""
    period, kind = period_of(request), query_params.text(request.GET, "kind")
    if kind is not None and kind not in KINDS:
        raise BadQuery("kind", kind, f"one of {', '.join(KINDS)}")
    names = {name: query_params.text(request.GET, name) for name, _ in TEXT_FILTERS}
    filters = EventFilters(start=period.start, end=period.end, kind=kind, **names)
    after = _id(request, "after")
    count = most(request, "events", PAGE_ROWS)
    found = fleet_events.newest(filters, after=after, most=count + 1)
    shown = found[:count]
    context = {
        "events": shown,
        "older": with_query(request, after=str(shown[-1].id)) if len(found) > count else None,
        "newest": with_query(request, after=None) if after else None,
        "period": period,
        "periods": presets(request, period),
        "chosen": request.GET,
        "kinds": KINDS,
        "texts": [(name, placeholder, names[name] or "") for name, placeholder in TEXT_FILTERS],
        "filtered": kind is not None or any(names.values()),
    }
    return show(request, principal, "portal/fleet_events.html", context, active="fleet")


@require_GET
@operator_page
def log(request: HttpRequest, principal: Principal, replica: UUID) -> HttpResponse:
    """Show the end of the log of a replica's engines: as it is now, or as it was when one of them failed."""
    row = Replica.objects.select_related("deployment", "node").filter(id=replica).first()
    if row is None:
        raise tenants.NotFound("replica", str(replica))
    event, lines = _id(request, "event"), _lines(request)
    found = engine_logs.read(row) if event is None else engine_logs.stored(row, event)
    if found is None:
        raise tenants.NotFound("log", str(event))
    context = {
        "replica": row,
        "log": found,
        "text": engine_log.last_lines(found.text, lines),
        "lines": lines,
        "choices": [(number, with_query(request, lines=str(number))) for number in LINES],
        "failures": engine_logs.failures(row),
    }
    return show(request, principal, "portal/engine_log.html", context, active="fleet")


def _lines(request: HttpRequest) -> int:
    text = request.GET.get("lines") or str(engine_logs.LINES)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:5]) <= engine_logs.MOST_LINES):
        raise BadQuery("lines", text, f"a whole number from 1 to {engine_logs.MOST_LINES}")
    return int(text)


def _id(request: HttpRequest, name: str) -> UUID | None:
    text = request.GET.get(name)
    try:
        return UUID(text) if text else None
    except ValueError:
        raise BadQuery(name, text or "", "an id") from None
