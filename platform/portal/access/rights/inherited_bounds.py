"""What a key must not do, so that it does not escape the limits and budgets that others set on it.

The limits and budgets of a key apply to the keys that it creates (``tenants.keys.keys``). Those of its project do not
follow it into other projects, and neither hold for keys that others created. So a key that is bound by what it may not
change creates no project, and gains no key that is bound less.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Q

from portal.access.principal import Principal
from portal.access.rights import key_grants
from portal.errors import NotPermitted
from tenants.keys import keys
from tenants.models import ApiKey, Budget, Limit, Project, Tenant
from tenants.policy import bound_setter

WHO_MAY_CHANGE_PROJECTS = (
    "Only operators, owners and admins of the tenant and keys with the scopes 'management:write' and "
    "'management:tenant' may create, change, archive or restore projects."
)


def may_change_projects(principal: Principal, tenant: Tenant) -> bool:
    """Return whether this principal may create, change, archive and restore projects of the tenant."""
    if principal.key is None:
        return principal.administers(tenant.id)
    return principal.may_manage(tenant.id) and principal.project is None


def require_may_change_projects(principal: Principal, tenant: Tenant) -> None:
    """Raise NotPermitted unless ``may_change_projects``."""
    if not may_change_projects(principal, tenant):
        raise NotPermitted(WHO_MAY_CHANGE_PROJECTS)


def require_may_create_project(principal: Principal, tenant: Tenant) -> None:
    """Raise NotPermitted unless this principal may create a project, in which its own bounds would not hold."""
    require_may_change_projects(principal, tenant)
    for bound in _bounds_on(principal):
        raise NotPermitted(
            f"This key has {_named(bound)}, which would not hold in a new project. Ask an owner of the tenant to "
            "create the project."
        )


def require_may_archive(principal: Principal, project: Project) -> None:
    """Raise NotPermitted unless this principal may archive and restore the project, and so stop its keys."""
    require_may_change_projects(principal, project.tenant)
    key_grants.require_no_stronger_in(principal, project)


def require_kept(principal: Principal, project: Project, key: ApiKey | None = None) -> None:
    """Raise NotPermitted if a key would get a key that some of its own bounds do not hold for.

    ``project``: that of the key to create or rotate. ``key``: the one to rotate; None for a new one.
    """
    for bound in _bounds_on(principal):
        if bound.project_id is not None:
            kept = bound.project_id == project.id
        else:
            kept = key is None or bound.key_id in {key.id, *key.issuers}
        if not kept:
            raise NotPermitted(
                f"This key has {_named(bound)}, which would not hold for the other key. Ask an owner of the tenant to "
                f"{'create' if key is None else 'rotate'} it."
            )


def _bounds_on(principal: Principal) -> Iterable[Limit | Budget]:
    """Yield the limits and budgets of a key, its issuers and its project that the key may not change."""
    own = principal.key
    if own is None:
        return
    on_it = Q(project_id=own.project_id) | Q(key_id__in=[keys.newest(own).id, *own.issuers])
    found: list[Limit | Budget] = [
        *Limit.objects.filter(on_it, tenant_id=own.tenant_id).select_related("project", "key"),
        *Budget.objects.filter(on_it, tenant_id=own.tenant_id, archived_at=None).select_related("project", "key"),
    ]
    yield from (bound for bound in found if not bound_setter.may_change(principal.actor, bound))


def _named(bound: Limit | Budget) -> str:
    kind = "limit" if isinstance(bound, Limit) else "budget"
    target = f"its project {bound.project.slug}" if bound.project is not None else "the key"
    setter = "a key above it" if bound.set_by == "key" else f"an {bound.set_by}"
    return f"a {kind} of {target}, set by {setter}"
