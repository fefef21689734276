"""Who may set limits, budgets and cache settings, and for what. Pages and API both decide it here.

Operators set them for every target. A tenant's owners and admins, and its keys with the scope ``management:write``,
set them for the tenant's projects and keys; only operators set what applies to the tenant as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeVar
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from billing.budgets import status
from billing.budgets.redis_counters import BudgetCounters
from billing.budgets.status import BudgetStatus
from billing.models import UsageRecord
from catalogue.models import Model
from portal.access import project_scope
from portal.access.principal import Principal
from portal.errors import NotPermitted
from tenants.database.rls import as_tenant
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import Budget, CacheSetting, Limit, Tenant
from tenants.policy import policy_target
from tenants.policy.policy_target import PolicyTarget
from tenants.policy.purges import PurgeTarget

WHO_MAY_SET = "Only operators, owners and admins of the tenant and keys with the scope 'management:write' may set this."
#: Short, because pages show budgets without the held amounts when Redis does not respond.
TIMEOUT_SECONDS = 0.5


Rule = TypeVar("Rule", Limit, Budget, CacheSetting)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNames:
    """The target of a limit, budget or setting as a caller names it; without project and key it is the tenant.

    ``project`` is a slug, ``key`` an id, ``model`` a name or empty for all models together.
    """

    project: str | None = None
    key: UUID | None = None
    model: str = ""


def may_set_any(principal: Principal, tenant: Tenant) -> bool:
    """Return whether this principal may set limits, budgets and cache settings of the tenant's projects and keys."""
    return principal.may_manage(tenant.id) if principal.user is None else principal.administers(tenant.id)


def require_may_set(principal: Principal, tenant: Tenant) -> None:
    """Raise NotPermitted unless ``may_set_any``; the same principals may purge the cache."""
    if not may_set_any(principal, tenant):
        raise NotPermitted(WHO_MAY_SET)


def target_for(principal: Principal, tenant: Tenant, named: TargetNames) -> PolicyTarget:
    """Return the policy target that these names stand for. Raises NotPermitted, NotFound, NotAllowed."""
    require_may_set(principal, tenant)
    if named.project is not None:
        project_scope.project_of(principal, tenant, named.project)
    if named.key is not None:
        project_scope.key_of(principal, tenant, named.key)
    with as_tenant(TenantId(tenant.id)):
        found = policy_target.target(tenant, project=named.project, key=named.key, model_name=named.model)
        is_known = not named.model or _active_models(tenant).filter(name=named.model).exists()
    _require_target(principal, found)
    if not is_known:
        raise NotFound("model", named.model)
    return found


def require_may_change(principal: Principal, rule: Limit | Budget | CacheSetting) -> None:
    """Raise NotPermitted unless this principal may change or remove the rule."""
    require_may_set(principal, rule.tenant)
    _require_target(principal, policy_target.target_of(rule))


def limits_of(principal: Principal, tenant: Tenant) -> QuerySet[Limit]:
    """Return a tenant's limits that this principal sees, with their targets."""
    found = Limit.objects.filter(tenant=tenant).select_related("tenant", "project", "key")
    return project_scope.rules(principal, found)


def cache_settings_of(principal: Principal, tenant: Tenant) -> QuerySet[CacheSetting]:
    """Return the cache settings of a tenant's projects and keys that this principal sees, with their targets."""
    found = CacheSetting.objects.filter(tenant=tenant).select_related("tenant", "project", "key")
    return project_scope.rules(principal, found)


def budgets_of(principal: Principal, tenant: Tenant) -> QuerySet[Budget]:
    """Return a tenant's active budgets that this principal sees, with their targets."""
    found = Budget.objects.filter(tenant=tenant, archived_at=None).select_related("tenant", "project", "key")
    return project_scope.rules(principal, found)


def rule_of(tenant: Tenant, rows: QuerySet[Rule], kind: str, rule_id: UUID) -> Rule:
    """Return one of these limits, budgets or settings of the tenant. Raises NotFound, which calls it a ``kind``."""
    with as_tenant(TenantId(tenant.id)):
        found = rows.filter(id=rule_id).first()
    if found is None:
        raise NotFound(kind, str(rule_id))
    return found


def budget_statuses_of(tenant: Tenant, budgets: list[Budget]) -> list[BudgetStatus]:
    """Return the status of these budgets, read behind row-level security as the tenant."""
    with as_tenant(TenantId(tenant.id)):
        return read_budget_statuses(budgets)


def read_budget_statuses(budgets: list[Budget]) -> list[BudgetStatus]:
    """Return the status of these budgets. Callers read a tenant's budgets within ``as_tenant``."""
    return status.statuses(budgets, timezone.now(), _counters())


def models_of(tenant: Tenant) -> list[str]:
    """Return the names of the models that the tenant may call."""
    with as_tenant(TenantId(tenant.id)):
        return list(_active_models(tenant).order_by("name").values_list("name", flat=True))


def purge_target(
    principal: Principal, tenant: Tenant, named: TargetNames, request_id: UUID | None = None
) -> PurgeTarget:
    """Return what to purge; archived models and revoked keys count too.

    Raises NotFound for a key or model that the tenant does not have. A key of one project purges what the project's
    keys stored: NotPermitted for a model or everything, NotFound for another project's key or request.
    """
    key = project_scope.key_of(principal, tenant, named.key) if named.key is not None else None
    if request_id is not None and principal.project_id is not None:
        own = UsageRecord.objects.filter(tenant_id=tenant.id, project_id=principal.project_id, id=request_id)
        with as_tenant(TenantId(tenant.id)):
            is_own = own.exists()
        if not is_own:
            raise NotFound("request", str(request_id))
    elif key is None and request_id is None:
        project_scope.require_tenant_wide(
            principal, "A key of one project purges one key of it or one request: other projects share the rest."
        )
    with as_tenant(TenantId(tenant.id)):
        is_known = not named.model or _visible_models(tenant).filter(name=named.model).exists()
    if not is_known:
        raise NotFound("model", named.model)
    return PurgeTarget(model_name=named.model, key=key, request_id=request_id)


def _active_models(tenant: Tenant) -> QuerySet[Model]:
    return _visible_models(tenant).filter(archived_at=None)


def _visible_models(tenant: Tenant) -> QuerySet[Model]:
    return Model.objects.filter(
        Q(visibility=Model.Visibility.PUBLIC) | Q(owner=tenant) | Q(shared_with__contains=[tenant.id])
    )


def _require_target(principal: Principal, found: PolicyTarget) -> None:
    if found.is_tenants_own and not principal.is_operator:
        raise NotPermitted("Only operators set this for the tenant as a whole. Name a project or a key.")


@cache
def _counters() -> BudgetCounters:
    return BudgetCounters(settings.REDIS_LIMITS_URL, timeout_seconds=TIMEOUT_SECONDS)
