"""Who reads prompts and answers that a project keeps, and who decides that it does. Pages and API both ask here.

People of the tenant alone: no operator, whatever their role, not in the support view either, and no key.
"""

from __future__ import annotations

from portal.access.principal import Principal
from portal.errors import NotPermitted
from tenants.models import Project, Tenant

WHO_MAY_READ = (
    "Only owners, admins and developers of the tenant read prompts and answers, signed in themselves: no operator, no "
    "key, and no developer who is confined to other projects."
)
WHO_MAY_SWITCH = (
    "Only owners and admins of the tenant, signed in themselves, switch a content log on or off, or erase it: no "
    "operator and no key."
)


def may_read(principal: Principal, project: Project) -> bool:
    """Return whether this principal may read prompts and answers of the project's requests."""
    return _is_own_member(principal) and principal.may_change_keys_of(project)


def require_may_read(principal: Principal, project: Project) -> None:
    """Raise NotPermitted unless ``may_read``."""
    if not may_read(principal, project):
        raise NotPermitted(WHO_MAY_READ)


def may_switch(principal: Principal, tenant: Tenant) -> bool:
    """Return whether this principal may switch the content logs of the tenant's projects, and erase them."""
    return _is_own_member(principal) and principal.administers(tenant.id)


def require_may_switch(principal: Principal, tenant: Tenant) -> None:
    """Raise NotPermitted unless ``may_switch``."""
    if not may_switch(principal, tenant):
        raise NotPermitted(WHO_MAY_SWITCH)


def _is_own_member(principal: Principal) -> bool:
    return principal.kind == "member" and principal.support is None
