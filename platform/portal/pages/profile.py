"""The page *Profile* of who is signed in: their name, time zone and language, and what they may do where."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from portal.access.principal import Principal
from portal.forms.profile import ProfileForm
from portal.pages.base import page, show
from tenants import members
from tenants.errors import NotFound


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show and change the person's own name, time zone and language. Nobody sees or changes another person's here."""
    user = principal.user
    if user is None:
        raise NotFound("page", request.path)
    given = request.POST if request.method == "POST" else None
    form = ProfileForm(given, initial={name: getattr(user, name) for name in ProfileForm.base_fields})
    if given is not None and form.is_valid():
        members.change_profile(principal.actor, user, **form.cleaned_data)
        messages.success(request, _("Saved."))
        return redirect("portal:profile")
    roles = members.roles_of(user) if principal.operator_role is None else []
    context = {"form": form, "person": user, "roles": roles}
    status = 400 if form.errors else 200
    return show(request, principal, "portal/profile.html", context, active="profile", status=status)
