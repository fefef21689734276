"""A tenant's invoices: the list, one with its lines, payments, documents and history, and each document.

For operators, and for owners and billing members of the tenant; to others they are not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from uuid import UUID, uuid4

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET

from billing.invoices import crediting, registry
from billing.models import Invoice
from portal.access import audit_actors
from portal.access.principal import Principal, tenant_for
from portal.formats import invoice_download, money, query_params
from portal.formats.table_csv import most
from portal.pages.base import page, show
from portal.reporting.billing import invoice_list, month_usage
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant

#: Invoices on the page; the API has all.
SHOWN = 240


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the tenant's invoices, the newest first."""
    with _bills(request, principal, slug) as tenant:
        every = registry.with_paid(Invoice.objects.filter(tenant_id=tenant.id)).order_by("-id")
        found = every[: most(request, "invoices", SHOWN)]
        context = {"rows": invoice_list.rows(found), "this_month": timezone.now().date().replace(day=1)}
    return show(request, principal, "portal/tenant_invoices.html", context, active="tenant-invoices", tenant=tenant)


@require_GET
@page
def detail(request: HttpRequest, principal: Principal, slug: str, invoice: UUID) -> HttpResponse:
    """Show one invoice."""
    actor = audit_actors.shown_actor(principal)
    with _bills(request, principal, slug) as tenant:
        found = registry.find(str(invoice), tenant.id)
        row = invoice_list.row(found)
        entries = AuditEntry.objects.filter(tenant=tenant, object_kind="invoice", object_id=str(found.id))
        free = crediting.left(found).net_cents
        context = {
            "row": row,
            "invoice": found,
            "lines": [
                (each, invoice_list.cents(each.amount_cents, found.currency), link)
                for each, link in zip(
                    found.lines.order_by("position"),
                    chain(month_usage.line_links(tenant, found), repeat("")),
                    strict=False,
                )
            ],
            "usage": month_usage.of_invoice(tenant, found, most(request, "usage-project-key-model", month_usage.SHOWN)),
            "payments": [
                (each, invoice_list.cents(each.amount_cents, found.currency))
                for each in found.payments.select_related("undone").order_by("id")
            ],
            "documents": list(found.documents.order_by("kind").defer("content")),
            "note": found.credit_note,
            "credit_notes": [
                (each, invoice_list.cents(each.total_cents, found.currency))
                for each in found.credit_notes.filter(is_partial=True).select_related("request").order_by("id")
            ],
            "stripe": getattr(found, "stripe", None),
            "replaces": found.replaces,  # read here, as the tenant
            "replaced_by": getattr(found, "replaced_by", None),
            "amounts": [
                (name, invoice_list.cents(cents, found.currency))
                for name, cents in (
                    (_("Net"), found.net_cents),
                    (_("Tax"), found.tax_cents),
                    (_("Applied"), found.applied_cents),
                    (_("Credited"), registry.credited_cents(found)),
                )
            ],
            "net": invoice_list.cents(found.net_cents, found.currency),
            "tax": invoice_list.cents(found.tax_cents, found.currency),
            "exact": money.in_full(int(found.exact_pico), found.currency),
            "history": list(entries.annotate(shown_actor=actor).order_by("id")),
            "today": timezone.now().date(),
            "sends_mail": settings.EMAIL_IS_SENT,
            "key": f"page {uuid4()}",
            "may_credit": bool(free),
            "left": invoice_list.cents(free, found.currency),
        }
    return show(request, principal, "portal/invoice.html", context, active="tenant-invoices", tenant=tenant)


@require_GET
@page
def document(request: HttpRequest, principal: Principal, slug: str, invoice: UUID, kind: str) -> HttpResponse:
    """Show the HTML, or download another document; ``?of=`` that of a credit note, by its number."""
    with _bills(request, principal, slug) as tenant:
        found = registry.document(
            registry.find(str(invoice), tenant.id), kind, note=query_params.text(request.GET, "of") or ""
        )
        return invoice_download.response(found, is_shown=kind == "html")


@contextmanager
def _bills(request: HttpRequest, principal: Principal, slug: str) -> Iterator[Tenant]:
    """Yield the tenant, whose rows the block reads. Raises NotFound unless this principal handles its bills."""
    tenant = tenant_for(principal, slug)
    if not principal.handles_bills_of(tenant.id):
        raise NotFound("page", request.path)
    with as_tenant(TenantId(tenant.id)):
        yield tenant
