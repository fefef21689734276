"""A tenant's monthly savings statement, beside its statement."""

from __future__ import annotations

from datetime import date

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from billing.errors import MixedCurrencies
from billing.reports import savings_statement
from billing.reports.savings_statement import METHOD, SavingsStatement
from portal.access import confinement
from portal.access.principal import Principal, tenant_for
from portal.formats import csv_export
from portal.pages.base import page, show
from portal.pages.tenant.statements import MONTHS
from portal.reporting import periods
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show what the caches saved in a month, by default the current one."""
    tenant = tenant_for(principal, slug)
    confinement.require_unconfined(principal, tenant, "A savings statement")
    now = timezone.now()
    month = periods.parse_month(request.GET.get("month"), now)
    try:
        found = _read(tenant, month)
    except MixedCurrencies as error:
        problem = f"The requests of this month were {error}, which cannot be added. See the page Requests."
        context: dict[str, object] = {"title": f"No savings statement for {month:%B %Y}", "problem": problem}
        return show(request, principal, "portal/error.html", context, active="statement", tenant=tenant, status=409)
    context = {
        "found": found,
        "rows": tuple(savings_statement.rows(found)),
        "totals": savings_statement.totals(found),
        "method": METHOD,
        "month": month,
        "months": periods.past_months(now.date(), MONTHS),
    }
    return show(request, principal, "portal/savings_statement.html", context, active="statement", tenant=tenant)


@require_GET
@page
def as_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download the savings statement, to the pico-dollar."""
    tenant = tenant_for(principal, slug)
    confinement.require_unconfined(principal, tenant, "A savings statement")
    month = periods.parse_month(request.GET.get("month"), timezone.now())
    header, *rows = savings_statement.csv_rows(_read(tenant, month))
    return csv_export.attachment(request, f"savings-{tenant.slug}-{month:%Y-%m}", header, rows)


def _read(tenant: Tenant, month: date) -> SavingsStatement:
    with as_tenant(TenantId(tenant.id)):
        return savings_statement.read(tenant, month.year, month.month)
