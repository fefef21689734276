"""Sign-in through a tenant's provider."""

from __future__ import annotations

from uuid import UUID

from allauth.account.utils import get_next_redirect_url
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_safe

from portal.access.identity import oidc, social
from portal.access.identity.fetching import ProviderUnavailable
from portal.formats.query_params import text
from tenants.identity import providers
from tenants.identity.errors import SignInRefused


@require_safe
def choose(request: HttpRequest) -> HttpResponseBase:
    """Lead to the page of the tenant that was typed."""
    slug = (text(request.GET, "tenant") or "").strip().lower()
    if not slug or not slug.replace("-", "").replace("_", "").isalnum() or not slug.isascii():
        return _unknown(request)
    following = get_next_redirect_url(request)
    query = f"?{urlencode({'next': following})}" if following else ""
    return redirect(f"{reverse('tenant_login', args=[slug])}{query}")


@require_safe
def entrance(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Show through whom the tenant's people sign in. A tenant without a provider looks like one that does not exist."""
    row = providers.usable_of(slug)
    if row is None:
        return _unknown(request)
    following = get_next_redirect_url(request)
    context = {"provider": row, "query": f"?{urlencode({'next': following})}" if following else ""}
    return render(request, "socialaccount/login.html", context)


@require_safe
def begin(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Send the browser to the provider, from the page of the tenant only. A form would not get there: the policy of
    pages lets forms lead to this origin alone.
    """
    row = providers.usable_of(slug)
    if row is None or request.headers.get("Sec-Fetch-Site") in {"cross-site", "same-site"}:
        return redirect("tenant_login", slug)
    try:
        return oidc.provider_of(request, row).begin(request, get_next_redirect_url(request))
    except (oidc.Refused, ProviderUnavailable, OAuth2Error, SignInRefused) as error:
        return social.refused(request, row, error.reason if isinstance(error, SignInRefused) else str(error))


@require_safe
def complete(request: HttpRequest, provider_id: UUID) -> HttpResponseBase:
    """Complete a sign-in that the provider sends back."""
    row = providers.usable(provider_id)
    if row is None:
        return _unknown(request)
    try:
        adapter = oidc.TenantOAuth2Adapter(request, oidc.provider_of(request, row))
    except SignInRefused as refusal:
        return social.refused(request, row, refusal.reason)
    response: HttpResponse = oidc.Callback.adapter_view(adapter)(request)
    return response


def _unknown(request: HttpRequest) -> HttpResponse:
    return render(request, "socialaccount/login.html", {"provider": None}, status=404)
