"""The list of requests, and the timeline of one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args
from uuid import UUID

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from billing.ledger.rollups import is_error, is_refused
from billing.ledger.usage_rows import UsageRow
from billing.models import UsageRecord
from billing.reports import usage
from billing.reports.usage import Errors, Filters
from portal.access.principal import Principal, tenant_for, tenants_of
from portal.errors import BadQuery
from portal.formats import csv_export, query_params
from portal.pages.base import operator_page, page, period_of, show, with_query
from portal.pages.usage import presets
from portal.reporting import routing_decisions
from portal.reporting.request_timeline import Step, steps
from portal.reporting.requests_csv import CSV_HEADER, csv_rows
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Tenant

PAGE_ROWS = 50
STATES = tuple(UsageRecord.State.values)
ERROR_FILTERS = (("all", "any error"), ("platform", "platform's errors"), ("client", "refused requests"))
CACHE_RESULTS = ("hit", "miss", "coalesced", "bypass")
FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row: the request, its tenant's slug, and the link to its page."""

    request: UsageRow
    slug: str
    link: str

    @property
    def failed(self) -> bool:
        """Whether the platform failed the request."""
        return is_error(self.request.state, self.request.http_status)

    @property
    def refused(self) -> bool:
        """Whether the request was refused for a reason that its client can change."""
        return is_refused(self.request.state, self.request.http_status)


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the requests of all tenants, or of the tenant in the query."""
    slugs = dict(tenants_of(principal).values_list("id", "slug"))
    named = query_params.text(request.GET, "tenant")
    tenant_id = TenantId(tenant_for(principal, named).id) if named else None
    found = usage.requests(tenant_id, before_id=_before_id(request), limit=PAGE_ROWS + 1, filters=_filters(request))
    return _show(request, principal, found, slugs, tenant=None)


@require_GET
@page
def of_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """List one tenant's requests."""
    tenant = tenant_for(principal, slug)
    filters = _filters(request)
    with as_tenant(TenantId(tenant.id)):
        found = usage.requests(TenantId(tenant.id), before_id=_before_id(request), limit=PAGE_ROWS + 1, filters=filters)
    return _show(request, principal, found, {tenant.id: tenant.slug}, tenant=tenant)


@require_GET
@page
def of_tenant_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download one tenant's requests of the period."""
    tenant = tenant_for(principal, slug)
    rows = csv_rows(TenantId(tenant.id), _filters(request))
    return csv_export.attachment(request, f"requests-{tenant.slug}", CSV_HEADER, rows)


@require_GET
@page
def detail(request: HttpRequest, principal: Principal, slug: str, request_id: UUID) -> HttpResponse:
    """Show the timeline of one request of this tenant; another tenant's request is not found."""
    tenant = tenant_for(principal, slug)
    with as_tenant(TenantId(tenant.id)):
        found = usage.request(TenantId(tenant.id), request_id)
        key = ApiKey.objects.filter(tenant=tenant, id=found.key_id).select_related("project").first() if found else None
    if found is None:
        raise NotFound("request", str(request_id))
    timeline: Sequence[Step] = steps(found, shows_replica=principal.is_operator)
    decisions = routing_decisions.of_request(request_id) if principal.is_operator else ()
    context = {"found": found, "key": key, "steps": timeline, "decisions": decisions}
    return show(request, principal, "portal/request.html", context, active="tenant-requests", tenant=tenant)


def _filters(request: HttpRequest) -> Filters:
    """Read the filters from the query. Raises BadQuery."""
    period = period_of(request)
    state = _one_of(request, "state", STATES)
    cache = _one_of(request, "cache", CACHE_RESULTS)
    return Filters(
        start=period.start,
        end=period.end,
        model_name=query_params.text(request.GET, "model"),
        state=state,
        cache_result=cache,
        finish_reason=query_params.text(request.GET, "finish"),
        errors=_errors(request),
        tag=query_params.tag(request.GET),
        request_id=query_params.text(request.GET, "id"),
    )


def _errors(request: HttpRequest) -> Errors | None:
    """Read whose errors to list; ``1``, of earlier links, means all."""
    asked = _one_of(request, "errors", ("1", *get_args(Errors)))
    return cast("Errors | None", "all" if asked == "1" else asked)


def _one_of(request: HttpRequest, name: str, allowed: Sequence[str]) -> str | None:
    value = request.GET.get(name) or None
    if value is not None and value not in allowed:
        raise BadQuery(name, value, f"one of {', '.join(allowed)}")
    return value


def _before_id(request: HttpRequest) -> UUID | None:
    after = request.GET.get("after")
    try:
        return UUID(after) if after else None
    except ValueError:
        raise BadQuery("after", after or "", "the link 'Older' of the previous page") from None


def _show(
    request: HttpRequest,
    principal: Principal,
    found: Sequence[UsageRow],
    slugs: dict[UUID, str],
    *,
    tenant: Tenant | None,
) -> HttpResponse:
    shown = found[:PAGE_ROWS]
    csv = reverse("portal:tenant-requests-csv", args=[tenant.slug]) if tenant else ""
    context = {
        "rows": [_row(each, slugs) for each in shown],
        "older": with_query(request, after=str(shown[-1].id)) if len(found) > PAGE_ROWS else None,
        "newest": with_query(request, after=None) if request.GET.get("after") else None,
        "period": period_of(request),
        "periods": presets(request),
        "chosen": request.GET,
        "states": STATES,
        "cache_results": CACHE_RESULTS,
        "finish_reasons": FINISH_REASONS,
        "error_filters": ERROR_FILTERS,
        "csv_url": f"{csv}?{request.GET.urlencode()}" if csv else "",
    }
    active = "tenant-requests" if tenant else "requests"
    return show(request, principal, "portal/requests.html", context, active=active, tenant=tenant)


def _row(found: UsageRow, slugs: dict[UUID, str]) -> Row:
    slug = slugs.get(found.tenant_id, "")
    link = reverse("portal:request", args=[slug, found.id]) if slug else ""
    return Row(request=found, slug=slug, link=link)
