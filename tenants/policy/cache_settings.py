"""Overrides of the tenant's prediction-cache policy per project and per key. They take effect within a second."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from django.db import transaction

from tenants import audit, caps, policy_epoch
from tenants.audit import Actor
from tenants.caller_limits import LONGEST_TTL_SECONDS
from tenants.errors import BadName
from tenants.models import CacheSetting, Tenant, TenantPolicy
from tenants.policy.policy_target import PolicyTarget, target_of

LARGEST = {"ttl_seconds": LONGEST_TTL_SECONDS, "writes_per_minute": 2**31 - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOverrides:
    """The fields of a setting. An empty mode and None inherit from the level above; 0 stores nothing."""

    mode: str = ""
    ttl_seconds: int | None = None
    writes_per_minute: int | None = None


@transaction.atomic
def set_setting(actor: Actor, target: PolicyTarget, terms: CacheOverrides) -> CacheSetting:
    """Set the setting of a project or key, replacing any before. Idempotent.

    Raises BadName for a value out of range, a setting without values, and for a tenant as a whole; NotAllowed for
    one setting too many.
    """
    _check(target, terms)
    # Locking the tenant's row serialises concurrent creations of the same setting.
    tenant = Tenant.objects.select_for_update().get(id=target.tenant.id)
    who = {"tenant": target.tenant, "project": target.project, "key": target.key}
    setting = CacheSetting.objects.filter(**who).first()
    before = None if setting is None else overrides_of(setting)
    if setting is None:
        caps.require_room(tenant, CacheSetting.objects.filter(tenant=tenant), caps.RULES, "cache settings")
        setting = CacheSetting.objects.create(**who, **asdict(terms))
    elif before == terms:
        return setting
    else:
        for name, value in asdict(terms).items():
            setattr(setting, name, value)
        setting.save(update_fields=list(asdict(terms)))
    _record(actor, "cache_setting.set", setting, before=before, after=terms)
    return setting


@transaction.atomic
def remove(actor: Actor, setting: CacheSetting) -> None:
    """Remove a setting, so that all fields are inherited. Idempotent."""
    locked = CacheSetting.objects.select_for_update(of=("self",)).select_related("tenant", "project", "key")
    found = locked.filter(id=setting.id).first()
    if found is None:
        return
    _record(actor, "cache_setting.removed", found, before=overrides_of(found), after=None)
    found.delete()


def overrides_of(setting: CacheSetting) -> CacheOverrides:
    """Return the setting's values."""
    return CacheOverrides(
        mode=setting.mode, ttl_seconds=setting.ttl_seconds, writes_per_minute=setting.writes_per_minute
    )


def _record(
    actor: Actor, action: str, setting: CacheSetting, *, before: CacheOverrides | None, after: CacheOverrides | None
) -> None:
    who = target_of(setting).describe()
    audit.record(
        actor,
        action,
        ("cache_setting", setting.id),
        tenant=setting.tenant,
        before=None if before is None else {**who, **asdict(before)},
        after=None if after is None else {**who, **asdict(after)},
    )
    policy_epoch.bump(tenants=[setting.tenant_id])


def _check(target: PolicyTarget, terms: CacheOverrides) -> None:
    if target.is_tenants_own or target.model_name:
        raise BadName(
            "cache setting of",
            target.tenant.slug,
            "one of its projects or keys; the tenant itself has a policy",
        )
    if terms == CacheOverrides():
        raise BadName("cache setting", "nothing", f"at least one of {', '.join(asdict(terms))}")
    if terms.mode and terms.mode not in TenantPolicy.CacheMode.values:
        raise BadName("mode", terms.mode, " | ".join(TenantPolicy.CacheMode.values))
    for name, largest in LARGEST.items():
        value = getattr(terms, name)
        if value is not None and not 0 <= value <= largest:
            raise BadName(name, str(value), f"a whole number from 0 to {largest}, or null to inherit")
