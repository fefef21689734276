"""Costs: what engines cost in a month, margins, the journal and the FOCUS export, codes of the general ledger."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Literal

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET, require_http_methods

from billing.chargeback import costs, focus, gl_codes, journal
from billing.chargeback.costs import Costs
from billing.chargeback.journal import Journal
from billing.errors import GlCodeMissing, UsageDeleted
from portal.access.principal import Principal
from portal.formats import csv_export, query_params
from portal.pages.base import operator_page, show
from portal.pages.operator.billing.months import MONTHS
from portal.reporting import periods
from portal.reporting.billing import engine_costs
from tenants import error_text
from tenants.errors import BadName, NotFound


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the journal of a month, by default the last one that is over; set and remove codes."""
    month = _month(request)
    if request.method == "POST":
        return _change(request, principal, month)
    found: Journal | None = None
    problem = ""
    try:
        found = journal.read(month.year, month.month)
    except GlCodeMissing as error:
        problem = str(error)
    engines: Costs | None = None
    gone = ""
    shows_engines = "engines" in request.GET  # it reads every request of the month
    if shows_engines:
        try:
            engines = engine_costs.read(month.year, month.month)
        except UsageDeleted as error:
            gone = str(error)
    context = {
        "engines": engines,
        "shows_engines": shows_engines,
        "gone": gone,
        "month": month,
        "months": periods.past_months(timezone.now().date(), MONTHS),
        "journal": found,
        "problem": problem,
        "codes": gl_codes.rows(),
        "classes": gl_codes.CLASSES,
    }
    return show(request, principal, "portal/costs.html", context, active="months")


@require_GET
@operator_page
def journal_csv(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Download the journal of a month."""
    month = _month(request)
    try:
        header, *rows = journal.csv_rows(journal.read(month.year, month.month))
    except GlCodeMissing as error:
        messages.error(request, f"There is no journal yet: {error}.")
        return redirect(f"{reverse('portal:costs')}?month={month:%Y-%m}")
    return csv_export.attachment(request, f"journal-{month:%Y-%m}", header, rows)


@require_GET
@operator_page
def engines_csv(request: HttpRequest, principal: Principal, what: Literal["costs", "margin"]) -> HttpResponseBase:
    """Download what engines cost in a month, or the margins."""
    month = _month(request)
    try:
        found = engine_costs.read(month.year, month.month)
    except UsageDeleted as error:
        messages.error(request, f"There is nothing to download: {error}.")
        return redirect(f"{reverse('portal:costs')}?month={month:%Y-%m}")
    header, *rows = costs.costs_csv(found) if what == "costs" else costs.margin_csv(found)
    return csv_export.attachment(request, f"{what}-{month:%Y-%m}", header, rows)


@require_GET
@operator_page
def focus_csv(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Download a month as a FOCUS dataset."""
    month = _month(request)
    header, *rows = focus.csv_rows(focus.read(month.year, month.month))
    return csv_export.attachment(request, f"focus-{month:%Y-%m}", header, rows)


def _change(request: HttpRequest, principal: Principal, month: date) -> HttpResponse:
    action, code = request.POST.get("action", ""), query_params.posted(request, "code")
    key = {
        "line_class": query_params.posted(request, "line_class"),
        "model_name": query_params.posted(request, "model"),
    }
    try:
        if action == "remove":
            gl_codes.remove(principal.actor, **key)
            messages.success(request, _("Removed."))
        else:
            gl_codes.set_code(principal.actor, code, **key)
            messages.success(request, f"Set to {code}.")
    except (BadName, NotFound) as error:
        messages.error(request, f"Nothing was changed: {error_text.words(error)}")
    return redirect(f"{reverse('portal:costs')}?month={month:%Y-%m}")


def _month(request: HttpRequest) -> date:
    today = timezone.now().date()
    text = request.POST.get("month") or request.GET.get("month")
    found = periods.parse_month(text, timezone.now()) if text else today.replace(day=1) - timedelta(days=1)
    return found.replace(day=1)
