"""Set and remove limits: requests and tokens per minute, concurrent requests. They take effect within a second."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from django.db import transaction

from tenants import audit, caps, policy_epoch
from tenants.audit import Actor
from tenants.errors import BadName
from tenants.models import Limit, Tenant
from tenants.policy import bound_setter
from tenants.policy.policy_target import PolicyTarget, target_of

LARGEST = {
    "requests_per_minute": 2**31 - 1,
    "tokens_per_minute": 10**12,
    "concurrent_requests": 2**31 - 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitValues:
    """The values of a limit. For each, None is unlimited and 0 admits nothing."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


@transaction.atomic
def set_limit(actor: Actor, target: PolicyTarget, limit_values: LimitValues) -> Limit:
    """Set the target's limit, replacing any before. Idempotent.

    Raises BadName for a value out of range, and for a limit without values; NotAllowed for one limit too many;
    SetByAbove if somebody above the actor set the present one.
    """
    _check(limit_values)
    # Locking the tenant's row serialises concurrent creations of the same limit.
    tenant = Tenant.objects.select_for_update().get(id=target.tenant.id)
    who = {"tenant": target.tenant, "project": target.project, "key": target.key, "model_name": target.model_name}
    limit = Limit.objects.filter(**who).first()
    before = None if limit is None else asdict(values_of(limit))
    after, setter = asdict(limit_values), bound_setter.fields_of(actor)
    if limit is None:
        caps.require_room(tenant, Limit.objects.filter(tenant=tenant), caps.RULES, "limits")
        limit = Limit.objects.create(**who, **after, **setter)
    else:
        bound_setter.require_may_change(actor, limit)
        if before == after and limit.set_by == setter["set_by"]:
            return limit
        for name, value in {**after, **setter}.items():
            setattr(limit, name, value)
        limit.save(update_fields=[*after, *setter])
    _record(actor, "limit.set", limit, before=before, after=after)
    return limit


@transaction.atomic
def remove(actor: Actor, limit: Limit) -> None:
    """Remove a limit. Idempotent. Raises SetByAbove if somebody above the actor set it."""
    locked = Limit.objects.select_for_update(of=("self",)).select_related("tenant", "project", "key")
    found = locked.filter(id=limit.id).first()
    if found is None:
        return
    bound_setter.require_may_change(actor, found)
    _record(actor, "limit.removed", found, before=asdict(values_of(found)), after=None)
    found.delete()


def values_of(limit: Limit) -> LimitValues:
    """Return the limit's values."""
    return LimitValues(
        requests_per_minute=limit.requests_per_minute,
        tokens_per_minute=limit.tokens_per_minute,
        concurrent_requests=limit.concurrent_requests,
    )


def _record(
    actor: Actor,
    action: str,
    limit: Limit,
    *,
    before: dict[str, int | None] | None,
    after: dict[str, int | None] | None,
) -> None:
    who = target_of(limit).describe()
    audit.record(
        actor,
        action,
        ("limit", limit.id),
        tenant=limit.tenant,
        before=None if before is None else {**who, **before},
        after=None if after is None else {**who, **after},
    )
    policy_epoch.bump(tenants=[limit.tenant_id])


def _check(limit_values: LimitValues) -> None:
    values = asdict(limit_values)
    if all(value is None for value in values.values()):
        raise BadName("limit", "nothing", f"at least one of {', '.join(values)}")
    for name, value in values.items():
        if value is not None and not 0 <= value <= LARGEST[name]:
            raise BadName(name, str(value), f"a whole number from 0 to {LARGEST[name]}, or null for unlimited")
