"""Invoices of all tenants: making those of a month, a draft of one, and those that another system issued."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_noop
from django.views.decorators.http import require_GET, require_http_methods

from billing.accounts import account
from billing.errors import InvoiceRefused, MixedCurrencies, StripeRefused
from billing.invoices import drafting, finalizing, issuers, mirroring, registry, states
from billing.invoices.documents import render
from billing.models import BillingMonth, BillingRun, Invoice, Issuer
from billing.months import overview
from billing.months.overview import Standing
from billing.reports.statements import Month
from billing.stripe import pushing
from portal.access.principal import Principal, tenant_for
from portal.formats.invoice_download import POLICY
from portal.formats.table_csv import most
from portal.forms.billing.mirror import MirrorForm
from portal.pages.base import operator_page, show
from portal.pages.operator.billing import runs
from portal.reporting import periods
from portal.reporting.billing import invoice_list
from tenants.errors import NotFound
from tenants.models import Tenant

#: How many months the picker offers.
MONTHS = 24
#: The open invoices of all months, or all of them, instead of one month's; and how many the page shows.
OPEN, ALL, MOST_OPEN = "open", "all", 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tenant's month with its invoice, if it has one."""

    standing: Standing
    row: invoice_list.Row | None

    @property
    def is_missing(self) -> bool:
        """Return whether the month is closed and has no invoice that counts."""
        return self.standing.state == "closed" and (self.row is None or self.row.state == "void")


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the invoices of a month, by default the last one that is over, or of all months; make those of a month."""
    today = timezone.now().date()
    text = request.POST.get("month") or request.GET.get("month")
    if text in {OPEN, ALL}:
        return _of_all_months(request, principal, today, is_open=text == OPEN)
    month = periods.parse_month(text, timezone.now()) if text else _last_month(today)
    form = MirrorForm(request.POST if request.POST.get("action") == "mirror" else None)
    if request.method == "POST" and not form.is_bound:
        return _finalize(request, principal, month)
    if form.is_valid() and (done := _mirrored(request, principal, month, form)) is not None:
        return done
    found = registry.with_paid(Invoice.objects.filter(year=month.year, month=month.month).order_by("id"))
    of_tenant = {each.tenant_id: invoice_list.row(each) for each in found}  # the last one of each
    entries = [Entry(standing=each, row=of_tenant.get(each.id)) for each in overview.read(month.year, month.month)]
    missing = [each.standing.id for each in entries if each.is_missing]
    context: dict[str, Any] = {
        "form": form,
        "progress": runs.of_month(BillingRun.Kind.MAKE_INVOICES, month),
        "month": month.replace(day=1),
        "months": sorted({*periods.past_months(today, MONTHS), month.replace(day=1)}, reverse=True),
        "open_count": _unpaid().count(),
        "entries": entries,
        "has_issuer": Issuer.objects.filter(is_default=True).exists(),
        "missing": len(missing),
        "without_country": account.without_country(missing),
    }
    status = 400 if form.errors else 200
    return show(request, principal, "portal/invoices.html", context, active="invoices", status=status)


def _last_month(today: date) -> date:
    """Return the last month that is over; if it has neither an invoice nor a closing, the last one with an invoice."""
    over = overview.last_month(today)
    is_begun = BillingMonth.objects.filter(year=over.year, month=over.month, reopened_at=None).exists()
    if is_begun or (newest := Invoice.objects.order_by("-year", "-month").only("year", "month").first()) is None:
        return over
    return date(newest.year, newest.month, 1)


def _of_all_months(request: HttpRequest, principal: Principal, today: date, *, is_open: bool) -> HttpResponse:
    """Show the open invoices of all months, those that are due first at the top; or all invoices, the newest first."""
    found = registry.with_paid(_unpaid().order_by("due_on", "id") if is_open else Invoice.objects.order_by("-id"))
    slugs = dict(Tenant.objects.values_list("id", "slug"))
    context: dict[str, Any] = {
        "is_open": is_open,
        "is_all": not is_open,
        "months": periods.past_months(today, MONTHS),
        "count": found.count(),
        "rows": [
            (slugs[each.tenant_id], invoice_list.row(each, today))
            for each in found[: most(request, "open-invoices", MOST_OPEN)]
        ],
        "has_issuer": Issuer.objects.filter(is_default=True).exists(),
        "form": MirrorForm(),
        "most": MOST_OPEN,
    }
    return show(request, principal, "portal/invoices.html", context, active="invoices")


def _unpaid() -> QuerySet[Invoice]:
    return Invoice.objects.filter(state__in=states.UNPAID)


@require_GET
@operator_page
def draft(request: HttpRequest, principal: Principal, slug: str, month: str) -> HttpResponseBase:
    """Show what the invoice of a month would say now."""
    tenant = tenant_for(principal, slug)
    first = periods.parse_month(month, timezone.now())
    try:
        content = drafting.draft(
            Month(tenant=tenant, year=first.year, month=first.month), issuers.find(), timezone.now()
        )
    except NotFound:
        messages.error(request, gettext_noop("There is no issuer yet: set your legal entity first."))
        return redirect("portal:issuers")
    except MixedCurrencies as error:
        messages.error(request, f"No draft: the requests were {error}, which cannot be added.")
        return redirect("portal:tenant-invoices", slug=slug)
    response = HttpResponse(render.draft_document(content, render.Kind.HTML), content_type="text/html; charset=utf-8")
    response["Content-Security-Policy"] = POLICY
    return response


def _finalize(request: HttpRequest, principal: Principal, month: date) -> HttpResponse:
    """Make the invoice of one tenant; of all, have the role background make them."""
    slug = request.POST.get("tenant", "")
    try:
        if not slug:
            return runs.begin(request, principal, BillingRun.Kind.MAKE_INVOICES, month)
        _finalize_one(request, principal, Month(tenant=tenant_for(principal, slug), year=month.year, month=month.month))
    except (InvoiceRefused, StripeRefused) as error:
        messages.error(request, str(error))
    except NotFound as error:
        if error.kind != "issuer":
            raise
        messages.error(request, gettext_noop("There is no issuer yet: set your legal entity first."))
        return redirect("portal:issuers")
    return redirect(f"{reverse('portal:invoices')}?month={month:%Y-%m}")


def _finalize_one(request: HttpRequest, principal: Principal, month: Month) -> None:
    if account.of(month.tenant).details.issuer == Invoice.Channel.STRIPE:
        if _push(principal, month):
            text = gettext_noop("It goes to Stripe within a minute. The page of the issuer's Stripe has it.")
            messages.success(request, text)
            return
        new = False
    else:
        invoice, new = finalizing.finalize(principal.actor, month)
        if new:
            messages.success(request, f"{invoice.number} is made.")
    if not new:
        messages.success(request, gettext_noop("Made already. Nothing was changed."))


def _mirrored(request: HttpRequest, principal: Principal, month: date, form: MirrorForm) -> HttpResponse | None:
    """Keep the invoice that the form says; None if it is refused, which the form then says."""
    try:
        tenant = tenant_for(principal, form.cleaned_data["tenant"])
    except NotFound:
        form.add_error("tenant", gettext_noop("There is no such tenant."))
        return None
    try:
        kept, new = mirroring.record(
            principal.actor,
            Month(tenant=tenant, year=month.year, month=month.month),
            form.external(tenant.currency),
        )
    except InvoiceRefused as error:
        form.add_error(None, str(error))
        return None
    messages.success(request, f"{kept.number} of {tenant.slug} is {'kept' if new else 'kept already'}.")
    return redirect(f"{reverse('portal:invoices')}?month={month:%Y-%m}")


def _push(principal: Principal, month: Month) -> bool:
    """Let Stripe make the invoice of a month; return whether anything is to be done. Raises the errors of billing."""
    push, _ = pushing.begin(principal.actor, month)
    if push.sent_at is not None:
        return False
    pushing.request(push)
    return True
