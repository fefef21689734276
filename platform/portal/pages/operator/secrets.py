"""The secrets with which nodes fetch models: set, used by which models, removed. No value is ever shown."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods

from portal.access.principal import Principal
from portal.forms.secrets import SecretForm
from portal.pages.base import form_action, operator_page, show
from tenants.errors import TenantError
from workers.errors import WorkerError
from workers.fleet import error_text
from workers.weights import secrets


@require_http_methods(["GET", "POST"])
@operator_page
def index(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the secrets, and set one."""
    form = SecretForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            secrets.store(principal.actor, form.cleaned_data["name"], form.cleaned_data["value"])
        except TenantError as error:
            form.refuse(error)
        else:
            messages.success(
                request,
                gettext("%(name)s is set. Fetches that were refused begin again.")
                % {"name": form.cleaned_data["name"]},
            )
            return redirect("portal:secrets")
    context = {"form": form, "rows": secrets.listed()}
    status = 400 if form.errors else 200
    return show(request, principal, "portal/secrets.html", context, active="secrets", status=status)


@form_action("portal:secrets")
@operator_page
def remove(request: HttpRequest, principal: Principal, secret: str) -> HttpResponseBase:
    """Remove a secret that no model uses."""
    try:
        secrets.remove(principal.actor, secret)
        messages.success(request, gettext("%(secret)s is removed.") % {"secret": secret})
    except WorkerError as error:
        messages.error(request, gettext("Nothing was removed: %(reason)s.") % {"reason": error_text.words(error)})
    return redirect("portal:secrets")
