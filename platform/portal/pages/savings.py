"""What the prediction cache and the prefix cache saved, for one tenant and for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET

from billing.ledger.rollups import Sums
from billing.reports import savings, usage
from billing.reports.savings import BY, By, Group, Savings
from caching import bypass
from portal.access.principal import Principal, tenant_for
from portal.errors import BadQuery
from portal.formats import csv_export
from portal.pages.base import operator_page, page, period_of, show
from portal.pages.usage import PLATFORM_CURRENCY, others_named, points_of, presets
from portal.reporting import archived_tenants, charts, stat_tiles
from portal.reporting.advice.wording import switch_label
from portal.reporting.periods import Period
from portal.reporting.savings_csv import CSV_HEADER, csv_rows
from tenants.database.rls import as_tenant
from tenants.ids import TenantId

#: Rows of a table, those with the highest savings; the others are one row.
MOST_ROWS = 100
TITLES: dict[By, str] = {"tenant": _("Tenant"), "project": _("Project"), "key": _("Key"), "model": _("Model")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a savings table."""

    name: str
    savings: Savings
    #: Prediction hit rate, 0 to 1; None without requests.
    share: float | None
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Savings by tenant, project, key or model."""

    by: By
    title: str
    rows: tuple[Row, ...]
    csv_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why requests bypassed the prediction cache, and what would avoid it."""

    name: str
    requests: int
    share: float
    switch: str


@require_GET
@page
def of_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show one tenant's savings by project, key and model."""
    tenant = tenant_for(principal, slug)
    period = period_of(request, tenant=tenant)
    csv = f"{reverse('portal:savings-csv', args=[slug])}?{period.query}"
    with as_tenant(TenantId(tenant.id)):
        context = _context(period, TenantId(tenant.id), tenant.currency, csv, ("project", "key", "model"))
    context |= {
        "periods": presets(request, period, tenant),
        "csv_url": f"{reverse('portal:tenant-usage-csv', args=[slug])}?{period.query}",
    }
    return show(request, principal, "portal/savings.html", context, active="savings", tenant=tenant)


@require_GET
@operator_page
def of_all(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the savings of all tenants, by tenant and model."""
    period = period_of(request)
    csv = f"{reverse('portal:all-savings-csv')}?{period.query}"
    context = _context(period, None, PLATFORM_CURRENCY, csv, ("tenant", "model"))
    context |= {"periods": presets(request, period), "csv_url": f"{reverse('portal:usage-csv')}?{period.query}"}
    return show(request, principal, "portal/savings.html", context, active="savings")


@require_GET
@page
def of_tenant_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download one tenant's savings, grouped by the parameter ``by``."""
    tenant = tenant_for(principal, slug)
    with as_tenant(TenantId(tenant.id)):
        return _csv(request, period_of(request, tenant=tenant), TenantId(tenant.id), f"savings-{slug}", BY[1:])


@require_GET
@operator_page
def of_all_csv(request: HttpRequest, principal: Principal) -> StreamingHttpResponse:
    """Download the savings of all tenants, grouped by the parameter ``by``."""
    return _csv(request, period_of(request), None, "savings", BY)


def _context(
    period: Period, tenant_id: TenantId | None, currency: str, csv: str, tables: tuple[By, ...]
) -> dict[str, Any]:
    """Return what the page shows: four queries, and two for each table."""
    total = usage.totals(period, tenant_id)
    before = usage.totals(period.previous, tenant_id)
    points = points_of(period, tenant_id, total)
    return {
        "period": period,
        "currency": currency,
        "total": Savings.of(total),
        "tiles": stat_tiles.savings_tiles(total, before, currency=currency),
        "charts": charts.savings_charts(points, total, period, currency) if total.requests else (),
        "tables": [
            Table(by=by, title=TITLES[by], rows=_rows(by, period, tenant_id), csv_url=f"{csv}&by={by}") for by in tables
        ],
        "reasons": _reasons(savings.bypasses(period, tenant_id), total.requests),
    }


def _rows(by: By, period: Period, tenant_id: TenantId | None) -> tuple[Row, ...]:
    groups = savings.grouped(period, tenant_id, by)
    if by != "tenant":
        return (*map(_row, groups[:MOST_ROWS]), *_others(groups[MOST_ROWS:]))
    gone = archived_tenants.among({group.id: group.sums for group in groups if group.id is not None})
    there = [group for group in groups if group.id not in gone.ids]
    rows = (*(_row(group, _link(group, period)) for group in there[:MOST_ROWS]), *_others(there[MOST_ROWS:]))
    return (*rows, _row(Group(id=None, name=gone.name, sums=gone.sums))) if gone.ids else rows


def _others(groups: Sequence[Group]) -> tuple[Row, ...]:
    """Return one row for all of these; none without any."""
    if not groups:
        return ()
    sums = sum((each.sums for each in groups), Sums())
    return (_row(Group(id=None, name=others_named(len(groups)), sums=sums)),)


def _row(group: Group, link: str = "") -> Row:
    return Row(
        name=group.name or _("without a key"),
        savings=group.savings,
        share=stat_tiles.prediction_hit_rate(group.sums),
        link=link,
    )


def _link(group: Group, period: Period) -> str:
    return f"{reverse('portal:savings', args=[group.name])}?{period.query}" if group.name else ""


def _reasons(found: tuple[savings.BypassCount, ...], requests: int) -> list[Reason]:
    return [
        Reason(
            name=each.reason or "unknown",
            requests=each.requests,
            share=each.requests / requests if requests else 0.0,
            switch=switch_label(bypass.switch_of(each.reason)),
        )
        for each in found
    ]


def _csv(
    request: HttpRequest, period: Period, tenant_id: TenantId | None, name: str, allowed: tuple[str, ...]
) -> StreamingHttpResponse:
    grouping = request.GET.get("by") or "model"
    if grouping not in allowed:
        raise BadQuery("by", grouping, f"one of {', '.join(allowed)}")
    by = cast(By, grouping)
    total = Savings.of(usage.totals(period, tenant_id))
    rows = list(csv_rows(by, total, savings.grouped(period, tenant_id, by)))
    return csv_export.attachment(request, f"{name}-by-{by}", CSV_HEADER, rows)
