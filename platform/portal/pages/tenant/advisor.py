"""The advisor: what a tenant could change in its prompts and settings to have more of them cached."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from portal.access.principal import Principal, tenant_for
from portal.access.project_scope import project_of, projects_of
from portal.formats import csv_export, query_params
from portal.pages.base import page, show
from portal.reporting.advice import advisor
from portal.reporting.advice.advice_csv import CSV_HEADER, csv_rows
from portal.reporting.advice.advisor import FEWEST_REQUESTS, Report
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Project, Tenant


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the advice for a tenant, or for the project in the query."""
    tenant = tenant_for(principal, slug)
    project = _project(request, principal, tenant)
    csv = reverse("portal:advisor-csv", args=[slug])
    with as_tenant(TenantId(tenant.id)):
        projects = list(projects_of(principal, tenant).filter(archived_at=None).order_by("slug"))
        report = _report(tenant, project)
    context = {
        "report": report,
        "projects": projects,
        "project": project,
        "fewest": FEWEST_REQUESTS,
        "csv_url": f"{csv}?{urlencode({'project': project.slug})}" if project else csv,
    }
    return show(request, principal, "portal/advisor.html", context, active="advisor", tenant=tenant)


@require_GET
@page
def as_csv(request: HttpRequest, principal: Principal, slug: str) -> StreamingHttpResponse:
    """Download the advice."""
    tenant = tenant_for(principal, slug)
    project = _project(request, principal, tenant)
    with as_tenant(TenantId(tenant.id)):
        report = _report(tenant, project)
    return csv_export.attachment(request, f"advice-{tenant.slug}", CSV_HEADER, csv_rows(report.advice))


def _project(request: HttpRequest, principal: Principal, tenant: Tenant) -> Project | None:
    """Return the project in the query; None: all. Raises NotFound."""
    named = query_params.text(request.GET, "project")
    return project_of(principal, tenant, named) if named else None


def _report(tenant: Tenant, project: Project | None) -> Report:
    return advisor.read(tenant, None if project is None else project.id)
