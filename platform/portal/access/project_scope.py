"""What a key sees of its tenant: its own project, unless it has the scope ``management:tenant``.

Users see all of their tenants. What a key may not see is reported as NotFound, never as forbidden.
"""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from django.db.models import Q, QuerySet

from portal.access.principal import TENANT_WIDE, Principal
from portal.errors import NotPermitted
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, AuditEntry, Budget, CacheSetting, Limit, Project, Tenant

Rule = TypeVar("Rule", Limit, Budget, CacheSetting)


def projects_of(principal: Principal, tenant: Tenant) -> QuerySet[Project]:
    """Return the tenant's projects that this principal sees."""
    found = Project.objects.filter(tenant=tenant).select_related("tenant")
    return found if principal.project_id is None else found.filter(id=principal.project_id)


def keys_of(principal: Principal, tenant: Tenant) -> QuerySet[ApiKey]:
    """Return the tenant's keys that this principal sees."""
    found = ApiKey.objects.filter(tenant=tenant).select_related("project", "tenant")
    return found if principal.project_id is None else found.filter(project_id=principal.project_id)


def project_of(principal: Principal, tenant: Tenant, slug: str) -> Project:
    """Return a project by slug. Raises NotFound, also for another tenant's project."""
    with as_tenant(TenantId(tenant.id)):
        found = projects_of(principal, tenant).filter(slug=slug).first()
    if found is None:
        raise NotFound("project", slug)
    return found


def key_of(principal: Principal, tenant: Tenant, key_id: UUID) -> ApiKey:
    """Return a key by id. Raises NotFound, also for another tenant's key."""
    with as_tenant(TenantId(tenant.id)):
        found = keys_of(principal, tenant).filter(id=key_id).first()
    if found is None:
        raise NotFound("key", str(key_id))
    return found


def rules(principal: Principal, found: QuerySet[Rule]) -> QuerySet[Rule]:
    """Return those of the limits, budgets or cache settings that this principal sees.

    A key of one project sees those of the project and its keys: a tenant's budget would show what others spend.
    """
    own = principal.project_id
    return found if own is None else found.filter(Q(project_id=own) | Q(key__project_id=own))


def audit_entries(principal: Principal, found: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
    """Return those of a tenant's entries that this principal sees.

    A key of one project sees the changes of the project, its keys, and their limits, budgets and cache.
    """
    project = principal.project
    if project is None:
        return found
    own = ApiKey.objects.filter(project=project)
    ids, public_ids = ([str(each) for each in own.values_list(name, flat=True)] for name in ("id", "public_id"))
    seen = Q(object_kind="project", object_id=str(project.id)) | Q(object_kind="key", object_id__in=ids)
    for side in ("before", "after"):
        seen |= Q(**{f"{side}__project": project.slug}) | Q(**{f"{side}__key__in": public_ids})
    return found.filter(seen)


def require_tenant_wide(principal: Principal, what: str) -> None:
    """Raise NotPermitted for a key of one project. ``what`` begins the sentence that says why."""
    if principal.project_id is not None:
        raise NotPermitted(f"{what} Use a key with the scope {TENANT_WIDE!r}, or ask an owner of the tenant.")
