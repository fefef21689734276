"""What a snapshot consists of, read from the database: rows of keys, and the rules of their tenants.

Keys are read by id, tenants' rules by tenant, both in pages: converting one large result would keep the GIL, and with
it a gateway's event loop, for its whole length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import msgspec
from django.db.models import QuerySet
from django.utils import timezone

from tenants.caller_limits import PURGES_HOLD_SECONDS, BudgetLine, LimitLine, Period, Purges, Scope
from tenants.ids import first_id_at
from tenants.models import ApiKey, Budget, CachePurge, CacheSetting, Limit, Project, Tenant, TenantPolicy
from tenants.policy.cache_settings import CacheOverrides, overrides_of
from tenants.registry import POLICY_FIELDS, Policy

#: How long a gateway says that a key was revoked or has expired, instead of that it is unknown. Rotations take less.
REMEMBERED = timedelta(days=31)
#: Keys of one query: 4 ms of conversion.
KEYS_PER_PAGE = 500
#: Tenants of one query. Each has up to ``caps.RULES`` rows of each kind.
TENANTS_PER_PAGE = 50

#: Target of a limit, budget or setting: (project, key); both are None for the tenant's own.
Target = tuple[UUID | None, UUID | None]


class KeyRow(msgspec.Struct, frozen=True, gc=False):
    """One key as stored. A struct without garbage collection: a hundred thousand would lengthen each collection."""

    id: UUID
    public_id: str
    tenant_id: UUID
    project_id: UUID
    rotated_from_id: UUID | None
    secret_hmac: bytes
    pepper_version: int
    scopes: tuple[str, ...]
    allowed_models: tuple[str, ...]
    allowed_networks: tuple[str, ...]
    #: Unix seconds; None never expires.
    expires_at: float | None
    revoked: bool
    #: The keys that created it, directly or not.
    issuers: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """What applies to all keys of a tenant, and to single ones."""

    tenant_id: UUID
    state: str
    trust_group: str
    policy: Policy | None
    archived_projects: frozenset[UUID]
    limits: Mapping[Target, tuple[LimitLine, ...]]
    budgets: Mapping[Target, tuple[BudgetLine, ...]]
    settings: Mapping[Target, CacheOverrides]
    purges: Purges
    #: Regions in which its requests may run; empty: all.
    allowed_regions: frozenset[str] = frozenset()
    #: Its requests are refused because it has not paid.
    payment_overdue: bool = False
    #: Projects whose prompts and answers are kept.
    logged_projects: frozenset[UUID] = frozenset()
    #: Keys with a limit, a budget or a setting of their own, by id.
    bound_keys: tuple[UUID, ...] = field(init=False, compare=False, repr=False)
    #: Callers made of these rules (``tenants.snapshot.snapshot``), by public id, each with the row that it was made of.
    callers: dict[str, tuple[KeyRow, Any]] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        targets = {*self.limits, *self.budgets, *self.settings}
        object.__setattr__(self, "bound_keys", tuple(sorted(key for _, key in targets if key is not None)))


def read_keys(key_ids: Iterable[UUID]) -> list[KeyRow]:
    """Return these keys, without those that gateways need not know."""
    pages = _pages(list(key_ids), KEYS_PER_PAGE)
    return [row for page in pages for row in _rows(_known_keys().filter(id__in=page))]


def key_pages() -> Iterator[list[KeyRow]]:
    """Yield all keys that gateways know, by id, one query for each page."""
    keys = _known_keys().order_by("id")
    page = _rows(keys[:KEYS_PER_PAGE])
    while page:
        yield page
        page = _rows(keys.filter(id__gt=page[-1].id)[:KEYS_PER_PAGE])


def tenant_pages() -> Iterator[list[TenantRules]]:
    """Yield the rules of all tenants, by id, in pages."""
    tenants = Tenant.objects.order_by("id")
    page = _rules(tenants[:TENANTS_PER_PAGE])
    while page:
        yield page
        page = _rules(tenants.filter(id__gt=page[-1].tenant_id)[:TENANTS_PER_PAGE])


def read_tenants(tenant_ids: Iterable[UUID]) -> list[TenantRules]:
    """Return the rules of these tenants."""
    pages = _pages(list(tenant_ids), TENANTS_PER_PAGE)
    return [rules for page in pages for rules in _rules(Tenant.objects.filter(id__in=page))]


def _pages(ids: list[UUID], size: int) -> Iterator[list[UUID]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


def _known_keys() -> QuerySet[ApiKey]:
    """Return the keys that are valid or were until REMEMBERED ago."""
    dead_since = timezone.now() - REMEMBERED
    return ApiKey.objects.exclude(revoked_at__lt=dead_since).exclude(expires_at__lt=dead_since)


def _rows(keys: QuerySet[ApiKey]) -> list[KeyRow]:
    columns = (
        *("id", "public_id", "tenant_id", "project_id", "rotated_from_id", "secret_hmac", "pepper_version"),
        *("scopes", "allowed_models", "allowed_networks", "expires_at", "revoked_at", "issuers"),
    )
    return [_row(values) for values in keys.values_list(*columns)]


def _row(values: tuple[Any, ...]) -> KeyRow:
    key_id, public_id, tenant, project, predecessor, hmac, version, *rights = values
    scopes, models, allowed, expires_at, revoked, issuers = rights
    return KeyRow(
        id=key_id,
        public_id=public_id,
        tenant_id=tenant,
        project_id=project,
        rotated_from_id=predecessor,
        secret_hmac=bytes(hmac),
        pepper_version=version,
        scopes=tuple(scopes),
        allowed_models=tuple(models),
        allowed_networks=tuple(allowed),
        expires_at=None if expires_at is None else expires_at.timestamp(),
        revoked=revoked is not None,
        issuers=tuple(issuers),
    )


def _rules(selected: QuerySet[Tenant]) -> list[TenantRules]:
    tenants = {tenant.id: tenant for tenant in selected}
    if not tenants:
        return []
    owned = {"tenant_id__in": list(tenants)}
    latest = TenantPolicy.objects.filter(**owned).order_by("tenant_id", "-version").distinct("tenant_id")
    policies = {
        row["tenant_id"]: Policy(
            **{name: row[name] for name in POLICY_FIELDS} | {"session_headers": tuple(row["session_headers"])}
        )
        for row in latest.values("tenant_id", *POLICY_FIELDS)
    }
    projects = _by_tenant(Project.objects.filter(**owned).exclude(archived_at=None, content_log_days=None))
    limits = _by_tenant(Limit.objects.filter(**owned).order_by("id"))
    hard = Budget.objects.filter(**owned, archived_at=None, action=Budget.Action.BLOCK)
    budgets = _by_tenant(hard.order_by("id"))
    settings = _by_tenant(CacheSetting.objects.filter(**owned))
    purges = _purges(tenants)
    return [
        TenantRules(
            tenant_id=tenant.id,
            state=tenant.state,
            trust_group=tenant.trust_group,
            policy=policies.get(tenant.id),
            archived_projects=frozenset(
                each.id for each in projects.get(tenant.id, ()) if each.archived_at is not None
            ),
            limits=_by_target((_target(each), _limit(each)) for each in limits.get(tenant.id, ())),
            budgets=_by_target(_budgets(tenant, budgets.get(tenant.id, ()))),
            settings={_target(each): overrides_of(each) for each in settings.get(tenant.id, ())},
            purges=purges.get(tenant.id, _NONE_PURGED),
            allowed_regions=frozenset(tenant.allowed_regions),
            payment_overdue=tenant.payment_overdue_since is not None,
            logged_projects=frozenset(
                each.id for each in projects.get(tenant.id, ()) if each.content_log_days is not None
            ),
        )
        for tenant in tenants.values()
    ]


def _by_tenant(rows: QuerySet[Any]) -> dict[UUID, list[Any]]:
    found: dict[UUID, list[Any]] = {}
    for row in rows:
        found.setdefault(row.tenant_id, []).append(row)
    return found


def _by_target(lines: Iterable[tuple[Target, Any]]) -> dict[Target, tuple[Any, ...]]:
    found: dict[Target, tuple[Any, ...]] = {}
    for target, line in lines:
        found[target] = (*found.get(target, ()), line)
    return found


def _target(bound: Limit | Budget | CacheSetting) -> Target:
    return bound.project_id, bound.key_id


def _scope(bound: Limit | Budget) -> Scope:
    if bound.key_id is not None:
        return "key"
    return "tenant" if bound.project_id is None else "project"


def _limit(limit: Limit) -> LimitLine:
    return LimitLine(
        id=limit.id,
        scope=_scope(limit),
        model_name=limit.model_name,
        requests_per_minute=limit.requests_per_minute,
        tokens_per_minute=limit.tokens_per_minute,
        concurrent_requests=limit.concurrent_requests,
    )


def _budgets(tenant: Tenant, budgets: Iterable[Budget]) -> Iterator[tuple[Target, BudgetLine]]:
    """Yield the hard budgets of a tenant, its prepaid balance first, each with its target."""
    if tenant.prepaid_counter_id is not None:
        balance = BudgetLine(
            id=tenant.prepaid_counter_id,
            scope="tenant",
            model_name="",
            period="total",
            limit_pico=0,
            currency=tenant.currency,
            timezone=tenant.billing_timezone,
            is_prepaid=True,
        )
        yield (None, None), balance
    for budget in budgets:
        yield _target(budget), _budget(budget, tenant)


def _budget(budget: Budget, tenant: Tenant) -> BudgetLine:
    return BudgetLine(
        id=budget.id,
        scope=_scope(budget),
        model_name=budget.model_name,
        period=cast(Period, budget.period),
        limit_pico=budget.limit_pico,
        currency=budget.currency,
        timezone=tenant.billing_timezone,
        earlier_names=tuple(budget.earlier_names),
    )


_NONE_PURGED = Purges()


def _purges(tenant_ids: Collection[UUID]) -> Mapping[UUID, Purges]:
    """Return the purges of each tenant that can still apply to a stored response.

    The database returns the newest of each kind, regardless of commit order.
    """
    since = first_id_at(timezone.now() - timedelta(seconds=PURGES_HOLD_SECONDS))
    kind = ("tenant_id", "model_name", "key_id", "request_id")
    found: dict[UUID, list[CachePurge]] = {}
    held = CachePurge.objects.filter(id__gte=since, tenant_id__in=list(tenant_ids))
    for purge in held.order_by(*kind, "-id").distinct(*kind):
        found.setdefault(purge.tenant_id, []).append(purge)
    return {tenant: _of_one(purges) for tenant, purges in found.items()}


def _of_one(purges: Iterable[CachePurge]) -> Purges:
    """Return a tenant's purges, given the newest of each kind. Requests covered by a purge of all are left out."""
    everything: UUID | None = None
    models: dict[str, UUID] = {}
    keys: dict[UUID, UUID] = {}
    requests: dict[UUID, UUID] = {}
    for purge in purges:
        if purge.request_id is not None:
            requests[purge.request_id] = purge.id
        elif purge.key_id is not None:
            keys[purge.key_id] = purge.id
        elif purge.model_name:
            models[purge.model_name] = purge.id
        else:
            everything = purge.id
    if everything is not None:
        requests = {request: purge for request, purge in requests.items() if request > everything}
    return Purges(everything=everything, models=models, keys=keys, requests=requests)
