"""Rules on who must have a second factor, as operators set it for themselves."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext_noop as _

from portal.access.principal import Principal
from portal.pages.base import form_action, operator_page
from tenants.identity import second_factor


@form_action("mfa_index")
@operator_page
def set_operators_rule(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Require a second factor of operators, or not any more."""
    required = request.POST.get("required") == "1"
    second_factor.require(principal.actor, None, required)
    done = _("A second factor is required of operators.")
    messages.success(request, done if required else _("A second factor is not required of operators."))
    return redirect("mfa_index")
