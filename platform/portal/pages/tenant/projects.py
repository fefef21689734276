"""The projects of a tenant: create, rename, archive and restore them, and set their cost centres."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods

from portal.access import project_scope
from portal.access.principal import Principal, tenant_for
from portal.access.rights import content_rights, inherited_bounds
from portal.errors import NotPermitted
from portal.formats.table_csv import most
from portal.forms.projects import NewProjectForm
from portal.pages.base import form_action, page, show, submit, unchanged
from tenants import cost_centres, error_text, members, registry
from tenants.content import content_log
from tenants.database.rls import as_tenant
from tenants.errors import TenantError
from tenants.ids import TenantId
from tenants.models import ApiKey, Budget, Limit, Membership, Project, Tenant

MAX_ROWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """A project, how many live keys, limits and budgets are its own, and the developers who are confined to it."""

    project: Project
    keys: int
    limits: int
    budgets: int
    developers: tuple[str, ...]


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
        return gettext("The project %(slug)s was created.") % {"slug": wanted["slug"]}

    if request.method == "POST":
        done = submit(request, form, create, back="portal:projects", slug=slug)
        if done is not None:
            return done
    context = {
        "rows": _rows(request, principal, tenant),
        "form": form,
        "may_change": inherited_bounds.may_change_projects(principal, tenant),
        "may_switch_content_log": content_rights.may_switch(principal, tenant),
        "content_log_default": content_log.DEFAULT_DAYS,
        "content_log_most": content_log.MOST_DAYS,
    }
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
        messages.error(request, unchanged(error.reason))
    except TenantError as error:
        messages.error(request, error_text.words(error))
    else:
        done = (
            gettext("%(name)s is archived: its keys are refused within a second.")
            if archived
            else gettext("%(name)s is active again.")
        )
        messages.success(request, done % {"name": found.name})
    return redirect("portal:projects", slug=tenant.slug)


@form_action("portal:projects")
@page
def rename(request: HttpRequest, principal: Principal, slug: str, project: str) -> HttpResponseBase:
    """Change a project's name."""
    tenant = tenant_for(principal, slug)
    found = project_scope.project_of(principal, tenant, project)
    try:
        inherited_bounds.require_may_change_projects(principal, tenant)
        changed = registry.rename_project(principal.actor, found, request.POST.get("name", ""))
    except NotPermitted as error:
        messages.error(request, unchanged(error.reason))
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    else:
        messages.success(
            request,
            gettext("The project %(slug)s has the name %(name)s.") % {"slug": changed.slug, "name": changed.name},
        )
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
        messages.error(request, unchanged(error.reason))
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    else:
        done = (
            gettext("%(name)s has the cost centre %(code)s.")
            if changed.cost_centre
            else gettext("%(name)s has the cost centre of its tenant.")
        )
        messages.success(request, done % {"name": changed.name, "code": changed.cost_centre})
    return redirect("portal:projects", slug=tenant.slug)


def _rows(request: HttpRequest, principal: Principal, tenant: Tenant) -> list[ProjectRow]:
    """Return the projects, open ones first, with what belongs to each."""
    with as_tenant(TenantId(tenant.id)):
        projects = project_scope.projects_of(principal, tenant).order_by("archived_at", "slug")
        found = list(projects[: most(request, "projects", MAX_ROWS)])
        live = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        keys = _counted(ApiKey.objects.filter(live, tenant=tenant, purpose=ApiKey.Purpose.API, revoked_at=None))
        limits = _counted(Limit.objects.filter(tenant=tenant))
        budgets = _counted(Budget.objects.filter(tenant=tenant, archived_at=None))
    confined = [each for each in members.of(tenant) if each.role == Membership.Role.DEVELOPER and each.project_ids]
    return [
        ProjectRow(
            project=each,
            keys=keys.get(each.id, 0),
            limits=limits.get(each.id, 0),
            budgets=budgets.get(each.id, 0),
            developers=tuple(member.user.username for member in confined if each.id in member.project_ids),
        )
        for each in found
    ]


def _counted(rows: QuerySet[Any]) -> dict[UUID, int]:
    """Return how many of the rows belong to each project."""
    return dict(rows.filter(project__isnull=False).values_list("project_id").annotate(Count("id")).order_by())
