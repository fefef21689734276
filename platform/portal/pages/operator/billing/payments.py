"""Lines of bank statements: importing a file, and assigning or dismissing what names no invoice."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from billing import tasks
from billing.errors import BadBankFile, InvoiceRefused, PaymentRefused
from billing.models import BankAssignment, BankLine, BillingRun, Invoice
from billing.payments import assignment, bank_file, bank_statement, importing, retrying
from billing.payments.importing import Imported, Report
from portal.access.principal import Principal, tenant_for
from portal.errors import BadQuery
from portal.formats.table_csv import most
from portal.pages.base import operator_page, show
from portal.pages.operator.billing import runs
from tenants import error_text
from tenants.errors import TenantError
from tenants.models import Tenant

#: Lines that the page shows; the API has all.
SHOWN = 200
STATES = {"open": _("to be assigned"), "matched": _("matched"), "dismissed": _("dismissed")}


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the queue; with POST, preview or import a file, or assign or dismiss a line."""
    if request.method == "GET":
        return _page(request, principal)
    try:
        if "file" in request.FILES:
            report, dry_run = _import(request, principal), request.POST.get("action") != "import"
            return _page(request, principal, report=report, dry_run=dry_run)
        _change(request, principal)
    except (BadBankFile, BadQuery, InvoiceRefused, PaymentRefused) as error:
        return _page(request, principal, problem=str(error))
    except TenantError as error:
        return _page(request, principal, problem=error_text.words(error))
    return redirect(reverse("portal:payments"))


def _import(request: HttpRequest, principal: Principal) -> Report:
    chosen = request.FILES.get("file")
    if chosen is None:
        raise BadQuery("file", "", "a file")
    statement = bank_file.read(chosen.read(bank_statement.MAX_BYTES + 1))
    dry_run, most = request.POST.get("action") != "import", importing.MOST_PAID_AT_ONCE
    report = importing.run(principal.actor, statement, dry_run=dry_run, most_paid=most)
    if report.waiting and not dry_run:
        tasks.match_later(principal.actor, report.waiting)
    return report


def _change(request: HttpRequest, principal: Principal) -> None:
    """Assign, keep, undo or dismiss a line, or try all again. Raises BadQuery for a form that is none of the page's."""
    form = request.POST
    if form.get("action") == "match":
        messages.success(request, f"{retrying.run(principal.actor)} lines paid something.")
        return
    try:
        line_id = UUID(form.get("line", ""))
    except ValueError:
        raise BadQuery("file", "", "a file, or a line of the queue") from None
    if form.get("action") == "assign":
        text = form.get("amount", "").strip()
        cents = bank_statement.cents(_("Amount"), text, assignment.find(line_id).currency) if text else None
        line = assignment.assign(principal.actor, line_id, form.get("invoice", "").strip(), amount_cents=cents)
        messages.success(request, f"{line.bank_reference} is assigned.")
    elif form.get("action") == "undo":
        line = assignment.undo(principal.actor, line_id, form.get("invoice", ""), form.get("reason", ""))
        messages.success(request, f"What {line.bank_reference} paid is taken back, and the invoice is open again.")
    elif form.get("action") == "keep":
        slug = form.get("tenant", "").strip()
        assignment.keep_as_credit(principal.actor, line_id, tenant_for(principal, slug) if slug else None)
        messages.success(request, _("The rest became prepaid credit."))
    else:
        line = assignment.dismiss(principal.actor, line_id, form.get("reason", ""))
        messages.success(request, f"{line.bank_reference} is dismissed.")


def _page(
    request: HttpRequest,
    principal: Principal,
    *,
    report: Report | None = None,
    dry_run: bool = False,
    problem: str = "",
) -> HttpResponse:
    state = request.GET.get("state", "open")
    chosen = state if state in STATES else "open"
    rows = BankLine.objects.filter(state=chosen).prefetch_related(
        Prefetch(
            "assignments",
            queryset=BankAssignment.objects.filter(payment__undone=None).select_related("payment__invoice"),
        )
    )
    context = {
        "lines": rows.order_by("-id")[: most(request, "lines", SHOWN)],
        "state": chosen,
        "states": STATES,
        "state_label": STATES[chosen],
        "progress": runs.of_month(BillingRun.Kind.MATCH_PAYMENTS),
        "report": report,
        "imported": [] if report is None else _linked(report),
        "dry_run": dry_run,
        "problem": problem,
    }
    return show(
        request, principal, "portal/payments.html", context, active="all-billing", status=400 if problem else 200
    )


def _linked(report: Report) -> list[tuple[Imported, list[tuple[str, UUID, str]]]]:
    """Return each line with the number, id and tenant of the invoices that it pays."""
    ids = {each for line in report.lines for each in line.invoice_ids}
    owners = dict(Invoice.objects.filter(id__in=ids).values_list("id", "tenant_id"))
    slugs = dict(Tenant.objects.filter(id__in=set(owners.values())).values_list("id", "slug"))
    return [
        (
            line,
            [(number, each, slugs[owners[each]]) for number, each in zip(line.invoices, line.invoice_ids, strict=True)],
        )
        for line in report.lines
    ]
