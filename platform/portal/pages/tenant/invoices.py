"""A tenant's invoices: the list, and each document.

For operators, and for owners and billing members of the tenant; to others they are not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from billing.invoices import registry
from billing.models import Invoice
from portal.access.principal import Principal, tenant_for
from portal.formats import invoice_download, query_params
from portal.formats.table_csv import most
from portal.pages.base import page, show
from portal.reporting.billing import invoice_list
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import Tenant

#: Invoices on the page; the API has all.
SHOWN = 240


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the tenant's invoices, the newest first."""
    with bills_of(request, principal, slug) as tenant:
        every = registry.with_paid(Invoice.objects.filter(tenant_id=tenant.id)).order_by("-id")
        found = every[: most(request, "invoices", SHOWN)]
        context = {"rows": invoice_list.rows(found), "this_month": timezone.now().date().replace(day=1)}
    return show(request, principal, "portal/tenant_invoices.html", context, active="tenant-invoices", tenant=tenant)


@require_GET
@page
def document(request: HttpRequest, principal: Principal, slug: str, invoice: UUID, kind: str) -> HttpResponse:
    """Show the HTML, or download another document; ``?of=`` that of a credit note, by its number."""
    with bills_of(request, principal, slug) as tenant:
        found = registry.document(
            registry.find(str(invoice), tenant.id), kind, note=query_params.text(request.GET, "of") or ""
        )
        return invoice_download.response(found, is_shown=kind == "html")


@contextmanager
def bills_of(request: HttpRequest, principal: Principal, slug: str) -> Iterator[Tenant]:
    """Yield the tenant, whose rows the block reads. Raises NotFound unless this principal handles its bills."""
    tenant = tenant_for(principal, slug)
    if not principal.handles_bills_of(tenant.id):
        raise NotFound("page", request.path)
    with as_tenant(TenantId(tenant.id)):
        yield tenant
