"""Who sets a tenant's sign-in provider, and the test of one: its owners and operators, and no key."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse

from notifications.webhooks import addresses
from portal.access.identity import oidc
from portal.access.identity.fetching import ProviderUnavailable
from portal.access.principal import Principal, tenant_for
from portal.errors import NotPermitted
from tenants.database.rls import as_tenant
from tenants.errors import BadName, NotFound
from tenants.identity import providers
from tenants.identity.models import SignInProvider
from tenants.identity.providers import ProviderTerms
from tenants.ids import PLATFORM_SLUG, TenantId
from tenants.models import Tenant

WHO_MAY = "Only owners of the tenant and operators, signed in to the portal, may see and set the sign-in provider."


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """What came of asking the provider. ``problem`` is empty if it answered as it should."""

    problem: str
    authorization_endpoint: str = ""


def tenant_to_set_up(principal: Principal, slug: str) -> Tenant:
    """Return the tenant. Raises NotFound for strangers, NotPermitted for other members and for keys."""
    tenant = tenant_for(principal, slug)
    if not may_set_up(principal, tenant):
        raise NotPermitted(WHO_MAY)
    return tenant


def may_set_up(principal: Principal, tenant: Tenant) -> bool:
    """Return whether this principal sees and sets the tenant's provider; the operators' one is for operators alone."""
    is_allowed = principal.is_operator if tenant.slug == PLATFORM_SLUG else principal.is_owner_of(tenant.id)
    return principal.user is not None and is_allowed


def find(tenant: Tenant) -> SignInProvider:
    """Return the tenant's provider. Raises NotFound."""
    with as_tenant(TenantId(tenant.id)):
        found = providers.of(tenant)
    if found is None:
        raise NotFound("sign-in provider", tenant.slug)
    return found


def put(principal: Principal, tenant: Tenant, terms: ProviderTerms) -> SignInProvider:
    """Set the provider, whose address is one that may be asked. Raises TenantError."""
    try:
        addresses.check_url(terms.issuer)
    except BadName as error:
        raise BadName("issuer", error.name, error.allowed) from None
    if urlsplit(terms.issuer).query:
        raise BadName("issuer", terms.issuer[:100], "an address without ?")
    return providers.put(principal.actor, tenant, terms)


def callback_url(request: HttpRequest, provider: SignInProvider) -> str:
    """Return the address to register at the provider."""
    path = reverse("openid_connect_callback", args=[provider.id])
    scheme = settings.ACCOUNT_DEFAULT_HTTP_PROTOCOL
    return f"{scheme}://{request.get_host()}{path}"


def test(provider: SignInProvider) -> TestResult:
    """Ask the provider for its description and its keys. Takes at most 16 seconds."""
    try:
        found = oidc.discover(provider.issuer)
        oidc.fetch_json(found["jwks_uri"])
    except (oidc.Refused, ProviderUnavailable) as error:
        return TestResult(problem=str(error))
    return TestResult(problem="", authorization_endpoint=str(found["authorization_endpoint"]))
