"""Who sees and changes webhooks: operators theirs and everybody's; of a tenant, its owners, admins and billing members.

Keys need the scope ``management:tenant``, because events are about the whole tenant, and a URL may contain a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from portal.access.principal import READ, Principal, tenant_for
from portal.errors import NotPermitted
from tenants.database.rls import as_tenant
from tenants.ids import TenantId
from tenants.models import Tenant

WHO_MAY_READ = (
    "Only operators, owners, admins and billing members of the tenant and keys with the scope 'management:tenant' may "
    "see webhooks and events."
)
WHO_MAY_CHANGE = (
    "Only operators, owners, admins and billing members of the tenant and keys with the scopes 'management:write' and "
    "'management:tenant' may change webhooks."
)
OPERATORS_ONLY = "Only operators may see and change the platform's webhooks."


def may_read(principal: Principal, tenant: Tenant) -> bool:
    """Return whether this principal sees the tenant's webhooks and events."""
    if principal.key is None:
        return principal.handles_bills_of(tenant.id)
    return principal.project is None and READ in (principal.scopes or ())


def may_change(principal: Principal, tenant: Tenant) -> bool:
    """Return whether this principal changes the tenant's webhooks."""
    return may_read(principal, tenant) and (principal.key is None or principal.may_manage(tenant.id))


def owner_to_read(principal: Principal, tenant: str | None) -> Tenant | None:
    """Return the tenant, or None for the operators' own webhooks. Raises NotFound, NotPermitted."""
    if tenant is None:
        _require_operator(principal)
        return None
    found = tenant_for(principal, tenant)
    if not may_read(principal, found):
        raise NotPermitted(WHO_MAY_READ)
    return found


def owner_to_change(principal: Principal, tenant: str | None) -> Tenant | None:
    """Return the same for a change. Raises NotFound, NotPermitted."""
    if tenant is None:
        _require_operator(principal)
        return None
    found = tenant_for(principal, tenant)
    if not may_change(principal, found):
        raise NotPermitted(WHO_MAY_CHANGE)
    return found


@contextmanager
def reading(owner: Tenant | None) -> Iterator[None]:
    """Run a read behind row-level security, unless it is about the operators' own webhooks."""
    if owner is None:
        yield
        return
    with as_tenant(TenantId(owner.id)):
        yield


def _require_operator(principal: Principal) -> None:
    if not principal.is_operator:
        raise NotPermitted(OPERATORS_ONLY)
