"""Usage by project, key, model, day, cost centre or a tag, for one tenant and for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from billing.errors import TooManyRequests
from billing.ledger.rollups import Sums
from billing.reports import breakdown, latency, usage
from billing.reports.breakdown import BY, By, Group
from portal.access.principal import Principal, tenant_for
from portal.errors import BadQuery
from portal.formats import csv_export, query_params
from portal.pages.base import operator_page, page, period_of, show, with_query
from portal.pages.usage import PLATFORM_CURRENCY, UsageRow, presets
from portal.reporting.breakdown_csv import CSV_HEADER, csv_rows
from portal.reporting.periods import Period
from tenants.database.rls import as_tenant
from tenants.ids import TenantId

TITLES: dict[By, str] = {
    "tenant": "Tenant",
    "project": "Project",
    "key": "Key",
    "model": "Model",
    "day": "Day",
    "cost_centre": "Cost centre",
    "tag": "Tag",
}
#: The tag whose values are shown unless another is chosen.
DEFAULT_TAG = "app"
#: What usage without a name is called.
UNNAMED: dict[By, str] = {
    "key": "earlier requests without a key",
    "cost_centre": "no cost centre",
    "tag": "without this tag",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to group usage. ``query`` chooses it."""

    by: By
    label: str
    query: str


@require_GET
@operator_page
def of_all(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the usage of all tenants."""
    context = _context(request, None, PLATFORM_CURRENCY, BY, reverse("portal:usage-by-csv"))
    return show(request, principal, "portal/breakdown.html", context, active="overview")


@require_GET
@page
def of_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show one tenant's usage."""
    tenant = tenant_for(principal, slug)
    csv = reverse("portal:tenant-usage-by-csv", args=[slug])
    with as_tenant(TenantId(tenant.id)):
        context = _context(request, TenantId(tenant.id), tenant.currency, BY[1:], csv)
    return show(request, principal, "portal/breakdown.html", context, active="home", tenant=tenant)


@require_GET
@operator_page
def of_all_csv(request: HttpRequest, principal: Principal) -> StreamingHttpResponse:
    """Download the usage of all tenants, grouped by the parameter ``by``."""
    return _csv(request, None, "usage", BY)


@require_GET
@page
def of_tenant_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download one tenant's usage, grouped by the parameter ``by``."""
    tenant = tenant_for(principal, slug)
    with as_tenant(TenantId(tenant.id)):
        return _csv(request, TenantId(tenant.id), f"usage-{slug}", BY[1:])


def _context(
    request: HttpRequest, tenant_id: TenantId | None, currency: str, allowed: Sequence[str], csv_url: str
) -> dict[str, Any]:
    period, by, tag = period_of(request, default="30d"), _chosen(request, allowed), _tag(request)
    total = usage.totals(period, tenant_id)
    groups = _grouped(request, period, tenant_id, by, tag)
    return {
        "period": period,
        "periods": presets(request),
        "currency": currency,
        "by": by,
        "tag": tag,
        "kept": [(name, request.GET[name]) for name in ("period", "from", "to", "by") if name in request.GET],
        "title": TITLES[by],
        "has_latency": by != "tag",
        "choices": [
            Choice(by=cast(By, each), label=TITLES[cast(By, each)], query=with_query(request, by=each))
            for each in allowed
        ],
        "rows": [_row(group, by, total, period) for group in groups],
        "csv_url": f"{csv_url}?{period.query}&{urlencode({'by': by, 'tag': tag} if by == 'tag' else {'by': by})}",
    }


def _row(group: Group, by: By, total: Sums, period: Period) -> UsageRow:
    return UsageRow(
        name=group.name or UNNAMED.get(by, ""),
        sums=group.sums,
        latency=group.latency,
        share=group.sums.requests / total.requests if total.requests else 0.0,
        link=f"{reverse('portal:tenant-usage', args=[group.name])}?{period.query}" if by == "tenant" else "",
    )


def _csv(request: HttpRequest, tenant_id: TenantId | None, name: str, allowed: Sequence[str]) -> StreamingHttpResponse:
    period, by = period_of(request, default="30d"), _chosen(request, allowed)
    groups = _grouped(request, period, tenant_id, by, _tag(request))
    rows = list(csv_rows(by, usage.totals(period, tenant_id), latency.total(period, tenant_id), groups))
    return csv_export.attachment(request, f"{name}-by-{by}", CSV_HEADER, rows)


def _grouped(request: HttpRequest, period: Period, tenant_id: TenantId | None, by: By, tag: str) -> tuple[Group, ...]:
    """Return the groups. Raises BadQuery for a period with too many requests to read by tag."""
    try:
        return breakdown.grouped(period, tenant_id, by, tag=tag)
    except TooManyRequests as error:
        raise BadQuery("period", request.GET.get("period", period.label), error.allowed) from None


def _tag(request: HttpRequest) -> str:
    return query_params.text(request.GET, "tag") or DEFAULT_TAG


def _chosen(request: HttpRequest, allowed: Sequence[str]) -> By:
    chosen = request.GET.get("by") or "model"
    if chosen not in allowed:
        raise BadQuery("by", chosen, f"one of {', '.join(allowed)}")
    return cast(By, chosen)
