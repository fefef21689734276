"""Dunning: which invoice is at which step, what comes next, what holds it, and by which policy."""

from __future__ import annotations

from datetime import date
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from billing.dunning import cases, holding, holds, policy, run
from billing.errors import BadDunning, InvoiceRefused
from billing.invoices import registry
from billing.models import Issuer
from portal.access.principal import Principal, tenant_for
from portal.errors import BadQuery
from portal.formats.table_csv import most
from portal.pages.base import operator_page, show
from tenants import error_text
from tenants.errors import NotFound, TenantError
from tenants.models import Tenant

#: Invoices that the page shows; the API has all.
SHOWN = 200
#: Fields of a policy as the form names them.
LABELS = {
    "reminder_days": _("Reminder"),
    "second_reminder_days": _("Second reminder"),
    "notice_days": _("Last notice"),
    "suspension_days": _("Requests are refused"),
}


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show what is late; with POST, run, hold, grant a grace, end a hold, or set a policy."""
    if request.method == "GET":
        return _page(request, principal)
    try:
        messages.success(request, _change(request, principal))
    except (BadDunning, BadQuery, InvoiceRefused) as error:
        return _page(request, principal, problem=str(error))
    except TenantError as error:
        return _page(request, principal, problem=error_text.words(error))
    return redirect("portal:dunning")


def _change(request: HttpRequest, principal: Principal) -> str:
    """Make the change that a form asks for; return what it did."""
    form = request.POST
    match form.get("action"):
        case "run":
            done = run.run(timezone.now())
            return f"{done.steps} steps taken." + (f" {done.failures} invoices failed." if done.failures else "")
        case "hold":
            return _hold(principal, form.get("of", "").strip(), form.get("reason", ""), form.get("until", "").strip())
        case "end":
            holding.end(principal.actor, _id(form.get("hold", "")))
            return _("The hold has ended.")
        case "policy":
            return _set_policy(principal, form)
        case _:
            raise BadDunning("action", "choose what to do")


def _hold(principal: Principal, of: str, reason: str, until_text: str) -> str:
    """Hold an invoice by its number, or all of the tenant with that slug."""
    tenant, invoice = Tenant.objects.filter(slug=of).first() if "\0" not in of else None, None
    if tenant is None:
        invoice = registry.find(of)
        tenant = Tenant.objects.get(id=invoice.tenant_id)
    try:
        until = date.fromisoformat(until_text) if until_text else None
    except ValueError:
        raise BadDunning("until", f"{until_text!r} is no date; use one such as 2026-12-14") from None
    holding.hold(principal.actor, tenant, reason, invoice=invoice, until=until)
    return f"{of} is held{f' until {until}' if until else ''}."


def _set_policy(principal: Principal, form: Any) -> str:
    changes = {name: _days(name, form.get(name, "").strip()) for name in LABELS}
    slug = form.get("tenant", "").strip()
    if slug:
        policy.set_policy(principal.actor, changes, tenant=tenant_for(principal, slug))
        return f"{slug} has a policy of its own."
    policy.set_policy(principal.actor, changes, issuer=form.get("issuer") or None)
    return _("Saved. The next run follows it.")


def _days(name: str, text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise BadDunning(name, f"{text[:20]!r} is no number of days")
    return int(text) if text else None


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("hold", text[:40]) from None


def _page(request: HttpRequest, principal: Principal, *, problem: str = "") -> HttpResponse:
    now, current, typed = timezone.now(), policy.of_issuer(), request.POST
    context = {
        "cases": cases.read(now, most=most(request, "cases", SHOWN)),
        "holds": _with_slugs(most(request, "holds", SHOWN)),
        "suspended": cases.suspended(),
        "last_run": cases.last_run(),
        "issuers": list(Issuer.objects.order_by("name")),
        "fields": [
            (name, label, typed.get(name, "") if name in typed else getattr(current, name) or "")
            for name, label in LABELS.items()
        ],
        "typed": typed,
        "problem": problem,
    }
    return show(
        request, principal, "portal/dunning.html", context, active="all-billing", status=400 if problem else 200
    )


def _with_slugs(count: int) -> list[tuple[Any, str]]:
    rows = list(holds.of_all()[:count])
    slugs = dict(Tenant.objects.filter(id__in={each.tenant_id for each in rows}).values_list("id", "slug"))
    return [(each, slugs[each.tenant_id]) for each in rows]
