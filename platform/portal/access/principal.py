"""Who looks through a window, and at which tenants: the one place that decides it, for pages and API alike.

A tenant that a principal may not see does not exist for them: the answer is NotFound, never a refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.db.models import Q, QuerySet

from tenants import networks
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Membership, Tenant, User
from tenants.networks import Network

READ = "management:read"
WRITE = "management:write"

#: Roles of a member that may make and revoke keys.
KEY_ROLES = frozenset({Membership.Role.OWNER.value, Membership.Role.DEVELOPER.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Somebody signed in. ``tenants`` is None for an operator, who sees them all."""

    kind: Literal["operator", "member", "key"]
    actor: Actor
    tenants: frozenset[TenantId] | None
    #: Tenants whose projects and keys this principal may change.
    manages: frozenset[TenantId] | None
    #: What a key may do; None for people, whose role decides.
    scopes: frozenset[str] | None = None
    #: Models a key may call; empty, or for people, all that its tenant sees.
    allowed_models: frozenset[str] = frozenset()
    #: Where a key may be used from; empty, or for people, everywhere.
    networks: tuple[Network, ...] = ()
    #: When a key expires; None, also for people, is never.
    expires_at: datetime | None = None
    user: User | None = None

    @property
    def is_operator(self) -> bool:
        """True for somebody who runs the platform."""
        return self.tenants is None

    def may_manage(self, tenant_id: UUID) -> bool:
        """True if this principal may change projects and keys of that tenant."""
        return self.manages is None or TenantId(tenant_id) in self.manages

    def may_read(self) -> bool:
        """False only for a key that was issued without the scope to read."""
        return self.scopes is None or READ in self.scopes


def principal_of_user(user: User) -> Principal:
    """Return what this person sees: everything for staff, else the tenants of their memberships (one query)."""
    actor = Actor(kind="user", name=user.get_username())
    if user.is_staff:
        return Principal(kind="operator", actor=actor, tenants=None, manages=None, user=user)
    roles: Mapping[UUID, str] = dict(
        Membership.objects.filter(user=user)
        .exclude(tenant__state=Tenant.State.ARCHIVED)
        .values_list("tenant_id", "role")
    )
    return Principal(
        kind="member",
        actor=actor,
        tenants=frozenset(TenantId(tenant_id) for tenant_id in roles),
        manages=frozenset(TenantId(tenant_id) for tenant_id, role in roles.items() if role in KEY_ROLES),
        user=user,
    )


def principal_of_key(key: ApiKey) -> Principal:
    """Return what a tenant's key sees: its own tenant, and nothing of another."""
    own = frozenset({TenantId(key.tenant_id)})
    scopes = frozenset(key.scopes)
    return Principal(
        kind="key",
        actor=Actor(kind="key", name=key.public_id),
        tenants=own,
        manages=own if WRITE in scopes else frozenset(),
        scopes=scopes,
        allowed_models=frozenset(key.allowed_models),
        networks=networks.parse(key.allowed_networks),
        expires_at=key.expires_at,
    )


def tenants_of(principal: Principal) -> QuerySet[Tenant]:
    """Return the tenants this principal sees, by slug."""
    every = Tenant.objects.order_by("slug")
    return every if principal.tenants is None else every.filter(id__in=principal.tenants)


def tenant_for(principal: Principal, slug_or_id: str) -> Tenant:
    """Return a tenant by slug or id. Raises NotFound if there is none, or none that this principal sees."""
    lookup = Q(slug=slug_or_id)
    with suppress(ValueError):
        lookup |= Q(id=UUID(slug_or_id))
    found = tenants_of(principal).filter(lookup).first()
    if found is None:
        raise NotFound("tenant", slug_or_id)
    return found
