"""The projects of a tenant: create, archive and restore them."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from portal.access.principal import Principal, tenant_for
from portal.pages.base import form_action, page, show
from tenants import error_text, registry
from tenants.errors import NotFound, TenantError
from tenants.ids import TenantId
from tenants.models import Project, Tenant
from tenants.rls import as_tenant

MAX_ROWS = 200


class ProjectForm(forms.Form):
    """A new project."""

    slug = forms.CharField(max_length=63, help_text="a-z, 0-9 and -, not at either end")
    name = forms.CharField(max_length=200, required=False)


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """List the projects; create one for those who may."""
    tenant = tenant_for(principal, slug)
    form, status = ProjectForm(), 200
    if request.method == "POST":
        _require_manager(request, principal, tenant)
        form = ProjectForm(request.POST)
        if form.is_valid() and _created(principal, tenant, form):
            messages.success(request, f"The project {form.cleaned_data['slug']} was created.")
            return redirect("portal:projects", slug=tenant.slug)
        status = 400
    with as_tenant(TenantId(tenant.id)):
        rows = list(Project.objects.filter(tenant=tenant).order_by("archived_at", "slug")[:MAX_ROWS])
    context = {"rows": rows, "form": form, "may_manage": principal.may_manage(tenant.id)}
    return show(request, principal, "portal/projects.html", context, active="projects", tenant=tenant, status=status)


@form_action("portal:projects")
@page
def set_archived(request: HttpRequest, principal: Principal, slug: str, project: str) -> HttpResponseBase:
    """Archive or restore a project."""
    tenant = tenant_for(principal, slug)
    _require_manager(request, principal, tenant)
    found = Project.objects.filter(tenant=tenant, slug=project).first()
    if found is None:
        raise NotFound("project", project)
    archived = request.POST.get("archived") == "1"
    try:
        registry.set_project_archived(principal.actor, found, archived)
    except TenantError as error:
        messages.error(request, error_text.words(error))
    else:
        done = "archived: its keys are refused within a second" if archived else "active again"
        messages.success(request, f"{found.name} is {done}.")
    return redirect("portal:projects", slug=tenant.slug)


def _require_manager(request: HttpRequest, principal: Principal, tenant: Tenant) -> None:
    if not principal.may_manage(tenant.id):
        raise NotFound("page", request.path)


def _created(principal: Principal, tenant: Tenant, form: ProjectForm) -> bool:
    """Create the project; False if that is refused, which the form then says."""
    slug, name = form.cleaned_data["slug"], form.cleaned_data["name"]
    try:
        registry.create_project(principal.actor, tenant, slug=slug, name=name or slug)
    except TenantError as error:
        form.add_error("slug", error_text.words(error))
    return not form.errors
