"""The projects of a tenant: create, archive and restore them, and set their cost centres."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from portal.access import inherited_bounds, project_scope
from portal.access.principal import Principal, tenant_for
from portal.errors import NotPermitted
from portal.forms.projects import NewProjectForm
from portal.pages.base import form_action, page, show, submit
from tenants import cost_centres, error_text, registry
from tenants.database.rls import as_tenant
from tenants.errors import TenantError
from tenants.ids import TenantId

MAX_ROWS = 200


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """List the projects; create one for those who may."""
    tenant = tenant_for(principal, slug)
    form = NewProjectForm(request.POST if request.method == "POST" else None)

    def create() -> str:
        inherited_bounds.require_may_create_project(principal, tenant)
        wanted = form.cleaned_data
        registry.create_project(principal.actor, tenant, slug=wanted["slug"], name=wanted["name"] or wanted["slug"])
        return f"The project {wanted['slug']} was created."

    if request.method == "POST":
        done = submit(request, form, create, back="portal:projects", slug=slug)
        if done is not None:
            return done
    with as_tenant(TenantId(tenant.id)):
        rows = list(project_scope.projects_of(principal, tenant).order_by("archived_at", "slug")[:MAX_ROWS])
    context = {"rows": rows, "form": form, "may_change": inherited_bounds.may_change_projects(principal, tenant)}
    status = 400 if form.errors else 200
    return show(request, principal, "portal/projects.html", context, active="projects", tenant=tenant, status=status)


@form_action("portal:projects")
@page
def set_archived(request: HttpRequest, principal: Principal, slug: str, project: str) -> HttpResponseBase:
    """Archive or restore a project."""
    tenant = tenant_for(principal, slug)
    found = project_scope.project_of(principal, tenant, project)
    archived = request.POST.get("archived") == "1"
    try:
        inherited_bounds.require_may_archive(principal, found)
        registry.set_project_archived(principal.actor, found, archived)
    except NotPermitted as error:
        messages.error(request, f"Nothing was changed. {error.reason}")
    except TenantError as error:
        messages.error(request, error_text.words(error))
    else:
        done = "archived: its keys are refused within a second" if archived else "active again"
        messages.success(request, f"{found.name} is {done}.")
    return redirect("portal:projects", slug=tenant.slug)


@form_action("portal:projects")
@page
def set_cost_centre(request: HttpRequest, principal: Principal, slug: str, project: str) -> HttpResponseBase:
    """Set a project's own cost centre."""
    tenant = tenant_for(principal, slug)
    found = project_scope.project_of(principal, tenant, project)
    try:
        inherited_bounds.require_may_change_projects(principal, tenant)
        changed = cost_centres.set_of_project(principal.actor, found, request.POST.get("cost_centre", ""))
    except NotPermitted as error:
        messages.error(request, f"Nothing was changed. {error.reason}")
    except TenantError as error:
        messages.error(request, f"Nothing was changed. {error_text.words(error)}")
    else:
        messages.success(request, f"{changed.name} has the cost centre {changed.cost_centre or 'of its tenant'}.")
    return redirect("portal:projects", slug=tenant.slug)
