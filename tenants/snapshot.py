"""All keys and their tenants' policies in memory, so that authentication needs no database query.

A snapshot is immutable; a process replaces it when the policy epoch has changed (``tenants.policy_epoch``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from tenants import key_format, networks, policy_epoch
from tenants.caller_limits import (
    LONGEST_TTL_SECONDS,
    PURGES_HOLD_SECONDS,
    BudgetLine,
    CacheMode,
    CacheTerms,
    LimitLine,
    Period,
    Purges,
    Scope,
)
from tenants.errors import BadName, KeyRefusal, KeyRefused
from tenants.ids import KeyId, ProjectId, TenantId, first_id_at
from tenants.models import ApiKey, Budget, CachePurge, CacheSetting, Limit, Tenant, TenantPolicy
from tenants.networks import Network
from tenants.registry import POLICY_FIELDS, Policy

#: How long a gateway says that a key was revoked or has expired, instead of that it is unknown. Rotations take less.
REMEMBERED = timedelta(days=31)

T = TypeVar("T")

#: Target of a limit, budget or setting: (tenant, project, key); project and key are None for the tenant's own.
Target = tuple[UUID, UUID | None, UUID | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a request, and what it may do."""

    tenant_id: TenantId
    tenant_slug: str
    project_id: ProjectId
    key_id: KeyId
    key_public_id: str
    scopes: frozenset[str]
    #: Empty: every model that the tenant sees.
    allowed_models: frozenset[str]
    trust_group: str
    policy: Policy
    #: Those of its tenant, its project and the key itself, for all models.
    limits: tuple[LimitLine, ...] = ()
    budgets: tuple[BudgetLine, ...] = ()
    cache: CacheTerms = field(default_factory=CacheTerms)
    #: Networks from which it may be used; empty: all addresses.
    networks: tuple[Network, ...] = ()
    #: Memoised values of :meth:`derived`; dropped with the snapshot.
    _derived: dict[tuple[Any, ...], Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def derived(self, make: Callable[..., T], *names: str) -> T:
        """Return ``make(self, *names)``, memoised. Never pass names that a client chooses: the memo is unbounded."""
        name = (make, *names)
        found: T | None = self._derived.get(name)
        if found is None:
            found = self._derived[name] = make(self, *names)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredKey:
    secret_hmac: bytes
    pepper_version: int
    #: Unix seconds; None never expires.
    expires_at: float | None
    refusal: KeyRefusal | None
    caller: Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All keys at one epoch."""

    epoch: int
    keys: Mapping[str, _StoredKey]
    #: Keys whose secret was verified, by a digest of their text. A client cannot choose how a digest begins, so the
    #: time of a lookup reveals nothing. At most one entry per key.
    _verified: dict[bytes, _StoredKey] = field(init=False, default_factory=dict, compare=False, repr=False)

    def authenticate(self, text: str) -> Caller:
        """Return the caller of a key's text. Raises KeyRefused; an ``unknown`` key may be newer than the snapshot."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        stored = self._verified.get(digest)
        if stored is None:
            stored = self._verified[digest] = self._verify(text)
        return _admitted(stored)

    def caller(self, public_id: str) -> Caller:
        """Return the caller of a key that was verified earlier. Raises KeyRefused if the key is no longer valid."""
        stored = self.keys.get(public_id)
        if stored is None:
            raise KeyRefused("unknown")
        return _admitted(stored)

    def _verify(self, text: str) -> _StoredKey:
        credential = key_format.parse(text)
        if credential is None or credential.prefix != "hk":
            raise KeyRefused("malformed")
        stored = self.keys.get(credential.public_id)
        if stored is None or not key_format.matches(credential.secret, stored.secret_hmac, stored.pepper_version):
            raise KeyRefused("unknown")
        return stored

    def knows(self, text: str) -> bool:
        """Return whether the key's public id is in the snapshot, or the text is malformed. Ignores the secret."""
        credential = key_format.parse(text)
        return credential is None or credential.public_id in self.keys


def _known_keys() -> QuerySet[ApiKey]:
    """Return the keys that are valid or were until REMEMBERED ago."""
    dead_since = timezone.now() - REMEMBERED
    return ApiKey.objects.exclude(revoked_at__lt=dead_since).exclude(expires_at__lt=dead_since)


def load() -> Snapshot:
    """Read a snapshot from the database.

    The epoch is read first: a change during the load then has a newer epoch and causes another load.
    """
    as_of = policy_epoch.current()
    # Limits and budgets before keys: if a key is rotated in between, its successor is loaded too and receives them.
    limits = list(Limit.objects.order_by("id"))
    hard = Budget.objects.filter(archived_at=None, action=Budget.Action.BLOCK)
    budgets = list(hard.select_related("tenant").order_by("id"))
    settings = list(CacheSetting.objects.order_by("id"))
    purges = _purges()
    # Keys before policies: a tenant has its policy before its first key, so every key read has one. If a policy is
    # missing nevertheless, only that key is refused; the others are still loaded.
    keys = list(_known_keys().select_related("tenant", "project").order_by("-id"))
    policies = {
        row["tenant_id"]: Policy(**{field: row[field] for field in POLICY_FIELDS})
        for row in TenantPolicy.objects.order_by("version").values("tenant_id", *POLICY_FIELDS)
    }
    heirs = _heirs(keys)
    bounds = _bounds(limits, budgets, heirs)
    terms = _Terms(settings={_target(each, heirs): each for each in settings}, purges=purges, heirs=heirs)
    stored: dict[str, _StoredKey] = {}
    for key in keys:
        # The same for invalid networks, which were not written by ``tenants.keys``.
        with suppress(BadName):
            if key.tenant_id in policies:
                policy = policies[key.tenant_id]
                stored[key.public_id] = _stored(key, policy, bounds, terms.of(key, policy))
    return Snapshot(epoch=as_of, keys=stored)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """All limits and budgets, by target."""

    limits: dict[Target, list[Limit]]
    budgets: dict[Target, list[Budget]]
    heirs: Mapping[UUID, UUID]


@dataclass(frozen=True, slots=True)
class _Terms:
    """Prediction-cache settings and purges, which refine the tenants' policies."""

    settings: Mapping[Target, CacheSetting]
    purges: Mapping[UUID, Purges]
    heirs: Mapping[UUID, UUID]

    def of(self, key: ApiKey, policy: Policy) -> CacheTerms:
        """Return a key's terms: its own setting before its project's before its tenant's policy."""
        targets = [target for scope, target in _targets(key, self.heirs) if scope != "tenant"]
        found = [setting for target in reversed(targets) if (setting := self.settings.get(target)) is not None]
        modes = [each.mode for each in found if each.mode]
        ttls = [each.ttl_seconds for each in found if each.ttl_seconds is not None]
        rates = [each.writes_per_minute for each in found if each.writes_per_minute is not None]
        return CacheTerms(
            mode=cast(CacheMode, [*modes, policy.cache_mode][0]),
            # A policy may be older than the maximum, and no response may outlive the purges that are read.
            ttl_seconds=min([*ttls, policy.cache_ttl_seconds][0], LONGEST_TTL_SECONDS),
            entry_bytes=policy.cache_entry_bytes,
            quota_bytes=policy.cache_quota_bytes,
            writes_per_minute=[*rates, policy.cache_writes_per_minute][0],
            may_read="cache:read" in key.scopes,
            may_write="cache:write" in key.scopes,
            purges=self.purges.get(key.tenant_id, _NONE_PURGED),
        )


_NONE_PURGED = Purges()


def _purges() -> Mapping[UUID, Purges]:
    """Return the purges of each tenant that can still apply to a stored response.

    Selected by id, through the primary key; the database returns the newest of each kind, regardless of commit order.
    """
    since = first_id_at(timezone.now() - timedelta(seconds=PURGES_HOLD_SECONDS))
    kind = ("tenant_id", "model_name", "key_id", "request_id")
    found: dict[UUID, list[CachePurge]] = {}
    for purge in CachePurge.objects.filter(id__gte=since).order_by(*kind, "-id").distinct(*kind):
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


def _heirs(keys: Iterable[ApiKey]) -> Mapping[UUID, UUID]:
    """Return the newest successor of each rotated key, which has the limits and budgets of its predecessors.

    Takes keys newest first.
    """
    heirs: dict[UUID, UUID] = {}
    for key in keys:
        if key.rotated_from_id is not None:
            heirs[key.rotated_from_id] = heirs.get(key.id, key.id)
    return heirs


def _bounds(limits: Iterable[Limit], budgets: Iterable[Budget], heirs: Mapping[UUID, UUID]) -> _Bounds:
    found = _Bounds(limits={}, budgets={}, heirs=heirs)
    for limit in limits:
        found.limits.setdefault(_target(limit, heirs), []).append(limit)
    for budget in budgets:
        found.budgets.setdefault(_target(budget, heirs), []).append(budget)
    return found


def _target(bound: Limit | Budget | CacheSetting, heirs: Mapping[UUID, UUID]) -> Target:
    key = None if bound.key_id is None else heirs.get(bound.key_id, bound.key_id)
    return bound.tenant_id, bound.project_id, key


def _admitted(stored: _StoredKey) -> Caller:
    if stored.refusal is not None:
        raise KeyRefused(stored.refusal)
    if stored.expires_at is not None and stored.expires_at <= time.time():
        raise KeyRefused("expired")
    return stored.caller


def _targets(key: ApiKey, heirs: Mapping[UUID, UUID]) -> Iterable[tuple[Scope, Target]]:
    yield "tenant", (key.tenant_id, None, None)
    yield "project", (key.tenant_id, key.project_id, None)
    yield "key", (key.tenant_id, None, heirs.get(key.id, key.id))


def _limit(scope: Scope, limit: Limit) -> LimitLine:
    return LimitLine(
        id=limit.id,
        scope=scope,
        model_name=limit.model_name,
        requests_per_minute=limit.requests_per_minute,
        tokens_per_minute=limit.tokens_per_minute,
        concurrent_requests=limit.concurrent_requests,
    )


def _budget(scope: Scope, budget: Budget) -> BudgetLine:
    return BudgetLine(
        id=budget.id,
        scope=scope,
        model_name=budget.model_name,
        period=cast(Period, budget.period),
        limit_pico=budget.limit_pico,
        currency=budget.currency,
        timezone=budget.tenant.billing_timezone,
    )


def _stored(key: ApiKey, policy: Policy, bounds: _Bounds, cache: CacheTerms) -> _StoredKey:
    targets = list(_targets(key, bounds.heirs))
    caller = Caller(
        tenant_id=TenantId(key.tenant_id),
        tenant_slug=key.tenant.slug,
        project_id=ProjectId(key.project_id),
        key_id=KeyId(key.id),
        key_public_id=key.public_id,
        scopes=frozenset(key.scopes),
        allowed_models=frozenset(key.allowed_models),
        trust_group=key.tenant.trust_group,
        policy=policy,
        limits=tuple(_limit(scope, each) for scope, of in targets for each in bounds.limits.get(of, ())),
        budgets=tuple(_budget(scope, each) for scope, of in targets for each in bounds.budgets.get(of, ())),
        cache=cache,
        networks=networks.parse(key.allowed_networks),
    )
    return _StoredKey(
        secret_hmac=bytes(key.secret_hmac),
        pepper_version=key.pepper_version,
        expires_at=key.expires_at.timestamp() if key.expires_at else None,
        refusal=_refusal(key),
        caller=caller,
    )


def _refusal(key: ApiKey) -> KeyRefusal | None:
    if key.revoked_at is not None:
        return "revoked"
    if key.tenant.state != Tenant.State.ACTIVE:
        return "tenant_suspended"
    if key.project.archived_at is not None:
        return "project_archived"
    return None
