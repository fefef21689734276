"""Who makes a request, and which tenants they see. Pages and API both decide it here.

A tenant that a principal may not see is reported as NotFound, never as forbidden.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.db.models import Q, QuerySet

from tenants import networks
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.ids import ProjectId, TenantId
from tenants.models import ApiKey, Membership, Project, ScrapeToken, Tenant, User
from tenants.networks import Network

READ = "management:read"
WRITE = "management:write"
TENANT_WIDE = "management:tenant"
#: No key can have it: the scope of a scrape token.
SCRAPE = "scrape"

#: Roles with every right in a tenant, except that only owners change owners and how people sign in.
ADMIN_ROLES = frozenset({Membership.Role.OWNER.value, Membership.Role.ADMIN.value})
#: Roles that may create, change and revoke keys.
KEY_ROLES = ADMIN_ROLES | {Membership.Role.DEVELOPER.value}
#: Roles that see to whom the tenant's invoices are addressed.
BILLING_ROLES = ADMIN_ROLES | {Membership.Role.BILLING.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportView:
    """The tenant as which an operator sees the portal, and until when (``portal.access.support_view``)."""

    tenant_id: TenantId
    tenant_slug: str
    tenant_name: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated user or key. ``tenants`` is None for an operator, who sees all tenants."""

    kind: Literal["operator", "member", "key", "scraper"]
    actor: Actor
    tenants: frozenset[TenantId] | None
    #: Tenants whose projects and keys this principal may change; None for all.
    manages: frozenset[TenantId] | None
    #: Tenants of which this user is an owner; None for all.
    owns: frozenset[TenantId] | None = frozenset()
    #: Tenants of which this user is an owner or admin; None for all.
    administered: frozenset[TenantId] | None = frozenset()
    #: Tenants of which this user is an owner, admin or billing member; None for all.
    bills: frozenset[TenantId] | None = frozenset()
    #: Of a developer who sees some projects only, and may change their keys: the projects' ids, by tenant.
    confined: Mapping[TenantId, frozenset[UUID]] = field(default_factory=dict)
    #: Scopes of a key; None for a user, whose role decides.
    scopes: frozenset[str] | None = None
    #: Models that a key may call; empty for all that its tenant sees, and for users.
    allowed_models: frozenset[str] = frozenset()
    #: Networks that a key may be used from; empty for all, and for users.
    networks: tuple[Network, ...] = ()
    #: When a key expires; None for never, and for users.
    expires_at: datetime | None = None
    user: User | None = None
    #: What an operator may change: see ``operator_rights``. None for everybody else.
    operator_role: str | None = None
    #: Set for an operator who sees the portal as a tenant's owner does, and changes nothing.
    support: SupportView | None = None
    #: The key, if one is used.
    key: ApiKey | None = None

    @property
    def project(self) -> Project | None:
        """The project to which a key is confined; None for a tenant-wide key, and for users."""
        return None if self.key is None or TENANT_WIDE in self.key.scopes else self.key.project

    @property
    def project_id(self) -> ProjectId | None:
        """The id of ``project``."""
        return None if self.project is None else ProjectId(self.project.id)

    @property
    def is_operator(self) -> bool:
        """Whether this is an operator of the platform."""
        return self.tenants is None

    def may_manage(self, tenant_id: UUID) -> bool:
        """Return whether this principal may change projects and keys of that tenant."""
        return self.manages is None or TenantId(tenant_id) in self.manages

    def may_change_keys_of(self, project: Project) -> bool:
        """Return whether this principal may make and change keys of that project, as far as their rights go."""
        confined = self.confined.get(TenantId(project.tenant_id))
        return self.may_manage(project.tenant_id) and (confined is None or project.id in confined)

    def is_confined_in(self, tenant_id: UUID) -> bool:
        """Return whether this is a member of that tenant who sees some of its projects only."""
        return TenantId(tenant_id) in self.confined

    def sees_whole(self, tenant_id: UUID) -> bool:
        """Return whether this principal sees what is of a tenant as a whole, not of some projects only."""
        return self.project is None and not self.is_confined_in(tenant_id)

    def is_owner_of(self, tenant_id: UUID) -> bool:
        """Return whether this is an operator, or an owner of that tenant."""
        return self.owns is None or TenantId(tenant_id) in self.owns

    def administers(self, tenant_id: UUID) -> bool:
        """Return whether this is an operator, or an owner or admin of that tenant."""
        return self.administered is None or TenantId(tenant_id) in self.administered

    def handles_bills_of(self, tenant_id: UUID) -> bool:
        """Return whether this is an operator, or an owner, admin or billing member of that tenant."""
        return self.bills is None or TenantId(tenant_id) in self.bills

    def may_play(self, tenant_id: UUID) -> bool:
        """Return whether this is a member who may call models for that tenant, which pays for it."""
        return self.kind == "member" and self.may_manage(tenant_id)

    def may_find_targets(self) -> bool:
        """Return whether this principal may see what Prometheus scrapes."""
        return self.is_operator or (self.kind == "scraper" and SCRAPE in (self.scopes or ()))

    def may_read(self) -> bool:
        """Return whether this principal may read; false only for a key without the scope ``management:read``."""
        return self.scopes is None or READ in self.scopes


def principal_of_user(user: User) -> Principal:
    """Return the principal of a user: staff see everything, others the tenants of their memberships (one query)."""
    return principals_of_users([user])[user.pk]


def principals_of_users(users: Collection[User]) -> dict[int, Principal]:
    """Return the principals of users by the users' ids (one query)."""
    memberships: dict[int, list[Membership]] = {user.pk: [] for user in users if not user.is_staff}
    if memberships:
        rows = Membership.objects.filter(user__in=memberships).exclude(tenant__state=Tenant.State.ARCHIVED)
        for each in rows:
            memberships[each.user_id].append(each)
    return {user.pk: _principal(user, memberships.get(user.pk, [])) for user in users}


def _principal(user: User, memberships: Sequence[Membership]) -> Principal:
    actor = Actor(kind="user", name=user.get_username(), user=user)
    if user.is_staff:
        return Principal(
            kind="operator",
            actor=actor,
            tenants=None,
            manages=None,
            owns=None,
            administered=None,
            bills=None,
            user=user,
            operator_role=user.operator_role,
        )
    roles: Mapping[UUID, str] = {each.tenant_id: each.role for each in memberships}
    return Principal(
        kind="member",
        actor=actor,
        tenants=frozenset(TenantId(tenant_id) for tenant_id in roles),
        manages=_with_role(roles, KEY_ROLES),
        owns=_with_role(roles, {Membership.Role.OWNER.value}),
        administered=_with_role(roles, ADMIN_ROLES),
        bills=_with_role(roles, BILLING_ROLES),
        confined={
            TenantId(each.tenant_id): frozenset(each.project_ids)
            for each in memberships
            if each.role == Membership.Role.DEVELOPER and each.project_ids
        },
        user=user,
    )


def _with_role(roles: Mapping[UUID, str], wanted: Set[str]) -> frozenset[TenantId]:
    return frozenset(TenantId(tenant_id) for tenant_id, role in roles.items() if role in wanted)


def principal_of_key(key: ApiKey) -> Principal:
    """Return the principal of a key: it sees its own tenant, and only its project there unless it is tenant-wide."""
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
        key=key,
    )


def principal_of_scrape_token(token: ScrapeToken) -> Principal:
    """Return the principal of a scrape token: it sees no tenant, and may neither read nor change anything."""
    return Principal(
        kind="scraper",
        actor=Actor(kind="system", name=f"scrape token {token.public_id}"),
        tenants=frozenset(),
        manages=frozenset(),
        scopes=frozenset({SCRAPE}),
        expires_at=token.expires_at,
    )


def tenants_of(principal: Principal) -> QuerySet[Tenant]:
    """Return the tenants that this principal sees, ordered by slug."""
    every = Tenant.objects.order_by("slug")
    return every if principal.tenants is None else every.filter(id__in=principal.tenants)


def own_tenants(principal: Principal) -> list[Tenant]:
    """Return the tenants that a member or key sees, ordered by slug."""
    return list(tenants_of(principal))


def tenant_for(principal: Principal, slug_or_id: str) -> Tenant:
    """Return a tenant by slug or id. Raises NotFound unless this principal sees one."""
    lookup = Q(slug=slug_or_id)
    with suppress(ValueError):
        lookup |= Q(id=UUID(slug_or_id))
    # PostgreSQL refuses to compare with NUL.
    found = None if "\0" in slug_or_id else tenants_of(principal).filter(lookup).first()
    if found is None:
        raise NotFound("tenant", slug_or_id)
    return found
