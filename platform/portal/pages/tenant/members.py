"""The page *Members* of a tenant: who they are, what they may do, and who is invited."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from portal.access import invitation_mail, project_scope
from portal.access.principal import Principal, tenant_for
from portal.access.requests import one_time_secrets
from portal.access.rights import member_rights, operator_rights
from portal.errors import NotPermitted
from portal.formats.query_params import posted, text
from portal.formats.table_csv import most
from portal.forms.invitations import InvitationForm
from portal.pages.base import form_action, page, show, unchanged
from portal.pages.invitation import made_page
from portal.reporting import member_names
from tenants import error_text, members
from tenants.database.rls import as_tenant
from tenants.errors import BadName, TenantError
from tenants.ids import TenantId
from tenants.models import ApiKey, Membership, Project, Tenant
from tenants.people import invitations

MAX_ROWS = 500
MAX_INVITATIONS = 50


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """List members and invitations, and invite somebody. ``?new=`` names the invitation whose link is shown, once."""
    tenant = tenant_for(principal, slug)
    member_rights.require(principal, tenant)
    roles = [each for each in Membership.Role.values if each != "owner" or principal.is_owner_of(tenant.id)]
    given = request.POST if request.method == "POST" else None
    context = _context(request, principal, tenant)
    first = "viewer" if context["members"] else "owner"
    form = InvitationForm(given, roles=roles, sends=settings.EMAIL_IS_SENT, role=first)
    if given is not None and form.is_valid():
        made = _invited(request, principal, tenant, form)
        if made is not None:
            return made
    new = text(request.GET, "new") or ""
    secret = one_time_secrets.take(request, new) if new else None
    context |= {
        "form": form,
        "may_invite": tenant.state != Tenant.State.ARCHIVED
        and principal.support is None
        and operator_rights.may_change(principal, request.path),
        "roles": roles,
        "new": new,
        "link": invitation_mail.link_of(request, secret) if secret else "",
        "is_sent": settings.EMAIL_IS_SENT,
    }
    status = 400 if form.errors else 200
    response = show(request, principal, "portal/members.html", context, active="members", tenant=tenant, status=status)
    if secret is not None:
        one_time_secrets.delete_cookie(response, new)
    return response


@form_action("portal:members")
@page
def change(request: HttpRequest, principal: Principal, slug: str, person: str) -> HttpResponseBase:
    """Change a member's role and projects, or remove the member."""
    tenant = tenant_for(principal, slug)
    action = posted(request, "action")
    try:
        if action == "remove":
            member_rights.remove(principal, tenant, person)
            done = gettext(
                "%(person)s is not a member any more. The keys that they made still work: revoke those on Keys."
            ) % {"person": person}
        elif action == "projects":
            names = ", ".join(each.slug for each in _confined(request, principal, tenant, person))
            done = gettext("%(person)s makes and changes keys of %(projects)s.") % {
                "person": person,
                "projects": names or gettext("all projects"),
            }
        else:
            members.one(tenant, person)
            role = member_rights.put(principal, tenant, person, posted(request, "role")).role
            done = gettext("%(person)s has the role %(role)s.") % {"person": person, "role": role}
        messages.success(request, done)
    except NotPermitted as error:
        messages.error(request, unchanged(error.reason))
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    if principal.is_operator or person != principal.actor.name:
        return redirect("portal:members", slug=tenant.slug)
    return redirect("portal:overview")  # who changed themselves may have left


@form_action("portal:members")
@page
def revoke(request: HttpRequest, principal: Principal, slug: str, invitation: UUID) -> HttpResponseBase:
    """Revoke an invitation."""
    tenant = tenant_for(principal, slug)
    member_rights.require(principal, tenant)
    try:
        invitations.revoke(principal.actor, tenant, invitation)
        messages.success(request, _("The invitation is revoked: its link invites nobody any more."))
    except TenantError as error:
        messages.error(request, error_text.words(error))
    return redirect("portal:members", slug=tenant.slug)


def _confined(request: HttpRequest, principal: Principal, tenant: Tenant, person: str) -> list[Project]:
    """Confine a member to the projects that a form has, or to none if it says so. Raises BadName if it has none."""
    chosen = [] if posted(request, "scope") == "all" else request.POST.getlist("projects")
    projects = [project_scope.project_of(principal, tenant, each) for each in chosen]
    if not projects and posted(request, "scope") != "all":
        raise BadName("choice of projects", "", "all projects, or at least one of them")
    member_rights.confine(principal, tenant, person, projects)
    return projects


def _invited(request: HttpRequest, principal: Principal, tenant: Tenant, form: InvitationForm) -> HttpResponse | None:
    """Invite whom a valid form asks for; None if that is refused, which the form then says."""
    wanted = form.cleaned_data
    try:
        made = member_rights.invite(principal, tenant, wanted["role"], wanted.get("email", ""))
    except NotPermitted as error:
        form.add_error("role", error.reason)
        return None
    except TenantError as error:
        form.refuse(error)
        return None
    return made_page(request, principal, made, reverse("portal:members", args=[tenant.slug]))


def _context(request: HttpRequest, principal: Principal, tenant: Tenant) -> dict[str, Any]:
    found = members.of(tenant)[: most(request, "members", MAX_ROWS)]
    with as_tenant(TenantId(tenant.id)):
        confining = {each for member in found for each in member.project_ids}
        shown = Q(archived_at=None) | Q(id__in=confining)
        projects = list(Project.objects.filter(shown, tenant=tenant).order_by("slug"))
        made = ApiKey.objects.filter(
            tenant=tenant, purpose=ApiKey.Purpose.API, revoked_at=None, created_by__isnull=False
        )
        keys = dict(made.values_list("created_by").annotate(Count("id")).order_by())
        made_links = list(invitations.of(tenant)[: most(request, "invitations", MAX_INVITATIONS)])
    return {
        "members": [(each, keys.get(each.user_id, 0)) for each in found],
        "projects": projects,
        "invitations": [(each, invitations.state_of(each)) for each in member_names.with_makers(made_links, principal)],
    }
