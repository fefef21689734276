"""The list of requests, and the timeline of one request."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from uuid import UUID

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_GET

from billing.ledger.rollups import is_error, is_refused
from billing.ledger.usage_rows import UsageRow
from billing.reports import usage
from caching.bypass import switch_of
from portal.access.principal import Principal, tenant_for, tenants_of
from portal.access.rights import content_rights
from portal.documentation.documents import errors
from portal.errors import BadQuery
from portal.formats import csv_export
from portal.formats.table_csv import most
from portal.pages.base import chosen_tenant, operator_page, page, period_of, show, with_query
from portal.pages.usage import presets
from portal.reporting import periods
from portal.reporting.advice import same_prompt
from portal.reporting.advice.wording import switch_label
from portal.reporting.periods import Period
from portal.reporting.requests import error_advice, request_content, request_filters, routing_decisions
from portal.reporting.requests.request_timeline import Step, attempts_of, steps
from portal.reporting.requests.requests_csv import CSV_HEADER, csv_rows
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Project, Tenant

PAGE_ROWS = 50
#: The filters that are typed.
TEXT_FILTERS: tuple[dict[str, str], ...] = tuple(
    {"name": name, "placeholder": placeholder, "label": label, "meaning": meaning}
    for name, placeholder, label, meaning in (
        (
            "id",
            _("request id"),
            _("Request id"),
            _("Its id, whatever its time, or the X-Request-ID that its client sent."),
        ),
        ("key", _("any key"), _("Key"), _("A key's name, or what is visible of it: hk_…")),
        ("project", _("any project"), _("Project"), _("A project's slug.")),
        ("member", _("any member"), _("Member"), _("Who made the key, or used the playground.")),
        ("end_user", _("any end user"), _("End user"), _("safety_identifier or user of the request's body.")),
        ("tag", _("tag, as app=search"), _("Tag"), _("A pair of the request's metadata, as name=value.")),
        ("model", _("any model"), _("Model"), _("A model's name.")),
        ("code", _("any error code"), _("Error code"), _("The code of the error that the client received.")),
        ("status", _("any HTTP status"), _("HTTP status"), _("The status that the client received, such as 429.")),
    )
)
#: The one that only the list of all tenants has.
TENANT_FILTER = {
    "name": "tenant",
    "placeholder": _("any tenant"),
    "label": _("Tenant"),
    "meaning": _("The slug of a tenant."),
}
ERROR_FILTERS = (("all", _("any error")), ("platform", _("platform's errors")), ("client", _("refused requests")))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A page of requests, and one more if an older page follows; or why the filters cannot be used."""

    period: Period
    tenant: Tenant | None
    rows: Sequence[UsageRow] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFilter:
    """One filter that is typed: its parameter, and the words around it."""

    name: str
    placeholder: str
    label: str
    meaning: str
    value: str = ""


@require_GET
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the requests of all tenants, or of the tenant in the query."""
    every = list(tenants_of(principal).only("id", "slug", "name"))
    chosen = chosen_tenant(request, principal)
    return _show(request, principal, _found(request, principal, chosen), every, tenant=None)


@require_GET
@page
def of_tenant(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """List one tenant's requests."""
    tenant = tenant_for(principal, slug)
    found = _found(request, principal, tenant)
    return _show(request, principal, found, [tenant], tenant=tenant)


@require_GET
@page
def of_tenant_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download one tenant's requests of the period."""
    tenant = tenant_for(principal, slug)
    filters = request_filters.read(
        request.GET, period_of(request, tenant=tenant), TenantId(tenant.id), knows_replicas=principal.is_operator
    )
    rows = csv_rows(TenantId(tenant.id), filters)
    return csv_export.attachment(request, f"requests-{tenant.slug}", CSV_HEADER, rows)


@require_GET
@page
def detail(request: HttpRequest, principal: Principal, slug: str, request_id: UUID) -> HttpResponse:
    """Show the timeline of one request of this tenant; another tenant's request is not found."""
    tenant = tenant_for(principal, slug)
    with as_tenant(TenantId(tenant.id)):
        found = usage.request(TenantId(tenant.id), request_id)
        key = ApiKey.objects.filter(tenant=tenant, id=found.key_id).select_related("project").first() if found else None
        attempts = attempts_of(TenantId(tenant.id), found) if found else ()
        project = Project.objects.filter(tenant=tenant, id=found.project_id).first() if found else None
        content_until = request_content.kept_until(project, request_id)
        is_run = found is not None and found.cache_result in {"miss", "bypass"}
        repeated = same_prompt.before(tenant, request_id) if is_run else None
    if found is None:
        raise NotFound("request", str(request_id))
    timeline: Sequence[Step] = steps(found, shows_replica=principal.is_operator, attempts=attempts)
    decisions = routing_decisions.of_request(request_id) if principal.is_operator else ()
    context = {
        "found": found,
        "key": key,
        "steps": timeline,
        "decisions": decisions,
        "explained": found.error_code in errors(),
        "advice": error_advice.of(found.error_code, found.http_status, slug),
        "repeated": repeated,
        "bypass_label": switch_label(switch_of(found.cache_reason)) if found.cache_result == "bypass" else "",
        "near": periods.around(found.started_at).query,
        "shows_replica": principal.is_operator,
        "content_until": content_until,
        "project": project,
        "may_read_content": project is not None and content_rights.may_read(principal, project),
    }
    return show(request, principal, "portal/request.html", context, active="tenant-requests", tenant=tenant)


def _found(request: HttpRequest, principal: Principal, tenant: Tenant | None) -> Found:
    """Return the page's requests, behind the tenant's row-level security; or what is wrong with the filters."""
    period, tenant_id = period_of(request, tenant=tenant), None if tenant is None else TenantId(tenant.id)
    try:
        filters = request_filters.read(request.GET, period, tenant_id, knows_replicas=principal.is_operator)
        before = _before_id(request)
    except BadQuery as error:
        return Found(
            period=period,
            tenant=tenant,
            problem=gettext("%(parameter)s=%(value)s is not valid. Use %(allowed)s.")
            % {"parameter": error.param, "value": repr(error.value), "allowed": error.allowed},
        )
    with nullcontext() if tenant_id is None else as_tenant(tenant_id):
        rows = usage.requests(
            tenant_id, before_id=before, limit=most(request, "requests", PAGE_ROWS) + 1, filters=filters
        )
    return Found(period=period, tenant=tenant, rows=rows)


def _before_id(request: HttpRequest) -> UUID | None:
    after = request.GET.get("after")
    try:
        return UUID(after) if after else None
    except ValueError:
        raise BadQuery("after", after or "", "the link 'Older' of the previous page") from None


def _show(
    request: HttpRequest,
    principal: Principal,
    found: Found,
    tenants: Sequence[Tenant],
    *,
    tenant: Tenant | None,
) -> HttpResponse:
    count, period = most(request, "requests", PAGE_ROWS), found.period
    shown = found.rows[:count]
    slugs = {each.id: each.slug for each in tenants}
    csv = reverse("portal:tenant-requests-csv", args=[tenant.slug]) if tenant else ""
    context = {
        "rows": [_row(each, slugs) for each in shown],
        "older": with_query(request, after=str(shown[-1].id)) if len(found.rows) > count else None,
        "newest": with_query(request, after=None) if request.GET.get("after") else None,
        "period": period,
        "periods": presets(request, period, found.tenant),
        "chosen": request.GET,
        "problem": found.problem,
        "filtered": [name for name in (*request_filters.NAMES, "tenant") if request.GET.get(name)],
        "states": request_filters.STATES,
        "cache_results": request_filters.CACHE_RESULTS,
        "finish_reasons": request_filters.FINISH_REASONS,
        "route_reasons": request_filters.ROUTE_REASONS,
        "texts": [
            TextFilter(**named, value=request.GET.get(named["name"], ""))
            for named in (TEXT_FILTERS if tenant else (TENANT_FILTER, *TEXT_FILTERS))
        ],
        "clear": f"?{period.query}",
        "named_tenant": None if tenant else found.tenant,
        "tenant_choices": () if tenant else tenants,
        "error_filters": ERROR_FILTERS,
        "csv_url": f"{csv}?{request.GET.urlencode()}" if csv else "",
    }
    active = "tenant-requests" if tenant else "requests"
    status = 400 if found.problem else 200
    return show(request, principal, "portal/requests.html", context, active=active, tenant=tenant, status=status)


def _row(found: UsageRow, slugs: dict[UUID, str]) -> Row:
    slug = slugs.get(found.tenant_id, "")
    link = reverse("portal:request", args=[slug, found.id]) if slug else ""
    return Row(request=found, slug=slug, link=link)
