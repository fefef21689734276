"""Usage by project, key, member, model, day, cost centre, end user or a tag, for one tenant and for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET

from billing.errors import TooManyRequests
from billing.ledger.rollups import Sums
from billing.reports import breakdown, latency, usage
from billing.reports.breakdown import BY, By, Group
from billing.reports.tags import OTHERS
from portal.access.principal import Principal, tenant_for, tenants_of
from portal.errors import BadQuery
from portal.formats import csv_export, query_params
from portal.pages.base import chosen_tenant, operator_page, page, period_of, show, with_query
from portal.pages.usage import PLATFORM_CURRENCY, UsageRow, others_named, presets
from portal.reporting import member_names, periods
from portal.reporting.breakdown_csv import CSV_HEADER, csv_rows
from portal.reporting.periods import Period
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant

TITLES: dict[By, str] = {
    "tenant": _("Tenant"),
    "project": _("Project"),
    "key": _("Key"),
    "member": _("Member"),
    "model": _("Model"),
    "day": _("Day"),
    "cost_centre": _("Cost centre"),
    "end_user": _("End user"),
    "tag": _("Tag"),
}
#: Groups that the page names, those with the highest amounts; the others are one row.
MOST_ROWS = 100
#: The tag whose values are shown unless another is chosen.
DEFAULT_TAG = "app"
#: What usage without a name is called.
UNNAMED: dict[By, str] = {
    "key": _("without a key"),
    "model": _("a model that does not exist"),
    "member": _("keys that no person made"),
    "end_user": _("no end user named"),
    "cost_centre": _("no cost centre"),
    "tag": _("without this tag"),
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
    """Show the usage of all tenants, or of the tenant in the query."""
    named, tenant = query_params.text(request.GET, "tenant"), chosen_tenant(request, principal)
    currency = tenant.currency if tenant else PLATFORM_CURRENCY
    context = _context(request, _Place(principal, tenant, currency, BY, reverse("portal:requests")))
    csv_query = f"{context['csv_query']}&{urlencode({'tenant': named})}" if tenant else context["csv_query"]
    context |= {
        "csv_url": f"{reverse('portal:usage-by-csv')}?{csv_query}",
        "named": named or "",
        "named_tenant": tenant,
        "tenant_choices": tenants_of(principal).only("slug", "name"),
        "of_all": True,
    }
    return show(request, principal, "portal/breakdown.html", context, active="usage")


@require_GET
@page
def of_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show one tenant's usage."""
    tenant = tenant_for(principal, slug)
    requests = reverse("portal:tenant-requests", args=[slug])
    context = _context(request, _Place(principal, tenant, tenant.currency, BY[1:], requests))
    context["csv_url"] = f"{reverse('portal:tenant-usage-by-csv', args=[slug])}?{context['csv_query']}"
    return show(request, principal, "portal/breakdown.html", context, active="tenant-usage", tenant=tenant)


@require_GET
@operator_page
def of_all_csv(request: HttpRequest, principal: Principal) -> StreamingHttpResponse:
    """Download the usage of all tenants, or of the tenant in the query, grouped by the parameter ``by``."""
    return _csv(request, principal, chosen_tenant(request, principal), "usage", BY)


@require_GET
@page
def of_tenant_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download one tenant's usage, grouped by the parameter ``by``."""
    tenant = tenant_for(principal, slug)
    return _csv(request, principal, tenant, f"usage-{slug}", BY[1:])


@dataclass(frozen=True, slots=True)
class _Place:
    """Who reads whose usage: the tenant (None: all), its currency, the ways to group it, its list of requests."""

    reader: Principal
    tenant: Tenant | None
    currency: str
    allowed: Sequence[str]
    requests: str

    @property
    def tenant_id(self) -> TenantId | None:
        """The tenant's id."""
        return _id_of(self.tenant)


def _context(request: HttpRequest, place: _Place) -> dict[str, Any]:
    period = period_of(request, default="30d", tenant=place.tenant)
    by, tag = _chosen(request, place.allowed), _tag(request)
    with _read_as(place.tenant_id):
        total = usage.totals(period, place.tenant_id)
        groups = _grouped(request, period, place.tenant_id, by, tag, timed=MOST_ROWS)
    links = _Links(
        requests=place.requests, period=period, by=by, tag=tag, tenant=query_params.text(request.GET, "tenant") or ""
    )
    return {
        "period": period,
        "periods": presets(request, period, place.tenant),
        "currency": place.currency,
        "by": by,
        "tag": tag,
        "kept": [(name, request.GET[name]) for name in ("period", "from", "to", "by", "tag") if name in request.GET],
        "title": TITLES[by],
        "has_latency": by not in {"tag", "end_user"},
        "choices": [
            Choice(by=cast(By, each), label=TITLES[cast(By, each)], query=with_query(request, by=each))
            for each in place.allowed
        ],
        "rows": _rows(member_names.named(groups, by, place.reader), total, links),
        "csv_query": f"{period.query}&{urlencode({'by': by, 'tag': tag} if by == 'tag' else {'by': by})}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """The addresses that rows lead to: the requests of a group, or one tenant's usage."""

    requests: str
    period: Period
    by: By
    tag: str
    #: The slug by which the list of all requests is filtered; empty where the list is of one tenant or of all.
    tenant: str

    def of(self, group: Group) -> str:
        """Return the address for a group; empty for one whose requests cannot be listed."""
        if self.by == "tenant":
            return f"{reverse('portal:tenant-usage', args=[group.name])}?{self.period.query}" if group.name else ""
        if self.by == "day":
            begin = datetime.fromisoformat(group.name).replace(tzinfo=self.period.zone)
            end = (begin.replace(tzinfo=None) + periods.DAY).replace(tzinfo=self.period.zone)
            return self._list(replace(self.period, start=begin, end=end, preset=None, month=None), {})
        value = {
            "project": str(group.id or ""),
            "key": str(group.id or ""),
            "cost_centre": "",
            "tag": f"{self.tag}={group.name}" if group.name and group.name != OTHERS else "",
            "end_user": group.name if group.name != OTHERS else "",
            "member": group.name if group.name != member_names.OPERATOR else "",
        }.get(self.by, group.name)
        return self._list(self.period, {self.by: value}) if value else ""

    def requests_of(self, group: Group) -> str:
        """Return the address of a group's requests; empty for one whose requests cannot be listed."""
        if self.by != "tenant":
            return self.of(group)
        return f"{reverse('portal:tenant-requests', args=[group.name])}?{self.period.query}" if group.name else ""

    def _list(self, period: Period, filters: Mapping[str, str]) -> str:
        named = {"tenant": self.tenant} if self.tenant else {}
        return f"{self.requests}?{urlencode({**period.parameters, **filters, **named})}"


def _rows(groups: Sequence[Group], total: Sums, links: _Links) -> list[UsageRow]:
    if links.by == "day" or len(groups) <= MOST_ROWS + 1:
        return [_row(group, total, links) for group in groups]
    others = groups[MOST_ROWS:]
    name = OTHERS if others[-1].name == OTHERS else others_named(len(others))
    together = Group(id=None, name=name, sums=sum((each.sums for each in others), Sums()), latency=None)
    rows = [_row(group, total, links) for group in groups[:MOST_ROWS]]
    return [*rows, _row(together, total, None)]


def _row(group: Group, total: Sums, links: _Links | None) -> UsageRow:
    return UsageRow(
        name=group.name or (UNNAMED.get(links.by, "") if links else ""),
        sums=group.sums,
        latency=group.latency,
        share=group.sums.requests / total.requests if total.requests else 0.0,
        link=links.of(group) if links else "",
        requests=links.requests_of(group) if links else "",
    )


def _csv(
    request: HttpRequest, reader: Principal, tenant: Tenant | None, name: str, allowed: Sequence[str]
) -> StreamingHttpResponse:
    period, by = period_of(request, default="30d", tenant=tenant), _chosen(request, allowed)
    tenant_id = _id_of(tenant)
    with _read_as(tenant_id):
        groups = _grouped(request, period, tenant_id, by, _tag(request))
        total, times = usage.totals(period, tenant_id), latency.total(period, tenant_id)
    rows = list(csv_rows(by, total, times, member_names.named(groups, by, reader)))
    return csv_export.attachment(request, f"{name}-by-{by}", CSV_HEADER, rows)


def _id_of(tenant: Tenant | None) -> TenantId | None:
    return None if tenant is None else TenantId(tenant.id)


def _read_as(tenant_id: TenantId | None) -> AbstractContextManager[None]:
    return nullcontext() if tenant_id is None else as_tenant(tenant_id)


def _grouped(
    request: HttpRequest, period: Period, tenant_id: TenantId | None, by: By, tag: str, *, timed: int | None = None
) -> tuple[Group, ...]:
    """Return the groups. Raises BadQuery for a period with too many requests to read by tag or end user."""
    try:
        return breakdown.grouped(period, tenant_id, by, tag=tag, timed=timed)
    except TooManyRequests as error:
        raise BadQuery("period", request.GET.get("period", period.label), error.allowed) from None


def _tag(request: HttpRequest) -> str:
    return query_params.text(request.GET, "tag") or DEFAULT_TAG


def _chosen(request: HttpRequest, allowed: Sequence[str]) -> By:
    chosen = request.GET.get("by") or "model"
    if chosen not in allowed:
        raise BadQuery("by", chosen, f"one of {', '.join(allowed)}")
    return cast(By, chosen)
