"""What the role ``background`` does for every tenant or line: beginning it, how far it is, and stopping it."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from billing import tasks
from billing.models import BillingRun
from billing.runs import registry
from billing.runs.registry import Progress
from portal.access.principal import Principal
from portal.access.rights import operator_rights
from portal.pages.base import operator_page

#: Tenants or lines for which nothing was done that a page names; the API has more.
MOST_PROBLEMS = 200
#: So long pages show a run after its end: later it says what has changed since. The API has it longer.
SHOWN = timedelta(days=1)
#: The page of each kind.
_PAGES: Final = {
    BillingRun.Kind.CLOSE_MONTHS: "portal:months",
    BillingRun.Kind.MAKE_INVOICES: "portal:invoices",
    BillingRun.Kind.MATCH_PAYMENTS: "portal:payments",
}


def begin(request: HttpRequest, principal: Principal, kind: str, month: date) -> HttpResponse:
    """Begin a run, and lead to the page that shows how far it is. Raises NotFound for an issuer that is missing."""
    with transaction.atomic():
        run, new = registry.begin(principal.actor, kind, month)
        transaction.on_commit(tasks.send_advance_runs)
    if new:
        messages.success(request, _("Begun. This page shows how far it is; you may leave it."))
    else:
        messages.success(request, _("This runs already."))
    return redirect(_address(run))


def of_month(kind: str, month: date | None = None) -> Progress | None:
    """Return how far the last run of a month, or of none, is; None for one that ended more than SHOWN ago."""
    run = registry.latest(kind, month)
    if run is None or (run.finished_at is not None and run.finished_at < timezone.now() - SHOWN):
        return None
    return registry.progress(run, MOST_PROBLEMS)


@require_http_methods(["GET", "POST"])
@operator_page
def detail(request: HttpRequest, principal: Principal, run: UUID) -> HttpResponse:
    """Return how far a run is, for the page that shows it, which it does not reload; with POST, stop it."""
    found = registry.find(run)
    if request.method == "POST":
        registry.stop(principal.actor, found.id)
        messages.success(request, _("Stopped. What is done stays."))
        return redirect(_address(found))
    context = {
        "progress": registry.progress(found, MOST_PROBLEMS),
        "is_read_only": not operator_rights.may_change(principal, request.path),
        "changed": _address(found) if found.finished_at is not None else "",
    }
    return render(request, "portal/parts/billing_run.html", context)


def _address(run: BillingRun) -> str:
    page = reverse(_PAGES[BillingRun.Kind(run.kind)])
    return f"{page}?month={run.month}" if run.month else page
