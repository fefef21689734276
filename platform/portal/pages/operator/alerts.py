"""What needs an operator, and what was resolved."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.http import require_GET

from alerting import open_alerts
from alerting.kinds import KINDS
from portal.access.principal import Principal
from portal.formats.table_csv import most
from portal.pages.base import operator_page, show

MAX_ROWS = 100


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the open alerts with what to do, then those that were resolved, then what is watched."""
    context = {
        "open": open_alerts.newest(is_open=True, most=most(request, "open-alerts", MAX_ROWS)),
        "resolved": open_alerts.newest(is_open=False, most=most(request, "resolved-alerts", MAX_ROWS)),
        "kinds": KINDS,
    }
    return show(request, principal, "portal/alerts.html", context, active="alerts")
