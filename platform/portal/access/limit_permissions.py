"""Who may set limits, budgets and the prediction cache, and for whom: decided here for pages and API alike.

Operators set them for anybody. A tenant's owners, and its keys that may change things, set them for its projects and
keys; what bounds the tenant as a whole is the platform's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from billing.budgets import status
from billing.budgets.redis_counters import BudgetCounters
from billing.budgets.status import BudgetStatus
from catalogue.models import Model
from portal.access.principal import Principal
from portal.errors import NotPermitted
from tenants import policy_target
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import ApiKey, Budget, CacheSetting, Limit, Membership, Tenant
from tenants.policy_target import PolicyTarget
from tenants.purges import PurgeTarget
from tenants.rls import as_tenant

WHO = "This is set by operators, owners of the tenant, and keys with the scope 'management:write'."
#: For a page, which shows what is held where it can.
TIMEOUT_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNames:
    """Whom a limit or budget is for, as asked: a project's slug or a key's id, and a model's name or nothing."""

    project: str | None = None
    key: UUID | None = None
    model: str = ""


def may_set_any(principal: Principal, tenant: Tenant) -> bool:
    """Say whether this principal may set limits and budgets of the tenant's projects and keys."""
    if principal.is_operator:
        return True
    if principal.user is None:
        return principal.may_manage(tenant.id)
    return Membership.objects.filter(user=principal.user, tenant=tenant, role=Membership.Role.OWNER).exists()


def require_may_set(principal: Principal, tenant: Tenant) -> None:
    """Return if this principal may set what bounds projects and keys, and purge what they stored. Raises NotForYou."""
    if not may_set_any(principal, tenant):
        raise NotPermitted(WHO)


def target_for(principal: Principal, tenant: Tenant, named: TargetNames) -> PolicyTarget:
    """Return whom to set it for. Raises NotForYou, NotFound, NotAllowed."""
    require_may_set(principal, tenant)
    found = policy_target.target(tenant, project=named.project, key=named.key, model_name=named.model)
    _require(principal, found)
    if named.model and not _models_of(tenant).filter(name=named.model).exists():
        raise NotFound("model", named.model)
    return found


def require_may_change(principal: Principal, bound: Limit | Budget | CacheSetting) -> None:
    """Return if this principal may change or remove it. Raises NotForYou."""
    require_may_set(principal, bound.tenant)
    _require(principal, policy_target.target_of(bound))


def limits_of(tenant: Tenant) -> QuerySet[Limit]:
    """Return a tenant's limits, with whom they are for."""
    return Limit.objects.filter(tenant=tenant).select_related("tenant", "project", "key")


def cache_settings_of(tenant: Tenant) -> QuerySet[CacheSetting]:
    """Return what of the prediction cache is otherwise for a tenant's projects and keys."""
    return CacheSetting.objects.filter(tenant=tenant).select_related("tenant", "project", "key")


def budgets_of(tenant: Tenant) -> QuerySet[Budget]:
    """Return a tenant's budgets in force, with whom they are for."""
    return Budget.objects.filter(tenant=tenant, archived_at=None).select_related("tenant", "project", "key")


def budget_statuses_of(tenant: Tenant, budgets: list[Budget]) -> list[BudgetStatus]:
    """Return how these budgets of the tenant stand, read as the tenant."""
    with as_tenant(TenantId(tenant.id)):
        return read_budget_statuses(budgets)


def read_budget_statuses(budgets: list[Budget]) -> list[BudgetStatus]:
    """Return how these budgets stand. What faces a tenant is read as that tenant."""
    return status.statuses(budgets, timezone.now(), _counters())


def models_of(tenant: Tenant) -> list[str]:
    """Return the names of the models that the tenant may call."""
    return list(_models_of(tenant).order_by("name").values_list("name", flat=True))


def purge_target(tenant: Tenant, named: TargetNames, request_id: UUID | None = None) -> PurgeTarget:
    """Return what to purge. Raises NotFound for a key or model that is not the tenant's; retired ones are."""
    key = None
    if named.key is not None:
        key = ApiKey.objects.filter(tenant=tenant, id=named.key).first()
        if key is None:
            raise NotFound("key", str(named.key))
    if named.model and not _models_ever(tenant).filter(name=named.model).exists():
        raise NotFound("model", named.model)
    return PurgeTarget(model_name=named.model, key=key, request_id=request_id)


def _models_of(tenant: Tenant) -> QuerySet[Model]:
    return _models_ever(tenant).filter(archived_at=None)


def _models_ever(tenant: Tenant) -> QuerySet[Model]:
    return Model.objects.filter(Q(visibility=Model.Visibility.PUBLIC) | Q(owner=tenant))


def _require(principal: Principal, found: PolicyTarget) -> None:
    if found.is_tenants_own and not principal.is_operator:
        raise NotPermitted("What bounds a tenant as a whole is set by operators. Name a project or a key.")


@cache
def _counters() -> BudgetCounters:
    return BudgetCounters(settings.REDIS_LIMITS_URL, timeout_seconds=TIMEOUT_SECONDS)
