"""End one of the person's own sessions."""

from __future__ import annotations

from allauth.usersessions.models import UserSession
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext_noop as _

from portal.access.principal import Principal
from portal.access.requests.addresses import client_address
from portal.pages.base import form_action, page
from tenants.errors import NotFound
from tenants.identity import sign_ins


@form_action("usersessions_list")
@page
def end(request: HttpRequest, principal: Principal, session: int) -> HttpResponseBase:
    """End one session. Nobody ends another person's: it is not found."""
    found = UserSession.objects.filter(id=session, user=principal.user).first()
    if found is None:
        raise NotFound("session", str(session))
    found.end()
    sign_ins.record(principal.user, "sign_in.ended", address=client_address(request))
    messages.success(request, _("The session has ended."))
    return redirect("usersessions_list")
