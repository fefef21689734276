"""The page of a tenant's sign-in provider, for its owners and for operators."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as _
from django.views.decorators.http import require_http_methods

from portal.access.identity import provider_setup
from portal.access.principal import Principal
from portal.errors import NotPermitted
from portal.forms.sign_in_provider import ProviderForm
from portal.pages.base import form_action, page, show, submit, unchanged
from tenants import error_text
from tenants.errors import NotFound, TenantError
from tenants.identity import providers, second_factor
from tenants.models import Tenant


@require_http_methods(["GET", "POST"])
@page
def index(request: HttpRequest, principal: Principal, slug: str) -> HttpResponseBase:
    """Show and set the provider."""
    tenant = _tenant(principal, slug)
    try:
        provider = provider_setup.find(tenant)
    except NotFound:
        provider = None
    form = ProviderForm(
        request.POST if request.method == "POST" else None, provider=provider, roles=providers.roles_in(tenant)
    )

    def save() -> str:
        provider_setup.put(principal, tenant, form.terms())
        return _("Saved. Test it, then sign in through it in another browser before you rely on it.")

    if request.method == "POST":
        done = submit(request, form, save, back="portal:sign-in-provider", slug=slug)
        if done is not None:
            return done
    context = {
        "provider": provider,
        "form": form,
        "is_factor_required": second_factor.is_required(tenant),
        "callback": provider_setup.callback_url(request, provider) if provider else "",
        "entrance": request.build_absolute_uri(reverse("tenant_login", args=[slug])),
    }
    status = 400 if form.errors else 200
    return show(
        request, principal, "portal/sign_in_provider.html", context, active="sign-in", tenant=tenant, status=status
    )


@form_action("portal:sign-in-provider")
@page
def act(request: HttpRequest, principal: Principal, slug: str, verb: str) -> HttpResponseBase:
    """Test or remove the provider, or say whether members need a second factor."""
    tenant = _tenant(principal, slug)
    if verb not in {"test", "remove", "factor"}:
        raise NotFound("page", request.path)
    try:
        if verb == "factor":
            required = request.POST.get("required") == "1"
            second_factor.require(principal.actor, tenant, required)
            done = _("A second factor is required of members.")
            messages.success(request, done if required else _("A second factor is not required of members."))
        elif verb == "remove":
            providers.remove(principal.actor, tenant)
            messages.success(
                request, _("Removed. Those who signed in through it are signed out, and no members any more.")
            )
        elif problem := provider_setup.test(provider_setup.find(tenant)).problem:
            messages.error(request, gettext("The test failed: %(problem)s.") % {"problem": problem})
        else:
            messages.success(request, _("The provider answers, and its description and keys are in order."))
    except TenantError as error:
        messages.error(request, unchanged(error_text.words(error)))
    return redirect("portal:sign-in-provider", slug=slug)


def _tenant(principal: Principal, slug: str) -> Tenant:
    try:
        return provider_setup.tenant_to_set_up(principal, slug)
    except NotPermitted:
        raise NotFound("page", slug) from None
