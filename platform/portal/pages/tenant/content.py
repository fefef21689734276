"""The content log of a project: a request's prompt and answer, and the switch on the page Projects."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.views.decorators.http import require_GET

from portal.access import project_scope
from portal.access.principal import Principal, tenant_for
from portal.access.rights import content_rights
from portal.errors import NotPermitted
from portal.formats.query_params import posted
from portal.pages.base import form_action, page, show, unchanged
from portal.reporting.requests import request_content
from tenants import error_text
from tenants.content import content_log
from tenants.errors import BadName, NotFound, TenantError
from tenants.models import Tenant


@require_GET
@page
def detail(request: HttpRequest, principal: Principal, slug: str, request_id: UUID) -> HttpResponse:
    """Show what a request's client sent and received, to those who may read it; the audit log says that they did."""
    tenant = tenant_for(principal, slug)
    project = request_content.project_of(tenant, request_id)
    if project is None:
        raise NotFound("request", str(request_id))
    content_rights.require_may_read(principal, project)
    context = {"content": request_content.read(principal.actor, project, request_id)}
    return show(request, principal, "portal/request_content.html", context, active="tenant-requests", tenant=tenant)


@form_action("portal:projects")
@page
def set_days(request: HttpRequest, principal: Principal, slug: str, project: str) -> HttpResponse:
    """Switch a project's content log on, for so many days, or off."""
    tenant = tenant_for(principal, slug)
    found = project_scope.project_of(principal, tenant, project)

    def change() -> str:
        content_rights.require_may_switch(principal, tenant)
        days = _days(posted(request, "days"))
        content_log.set_days(principal.actor, found, days)
        if days is None:
            return gettext("%(name)s keeps no prompts and answers. What was kept is deleted.") % {"name": found.name}
        return gettext(
            "%(name)s keeps prompts and answers for %(days)s days. Every gateway follows within a second."
        ) % {"name": found.name, "days": days}

    return _changed(request, tenant, change)


@form_action("portal:projects")
@page
def erase(request: HttpRequest, principal: Principal, slug: str, project: str) -> HttpResponse:
    """Delete what is kept of a project's requests so far."""
    tenant = tenant_for(principal, slug)
    found = project_scope.project_of(principal, tenant, project)

    def change() -> str:
        content_rights.require_may_switch(principal, tenant)
        count = content_log.erase(principal.actor, found)
        return gettext("The prompts and answers of %(count)s requests of %(name)s are deleted.") % {
            "count": f"{count:,}",
            "name": found.name,
        }

    return _changed(request, tenant, change)


def _days(text: str) -> int | None:
    """Return the days that a form asks for; empty: off. Raises BadName."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > 3:
        raise BadName(
            "days", text[:20], f"a whole number from 1 to {content_log.MOST_DAYS}, or nothing to switch it off"
        )
    return int(text)


def _changed(request: HttpRequest, tenant: Tenant, change: Callable[[], str]) -> HttpResponseRedirect:
    try:
        messages.success(request, change())
    except NotPermitted as error:
        messages.error(request, unchanged(error.reason))
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    return redirect("portal:projects", slug=tenant.slug)
