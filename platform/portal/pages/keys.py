"""A tenant's keys: listed, made (the secret is shown once), revoked. Changing one: ``portal.pages.key``."""

from __future__ import annotations

from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from portal.access.viewer import Viewer, tenant_for
from portal.formats.query_params import posted
from portal.pages.base import page, show
from tenants import keys
from tenants.errors import NotAllowed, NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Project, Tenant
from tenants.rls import as_tenant

#: What a member may give a key, as the form offers it.
CHOICES = {
    "inference": keys.DEFAULT_SCOPES,
    "inference-only": ("inference", "cache:read", "cache:write"),
    "store-nothing": ("inference", "cache:read", "management:read"),
    "no-cache": ("inference", "management:read"),
    "manage": keys.SCOPES,
}
LONGEST_NAME = 200
MOST_SHOWN = 500


@require_GET
@page
def index(request: HttpRequest, viewer: Viewer, slug: str) -> HttpResponse:
    """List the keys, and offer to make one to whoever may."""
    return show_keys(request, viewer, tenant_for(viewer, slug))


@require_POST
@page
def create(request: HttpRequest, viewer: Viewer, slug: str) -> HttpResponse:
    """Make a key and show its secret in this one answer. Nothing keeps it: not a session, not a redirect."""
    tenant = managed(viewer, slug)
    name = posted(request, "name")
    scopes = CHOICES.get(request.POST.get("scopes", "inference"))
    project = Project.objects.filter(tenant=tenant, slug=posted(request, "project") or "default").first()
    if not name or len(name) > LONGEST_NAME or scopes is None or project is None:
        problem = "Give the key a name of at most 200 characters, and choose a project of this tenant."
        return show_keys(request, viewer, tenant, problem=problem, status=400)
    try:
        issued = keys.issue(viewer.actor, project, name=name, scopes=scopes, created_by=viewer.user)
    except NotAllowed as error:
        return show_keys(request, viewer, tenant, problem=f"The project {error.name} is {error.state}.", status=409)
    return show_keys(request, viewer, tenant, issued=issued, status=201)


@require_POST
@page
def revoke(request: HttpRequest, viewer: Viewer, slug: str, key: UUID) -> HttpResponseRedirect:
    """Revoke a key of this tenant, and of no other."""
    tenant = managed(viewer, slug)
    found = ApiKey.objects.filter(tenant=tenant, id=key).first()
    if found is None:
        raise NotFound("key", str(key))
    keys.revoke(viewer.actor, found)
    messages.success(request, f"{found.name} is revoked: every gateway refuses it within a second.")
    return redirect("portal:keys", slug=tenant.slug)


def managed(viewer: Viewer, slug: str) -> Tenant:
    """Return a tenant whose keys this viewer may change. Raises NotFound, then PermissionDenied."""
    tenant = tenant_for(viewer, slug)
    if not viewer.may_manage(tenant.id):
        raise PermissionDenied
    return tenant


def show_keys(
    request: HttpRequest,
    viewer: Viewer,
    tenant: Tenant,
    *,
    issued: keys.IssuedKey | None = None,
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    """Show the page of keys, with the one that was just issued or what went wrong."""
    with as_tenant(TenantId(tenant.id)):
        rows = ApiKey.objects.filter(tenant=tenant).select_related("project", "rotated_from", "rotated_to")
        listed = list(rows.order_by("-id")[:MOST_SHOWN])
        projects = list(Project.objects.filter(tenant=tenant, archived_at=None).order_by("slug"))
    now = timezone.now()
    over = [key for key in listed if key.revoked_at or (key.expires_at and key.expires_at <= now)]
    context = {
        "live": [key for key in listed if key not in over],
        "over": over,
        "projects": projects,
        "issued": issued,
        "problem": problem,
        "may_manage": viewer.may_manage(tenant.id),
    }
    return show(request, viewer, "portal/keys.html", context, active="keys", tenant=tenant, status=status)
