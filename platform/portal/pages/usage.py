"""Usage, charges and savings: the platform's overview, one tenant's home page, and both as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET

from billing.ledger.latency_buckets import Latency, Percentiles
from billing.ledger.latency_buckets import latency as of_histogram
from billing.ledger.rollups import Sums
from billing.reports import latency, usage
from portal.access.principal import Principal, own_tenants, tenant_for
from portal.access.requests.addresses import api_base, example_model
from portal.formats import csv_export, numbers
from portal.pages.base import month_zone_of, operator_page, page, period_of, show, with_query
from portal.reporting import archived_tenants, charts, periods, stat_tiles
from portal.reporting import first_steps as first_steps_report
from portal.reporting.periods import Period
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant
from workers.fleet.status import inventory

#: Currency of sums over all tenants; every price book is in it.
PLATFORM_CURRENCY = "USD"
#: A chart is drawn from single requests up to this number, which takes a third of a second.
MAX_FINE_REQUESTS = 5000
#: Tenants that the overview names, those with the highest amounts; the others are one row.
MOST_TENANTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """One row of a usage table. ``share`` is its part of all rows' requests, 0 to 1."""

    name: str
    sums: Sums
    share: float
    link: str = ""
    #: The list of its requests, with a query; empty where they cannot be listed.
    requests: str = ""
    #: None: not shown.
    latency: Latency | None = None

    @property
    def tokens_in(self) -> int:
        """Prompt tokens, cached ones included."""
        return stat_tiles.tokens_in(self.sums)

    @property
    def times(self) -> tuple[Percentiles, ...]:
        """Percentiles of TTFT and of TPOT."""
        return () if self.latency is None else (self.latency.ttft, self.latency.tpot)

    @property
    def prediction_hit_rate(self) -> float | None:
        """The share of requests answered without an engine call of their own."""
        return stat_tiles.prediction_hit_rate(self.sums)

    @property
    def prefix_hit_rate(self) -> float | None:
        """The share of prompt tokens found in a prefix cache."""
        return stat_tiles.prefix_hit_rate(self.sums)


@require_GET
@page
def overview(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show operators the whole platform; redirect members to their tenant."""
    if not principal.is_operator:
        for own in own_tenants(principal):
            return redirect("portal:tenant", slug=own.slug)
        return show(request, principal, "portal/no_tenant.html", {}, active="")
    period = period_of(request)
    context = overview_figures(period, api_base(request)) | {
        "periods": presets(request, period),
        "live": live_address("all", period),
    }
    return show(request, principal, "portal/overview.html", context, active="overview")


def overview_figures(period: Period, base_url: str) -> dict[str, Any]:
    """Return what ``parts/overview_figures.html`` shows; ``base_url`` is the inference API's, for an example."""
    context = _usage(period, None, PLATFORM_CURRENCY, reverse("portal:requests"))
    total: Sums = context["total"]
    return context | {
        "by_tenant": _by_tenant(period, total),
        "fleet": inventory.summary(),
        "steps": None if total.requests else first_steps_report.read(),
        "api_base": base_url,
        "example_model": example_model(),
        "csv_url": f"{reverse('portal:usage-csv')}?{period.query}",
    }


def home_figures(tenant: Tenant, period: Period) -> dict[str, Any]:
    """Return what ``parts/home_figures.html`` shows of one tenant."""
    with as_tenant(TenantId(tenant.id)):
        requests = reverse("portal:tenant-requests", args=[tenant.slug])
        context = _usage(period, TenantId(tenant.id), tenant.currency, requests) | {"example_model": example_model()}
    csv_url = f"{reverse('portal:tenant-usage-csv', args=[tenant.slug])}?{period.query}"
    return context | {"tenant": tenant, "csv_url": csv_url}


def live_address(whose: str, period: Period) -> str:
    """Return the WebSocket that keeps a page of a preset period up to date; empty for a month or other dates."""
    return f"/ws/usage/{whose}?{period.query}" if period.preset in periods.PRESETS else ""


@require_GET
@operator_page
def first_steps(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Return the first steps as they are now, for the overview that shows them."""
    steps = first_steps_report.read()
    return render(request, "portal/parts/first_steps.html", {"steps": steps, "api_base": api_base(request)})


@require_GET
@page
def home(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show one tenant's usage and how to send a first request."""
    tenant = tenant_for(principal, slug)
    period = period_of(request, tenant=tenant)
    context = home_figures(tenant, period) | {
        "periods": presets(request, period, tenant),
        "api_base": api_base(request),
        "may_play": principal.may_play(tenant.id),
        "live": live_address(f"tenant/{tenant.slug}", period),
    }
    return show(request, principal, "portal/tenant.html", context, active="home", tenant=tenant)


@require_GET
@operator_page
def overview_csv(request: HttpRequest, principal: Principal) -> StreamingHttpResponse:
    """Download the numbers behind the overview's charts."""
    period = period_of(request)
    return _csv(request, "usage", points_of(period, None, usage.totals(period, None)))


@require_GET
@page
def home_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download the numbers behind one tenant's charts."""
    tenant = tenant_for(principal, slug)
    period = period_of(request, tenant=tenant)
    with as_tenant(TenantId(tenant.id)):
        points = points_of(period, TenantId(tenant.id), usage.totals(period, TenantId(tenant.id)))
    return _csv(request, f"usage-{tenant.slug}", points)


def _usage(period: Period, tenant_id: TenantId | None, currency: str, requests: str) -> dict[str, Any]:
    """Return what both pages show, in seven queries for any period. ``requests`` is the address of their list."""
    models, before = usage.by_model(period, tenant_id), usage.totals(period.previous, tenant_id)
    total = sum((each.sums for each in models), Sums())
    times = latency.by_moment(period, tenant_id, None, period.moments)
    elapsed = min(period.end, timezone.now()) - period.start
    speeds = (
        stat_tiles.Speed(sums=total, latency=of_histogram(_together(times)), seconds=elapsed.total_seconds()),
        stat_tiles.Speed(
            sums=before,
            latency=latency.total(period.previous, tenant_id),
            seconds=(period.previous.end - period.previous.start).total_seconds(),
        ),
    )
    return {
        "period": period,
        "currency": currency,
        "total": total,
        "charts": _charts(period, tenant_id, total, times, currency=currency, requests=requests)
        if total.requests
        else (),
        "by_model": [
            _row(each.model_name, each.sums, total, requests=_of_model(requests, period, each.model_name))
            for each in models
        ],
        "tiles": (
            *stat_tiles.usage_tiles(total, before, currency=currency, requests_link=f"{requests}?{period.query}"),
            *(stat_tiles.speed_tiles(*speeds) if total.requests else ()),
        ),
    }


def _of_model(requests: str, period: Period, name: str) -> str:
    return f"{requests}?{period.query}&{urlencode({'model': name})}" if name else ""


def _together(histograms: Mapping[datetime, Counter[int]]) -> Counter[int]:
    return sum(histograms.values(), Counter())


def _charts(
    period: Period,
    tenant_id: TenantId | None,
    total: Sums,
    times: Mapping[datetime, Counter[int]],
    *,
    currency: str,
    requests: str,
) -> tuple[charts.Chart, ...]:
    points = points_of(period, tenant_id, total)
    steps = points if len(points) == len(period.moments) else usage.series_at(period, tenant_id, period.moments)
    latencies = {moment: of_histogram(histogram) for moment, histogram in times.items()}
    return (
        *charts.usage_charts(points, total, period, currency, requests),
        *charts.speed_charts(steps, latencies, total, period),
    )


def _by_tenant(period: Period, total: Sums) -> list[UsageRow]:
    found = usage.by_tenant(period)
    gone = archived_tenants.among({each.tenant_id: each.sums for each in found})
    named = [each for each in found if each.tenant_id not in gone.ids]
    rows = [
        _row(
            each.slug,
            each.sums,
            total,
            f"{reverse('portal:tenant', args=[each.slug])}?{period.query}",
            requests=f"{reverse('portal:tenant-requests', args=[each.slug])}?{period.query}",
        )
        for each in named[:MOST_TENANTS]
    ]
    if others := named[MOST_TENANTS:]:
        sums = sum((each.sums for each in others), Sums())
        every = f"{reverse('portal:usage-by')}?{period.query}&by=tenant"
        name = ngettext("%(count)s other tenant", "%(count)s other tenants", len(others)) % {"count": len(others)}
        rows.append(_row(name, sums, total, every))
    return [*rows, _row(gone.name, gone.sums, total)] if gone.ids else rows


def others_named(count: int) -> str:
    """Return the name of the row that adds up the groups which a table leaves out."""
    text = ngettext("%(count)s other, which the CSV has", "%(count)s others, which the CSV has", count)
    return text % {"count": numbers.count(count)}


def points_of(period: Period, tenant_id: TenantId | None, total: Sums) -> tuple[usage.Point, ...]:
    """Return the points of the period's charts: minutes of a short period with few requests, else its steps."""
    if period.fine_moments and total.requests + total.refused_requests <= MAX_FINE_REQUESTS:
        return usage.fine_series(period, tenant_id, period.fine_moments)
    return usage.series_at(period, tenant_id, period.moments)


def _row(name: str, sums: Sums, total: Sums, link: str = "", *, requests: str = "") -> UsageRow:
    share = sums.requests / total.requests if total.requests else 0.0
    return UsageRow(name=name, sums=sums, share=share, link=link or requests, requests=requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodLink:
    """A period that a page can show. ``query`` keeps the page's other parameters; ``title`` is its name in full."""

    label: str
    query: str
    is_chosen: bool
    title: str = ""


def presets(request: HttpRequest, period: Period, tenant: Tenant | None = None) -> list[PeriodLink]:
    """Return the periods to choose from: lengths up to now, this month and the last one, and the one that is shown."""
    now = timezone.now()
    months = periods.months_now(now, month_zone_of(tenant) or period.zone)
    if period.month and period.preset and period.preset not in months:
        months.append(period.preset)
    links = [_period_link(request, preset, preset, period) for preset in periods.PRESETS]
    for text in months:
        month = periods.parse_month(text, now)
        link = _period_link(request, text, date_format(month, "M"), period)
        links.append(replace(link, title=date_format(month, "F Y")))
    if not period.preset:
        links.append(PeriodLink(label=period.label, query=with_query(request, after=None), is_chosen=True))
    return links


def _period_link(request: HttpRequest, preset: str, label: str, period: Period) -> PeriodLink:
    query = with_query(request, **{"period": preset, "from": None, "to": None, "after": None})
    return PeriodLink(label=label, query=query, is_chosen=preset == period.preset)


def _csv(request: HttpRequest, name: str, points: tuple[usage.Point, ...]) -> StreamingHttpResponse:
    return csv_export.attachment(request, name, charts.CSV_HEADER, charts.csv_rows(points))
