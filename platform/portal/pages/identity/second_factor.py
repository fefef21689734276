"""Rules on who must have a second factor, as operators set it for themselves."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from portal.access.principal import Principal
from portal.pages.base import form_action, operator_page
from tenants.identity import second_factor


@form_action("mfa_index")
@operator_page
def set_operators_rule(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Require a second factor of operators, or not any more."""
    required = request.POST.get("required") == "1"
    second_factor.require(principal.actor, None, required)
    messages.success(request, f"A second factor is {'' if required else 'not '}required of operators.")
    return redirect("mfa_index")
