"""The playground: members call models from the browser, with a key that the page gets for 15 minutes."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from portal.access import project_scope
from portal.access.principal import KEY_ROLES, Principal, tenant_for
from portal.access.requests import response_headers
from portal.access.requests.addresses import api_base
from portal.access.rights import key_grants
from portal.errors import NotPermitted
from portal.formats.query_params import posted, text
from portal.pages.base import form_action, page, show
from portal.reporting import tenant_catalogue
from tenants import error_text
from tenants.database.rls import as_tenant
from tenants.errors import TenantError
from tenants.ids import TenantId
from tenants.keys import playground
from tenants.models import Tenant

#: In place of a request's id in an address that the page's script completes.
ANY_REQUEST = "00000000-0000-0000-0000-000000000000"


@require_GET
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Show the playground. The script calls the gateway, so this page alone may."""
    tenant = _tenant(principal, slug)
    base = api_base(request)
    with as_tenant(TenantId(tenant.id)):
        seen = project_scope.projects_of(principal, tenant).filter(archived_at=None).order_by("slug")
        projects = [each for each in seen if principal.may_change_keys_of(each)]
        names = tenant_catalogue.names(tenant_catalogue.visible(tenant, principal).order_by("name"))
    models = [
        each
        for each in tenant_catalogue.read(tenant, names)
        if not each.has_retired and each.capabilities.get("chat") is not False
    ]
    context = {
        "api_base": base,
        "models": models,
        "projects": projects,
        "model": text(request.GET, "model"),
        "project": text(request.GET, "project") or "default",
        "kept": [each.name for each in projects if each.content_log_days],
        "request_url": reverse("portal:request", args=[tenant.slug, ANY_REQUEST]),
        "any_request": ANY_REQUEST,
        "max_body_bytes": settings.MAX_BODY_BYTES,
        "lifetime_minutes": int(playground.LIFETIME.total_seconds() // 60),
    }
    response = show(request, principal, "portal/playground.html", context, active="playground", tenant=tenant)
    response.headers["Content-Security-Policy"] = response_headers.page_policy(request, calls=base.removesuffix("/v1"))
    return response


@form_action("portal:playground")
@page
def issue_key(request: HttpRequest, principal: Principal, slug: str) -> HttpResponse:
    """Return a key of one project for the page's script: its text, and for how long it works."""
    tenant = _tenant(principal, slug)
    user = principal.user
    assert user is not None, "members are users"
    try:
        project = project_scope.project_of(principal, tenant, posted(request, "project"))
        key_grants.require_own_project(principal, project)
        issued = playground.issue(principal.actor, project, user, roles=KEY_ROLES)
    except NotPermitted as error:
        return JsonResponse({"problem": error.reason}, status=403)
    except TenantError as error:
        return JsonResponse({"problem": error_text.words(error)}, status=409)
    return JsonResponse({"key": issued.secret, "lifetime_seconds": int(playground.LIFETIME.total_seconds())})


def _tenant(principal: Principal, slug: str) -> Tenant:
    """Return a tenant for which this principal may call models. Raises NotFound, then PermissionDenied."""
    tenant = tenant_for(principal, slug)
    if not principal.may_play(tenant.id):
        raise PermissionDenied
    return tenant
