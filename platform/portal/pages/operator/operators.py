"""The page *Operators*: who they are, and what each may change."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from portal.access import invitation_mail
from portal.access.principal import Principal
from portal.access.requests import one_time_secrets
from portal.access.rights import operator_rights
from portal.access.rights.operator_rights import AREAS, Area
from portal.formats.query_params import posted, text
from portal.formats.table_csv import most
from portal.forms.invitations import InvitationForm
from portal.pages.base import form_action, operator_page, show, unchanged
from portal.pages.invitation import made_page
from tenants import error_text
from tenants.errors import TenantError
from tenants.identity import operator_sign_in
from tenants.ids import PLATFORM_SLUG
from tenants.models import User
from tenants.people import invitations, operators

MAX_ROWS = 200
MAX_INVITATIONS = 50


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the operators and invitations, and invite somebody. ``?new=`` names the one whose link is shown, once."""
    given = request.POST if request.method == "POST" else None
    form = InvitationForm(given, roles=User.OperatorRole.values, sends=settings.EMAIL_IS_SENT)
    if given is not None and form.is_valid():
        wanted = form.cleaned_data
        try:
            made = invitations.invite(principal.actor, None, wanted["role"], email=wanted.get("email", ""))
            return made_page(request, principal, made, reverse("portal:operators"))
        except TenantError as error:
            form.refuse(error)
    new = text(request.GET, "new") or ""
    secret = one_time_secrets.take(request, new) if new else None
    rows = operators.every().annotate(live_tokens=Count("tokens", filter=Q(tokens__revoked_at=None)))
    context = {
        "form": form,
        "rows": list(rows[: most(request, "operators", MAX_ROWS)]),
        "may_invite": operator_rights.may_change(principal, request.path),
        "new": new,
        "link": invitation_mail.link_of(request, secret) if secret else "",
        "is_sent": settings.EMAIL_IS_SENT,
        "invitations": [
            (each, invitations.state_of(each))
            for each in invitations.of(None)[: most(request, "invitations", MAX_INVITATIONS)]
        ],
        "roles": User.OperatorRole.values,
        "sign_in": operator_sign_in.rules(),
        "has_provider": operators.has_provider(),
        "platform": PLATFORM_SLUG,
        "areas": [
            (role, gettext("everything") if areas == frozenset(Area) else "; ".join(map(gettext, sorted(areas))))
            for role, areas in AREAS.items()
        ],
    }
    status = 400 if form.errors else 200
    response = show(request, principal, "portal/operators.html", context, active="operators", status=status)
    if secret is not None:
        one_time_secrets.delete_cookie(response, new)
    return response


@form_action("portal:operators")
@operator_page
def set_sign_in(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Let operators sign in through their provider only, or also with a password."""
    wanted = posted(request, "provider_only") == "1"
    try:
        operator_sign_in.set_provider_only(principal.actor, wanted)
        done = _("Operators sign in through their provider only.")
        messages.success(request, done if wanted else _("Operators sign in through their provider or a password."))
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    return redirect("portal:operators")


@form_action("portal:operators")
@operator_page
def change(request: HttpRequest, principal: Principal, person: str) -> HttpResponseBase:
    """Change an operator's role, or make the person no operator any more (``role`` empty)."""
    role = posted(request, "role")
    try:
        if role:
            operators.put(principal.actor, operators.existing(person).username, role)
            messages.success(request, gettext("%(person)s has the role %(role)s.") % {"person": person, "role": role})
        else:
            operators.remove(principal.actor, person)
            messages.success(request, gettext("%(person)s is not an operator any more.") % {"person": person})
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    return redirect("portal:operators")


@form_action("portal:operators")
@operator_page
def revoke(request: HttpRequest, principal: Principal, invitation: UUID) -> HttpResponseBase:
    """Revoke an invitation."""
    try:
        invitations.revoke(principal.actor, None, invitation)
        messages.success(request, _("The invitation is revoked: its link invites nobody any more."))
    except TenantError as error:
        messages.error(request, error_text.words(error))
    return redirect("portal:operators")
