"""Who sees and changes a tenant's members and invitations. Pages and API both decide it here.

Operators with the role admin, and the tenant's owners and admins; only owners and operators decide about owners. Keys
never do: people are let in by people.
"""

from __future__ import annotations

from portal.access.principal import Principal
from portal.errors import NotPermitted
from tenants import members
from tenants.models import Membership, Project, Tenant
from tenants.people import invitations
from tenants.people.invitations import Invited

WHO_MAY = "Only operators, and owners and admins of the tenant, see and change its members and invitations."
ABOUT_OWNERS = "Only owners of the tenant and operators decide who is an owner."
OWNER = Membership.Role.OWNER.value


def may_change(principal: Principal, tenant: Tenant) -> bool:
    """Return whether this principal sees and changes members and invitations."""
    return principal.user is not None and principal.administers(tenant.id)


def require(principal: Principal, tenant: Tenant) -> None:
    """Raise NotPermitted unless ``may_change``."""
    if not may_change(principal, tenant):
        raise NotPermitted(WHO_MAY)


def put(principal: Principal, tenant: Tenant, person: str, role: str) -> Membership:
    """Give a person a role. Only operators make somebody a member without an invitation.

    Raises NotPermitted, NotFound, BadName, NotAllowed.
    """
    require(principal, tenant)
    if not principal.is_operator:
        _require_may_decide(principal, tenant, members.one(tenant, person).role, role)
    return members.put(principal.actor, tenant, person, role)


def remove(principal: Principal, tenant: Tenant, person: str) -> None:
    """Remove a member. Raises NotPermitted, NotFound, NotAllowed."""
    require(principal, tenant)
    _require_may_decide(principal, tenant, members.one(tenant, person).role)
    members.remove(principal.actor, tenant, person)


def confine(principal: Principal, tenant: Tenant, person: str, projects: list[Project]) -> Membership:
    """Confine a member's keys to projects; none: to no project. Raises NotPermitted, NotFound."""
    require(principal, tenant)
    return members.confine(principal.actor, tenant, person, projects)


def invite(principal: Principal, tenant: Tenant, role: str, email: str) -> Invited:
    """Make an invitation. Raises NotPermitted, BadName, NotAllowed."""
    require(principal, tenant)
    _require_may_decide(principal, tenant, role)
    return invitations.invite(principal.actor, tenant, role, email=email)


def _require_may_decide(principal: Principal, tenant: Tenant, *roles: str) -> None:
    if OWNER in roles and not principal.is_owner_of(tenant.id):
        raise NotPermitted(ABOUT_OWNERS)
