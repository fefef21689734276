"""The sign-in provider of a tenant: set, read, removed. Every change is audited, without the secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction

from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed, NotFound
from tenants.identity import people
from tenants.identity.models import SignInProvider
from tenants.ids import PLATFORM_SLUG
from tenants.isolation import peppered
from tenants.models import Membership, Tenant, User

MOST_ROLES = 100
LONGEST = {"issuer": 500, "client id": 190, "client secret": 500, "groups claim": 100, "group": 200}
_PURPOSE = b"hearth sign-in provider secret 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTerms:
    """What an owner sets. ``client_secret`` None: the stored one stays."""

    issuer: str
    client_id: str
    client_secret: str | None
    groups_claim: str = "groups"
    #: Pairs of group and role; the first group that a person has decides.
    roles: Sequence[tuple[str, str]] = ()
    #: Empty: people without such a group do not become members.
    default_role: str = ""


def roles_in(tenant: Tenant) -> list[str]:
    """Return the roles that groups of its provider can have. People of the tenant ``platform`` are operators."""
    return list((User.OperatorRole if tenant.slug == PLATFORM_SLUG else Membership.Role).values)


def of(tenant: Tenant) -> SignInProvider | None:
    """Return the tenant's provider."""
    return SignInProvider.objects.filter(tenant=tenant).select_related("tenant").first()


def usable(provider_id: UUID) -> SignInProvider | None:
    """Return a provider of an active tenant."""
    found = SignInProvider.objects.filter(id=provider_id, tenant__state=Tenant.State.ACTIVE)
    return found.select_related("tenant").first()


def usable_of(slug: str) -> SignInProvider | None:
    """Return the provider of the active tenant of that slug."""
    found = SignInProvider.objects.filter(tenant__slug=slug, tenant__state=Tenant.State.ACTIVE)
    return found.select_related("tenant").first()


def secret_of(provider: SignInProvider) -> str:
    """Return the client secret. Raises ``peppered.Unreadable``."""
    return peppered.unseal(_PURPOSE, provider.id, bytes(provider.secret_sealed), provider.pepper_version)


@transaction.atomic
def put(actor: Actor, tenant: Tenant, terms: ProviderTerms) -> SignInProvider:
    """Set the tenant's provider. With another issuer, those who came from the one before are no members any more.

    The issuer's address is checked by the caller. Raises BadName, and NotAllowed for an archived tenant.
    """
    _check(terms, roles_in(tenant))
    locked = Tenant.objects.select_for_update().get(id=tenant.id)
    if locked.state == Tenant.State.ARCHIVED:
        raise NotAllowed("tenant", locked.slug, locked.state)
    found = of(locked)
    before = None if found is None else described(found)
    secret = terms.client_secret
    if found is not None and found.issuer != terms.issuer:
        # Otherwise the new issuer could name people of the one before.
        if not secret:
            raise BadName("client secret", "", "the secret of the new issuer")
        _remove(actor, found)
        found = None
    if found is None and not secret:
        raise BadName("client secret", "", "the secret that the provider gave to Hearth")
    row = found or SignInProvider(tenant=locked)
    row.issuer, row.client_id, row.groups_claim = terms.issuer, terms.client_id, terms.groups_claim
    row.roles, row.default_role = [list(pair) for pair in terms.roles], terms.default_role
    if secret:
        row.secret_sealed, row.pepper_version = peppered.seal(_PURPOSE, row.id, secret)
    row.save()
    after = described(row) | ({"secret": "set"} if secret else {})
    audit.record(actor, "sign_in_provider.set", ("tenant", locked.id), tenant=locked, before=before, after=after)
    return row


@transaction.atomic
def remove(actor: Actor, tenant: Tenant) -> None:
    """Remove the tenant's provider; those who came from it are no members any more. Raises NotFound."""
    found = SignInProvider.objects.select_for_update().filter(tenant=tenant).select_related("tenant").first()
    if found is None:
        raise NotFound("sign-in provider", tenant.slug)
    before = described(found)
    _remove(actor, found)
    audit.record(actor, "sign_in_provider.removed", ("tenant", tenant.id), tenant=tenant, before=before)


def described(provider: SignInProvider) -> dict[str, Any]:
    """Return what everybody who may see the provider reads of it."""
    return {
        "issuer": provider.issuer,
        "client_id": provider.client_id,
        "groups_claim": provider.groups_claim,
        "roles": [{"group": group, "role": role} for group, role in provider.roles],
        "default_role": provider.default_role or None,
    }


def role_for(provider: SignInProvider, claims: Mapping[str, Any]) -> str | None:
    """Return the role that a person's groups give them; None: they are no member.

    A claim is a list of texts or one text; anything else, and whatever else is in the list, counts as no group.
    """
    claim = claims.get(provider.groups_claim)
    groups = {each for each in (claim if isinstance(claim, list) else [claim]) if isinstance(each, str)}
    for group, role in provider.roles:
        if group in groups:
            return str(role)
    return provider.default_role or None


def _remove(actor: Actor, provider: SignInProvider) -> None:
    people.leave_all(actor, provider)
    provider.delete()


def _check(terms: ProviderTerms, roles: Sequence[str]) -> None:
    texts = {"issuer": terms.issuer, "client id": terms.client_id, "groups claim": terms.groups_claim}
    for kind, given in (texts | {"client secret": terms.client_secret or "-"}).items():
        if not 0 < len(given) <= LONGEST[kind] or not given.isprintable():
            shown = "" if kind == "client secret" else given[:100]
            raise BadName(kind, shown, f"1 to {LONGEST[kind]} printable characters")
    if terms.default_role and terms.default_role not in roles:
        raise BadName("default role", terms.default_role[:100], f"{' | '.join(roles)}, or none")
    if len(terms.roles) > MOST_ROLES:
        raise BadName("roles", f"{len(terms.roles)} groups", f"at most {MOST_ROLES}")
    for group, role in terms.roles:
        if not 0 < len(group) <= LONGEST["group"] or "\0" in group:
            raise BadName("roles", group[:100], f"groups of 1 to {LONGEST['group']} characters")
        if role not in roles:
            raise BadName("roles", role[:100], " | ".join(roles))
