"""Months of all tenants: which are closed, closing them, and reopening one with a second person."""

from __future__ import annotations

from datetime import date

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from billing import second_person
from billing.errors import NotClosed, NotReopened
from billing.models import BillingRun
from billing.months import closing, overview, reopening
from billing.reports.statements import Month
from portal.access.principal import Principal, tenant_for
from portal.pages.base import operator_page, show
from portal.pages.operator.billing import runs
from portal.reporting import periods

#: How many months the picker offers.
MONTHS = 24


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show where a month stands, by default the last one that is over and had tenants; close or reopen it."""
    today = timezone.now().date()
    text = request.POST.get("month") or request.GET.get("month")
    month = periods.parse_month(text, timezone.now()) if text else overview.last_month(today)
    if request.method == "POST":
        return _change(request, principal, month)
    now, standings = timezone.now(), overview.read(month.year, month.month)
    context = {
        "progress": runs.of_month(BillingRun.Kind.CLOSE_MONTHS, month),
        "month": month.replace(day=1),
        "months": periods.past_months(today, MONTHS),
        "standings": standings,
        "closed": sum(each.state == "closed" for each in standings),
        "now": now,
        "may_close": any(each.state != "closed" and each.closes_at <= now for each in standings),
        "me": second_person.person(principal.actor),
    }
    return show(request, principal, "portal/months.html", context, active="months")


def _change(request: HttpRequest, principal: Principal, month: date) -> HttpResponse:
    action, slug = request.POST.get("action", ""), request.POST.get("tenant", "")
    if action == "close" and not slug:
        return runs.begin(request, principal, BillingRun.Kind.CLOSE_MONTHS, month)
    if action not in {"close", "reopen", "confirm"} or not slug:
        messages.error(request, _("Nothing was changed: choose a tenant, and what to do."))
    else:
        found = Month(tenant=tenant_for(principal, slug), year=month.year, month=month.month)
        if action == "close":
            _close(request, principal, found)
        else:
            _reopen(request, principal, found, action)
    return redirect(f"{reverse('portal:months')}?month={month:%Y-%m}")


def _close(request: HttpRequest, principal: Principal, month: Month) -> None:
    try:
        _closed, new = closing.close(principal.actor, month)
    except NotClosed as error:
        messages.error(request, str(error))
        return
    messages.success(request, _("Closed now.") if new else _("Closed already. Nothing was changed."))


def _reopen(request: HttpRequest, principal: Principal, month: Month, action: str) -> None:
    try:
        if action == "reopen":
            reopening.request(principal.actor, month, request.POST.get("reason", ""))
            messages.success(request, f"Requested. {month.name} stays closed until another operator confirms it.")
        else:
            reopening.confirm(principal.actor, month)
            messages.success(request, f"{month.name} of {month.tenant.name} is open. Close it again once it is right.")
    except NotReopened as error:
        messages.error(request, f"{error}.")
