"""Purge stored responses: a row says which may not be served, and every gateway reads it within a second.

Purges apply whether or not Redis is available. A trigger prevents changes to the rows, and they are never removed.
Reading them stays bounded: only ids of the last PURGES_HOLD_SECONDS are read, and of those the newest of each kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.caller_limits import PURGES_HOLD_SECONDS
from tenants.errors import BadName, NotAllowed
from tenants.ids import first_id_at, milliseconds_of, new_id
from tenants.keys import keys
from tenants.models import ApiKey, CachePurge, Tenant

#: Largest difference between the clocks of gateways and portals. Without it, a request that a gateway with a fast clock
#: accepted just before a purge would have the later id. Responses to requests of the second after a purge are purged
#: too.
CLOCK_SKEW_MS = 1000
#: Most purges of single requests in force per tenant; a purge of everything replaces them.
MOST_REQUESTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeTarget:
    """What to purge: one of these, or everything that the tenant has stored if none is given."""

    model_name: str = ""
    key: ApiKey | None = None
    request_id: UUID | None = None


@transaction.atomic
def purge(actor: Actor, tenant: Tenant, target: PurgeTarget) -> CachePurge:
    """Prevent gateways from serving these responses, including those that are running and stored later.

    The purge of a key includes the keys it was rotated from. Raises BadName for two targets at once and for an id that
    is not a request's, NotAllowed when MOST_REQUESTS single requests are purged.
    """
    _check(target)
    Tenant.objects.select_for_update().get(id=tenant.id)
    if target.request_id is not None:
        _require_room(tenant)
    ancestors = keys.lineages([target.key.id])[target.key.id] - {target.key.id} if target.key else ()
    for key_id in sorted(ancestors):
        CachePurge.objects.create(id=_later_id(), tenant=tenant, key_id=key_id)
    made = CachePurge.objects.create(
        id=_later_id(), tenant=tenant, model_name=target.model_name, key=target.key, request_id=target.request_id
    )
    audit.record(actor, "cache.purged", ("cache_purge", made.id), tenant=tenant, after=_described(target))
    policy_epoch.bump(tenants=[tenant.id])
    return made


def follow_rename(old_name: str, new_name: str) -> set[UUID]:
    """Purge by a model's new name what is purged by its old one; return the tenants whose purges these are.

    Call it in the transaction of the renaming, which holds the model's row. Gateways compare purges with the model's
    present name. Each tenant's newest purge is copied, a millisecond later.
    """
    since = first_id_at(timezone.now() - timedelta(seconds=PURGES_HOLD_SECONDS))
    live = CachePurge.objects.filter(model_name=old_name, id__gte=since).order_by("tenant_id", "-id")
    followed = CachePurge.objects.bulk_create(
        CachePurge(id=_just_after(made.id), tenant_id=made.tenant_id, model_name=new_name)
        for made in live.distinct("tenant_id")
    )
    return {made.tenant_id for made in followed}


def _just_after(value: UUID) -> UUID:
    """Return a fresh id of the millisecond after an id's."""
    return UUID(int=(milliseconds_of(value) + 1 << 80) | (new_id().int & ((1 << 80) - 1)))


def _described(target: PurgeTarget) -> dict[str, str | bool]:
    """Return the target for the audit log."""
    if target.model_name:
        return {"model": target.model_name}
    if target.key is not None:
        return {"key": target.key.public_id}
    return {"request": str(target.request_id)} if target.request_id is not None else {"everything": True}


def _later_id() -> UUID:
    """Return an id above those of all requests accepted so far by any clock within CLOCK_SKEW_MS."""
    return UUID(int=new_id().int + (CLOCK_SKEW_MS << 80))


def _check(target: PurgeTarget) -> None:
    named = [target.model_name, target.key, target.request_id]
    if sum(bool(each) for each in named) > 1:
        raise BadName("purge", "several at once", "one of a model, a key, a request or everything")
    if target.request_id is not None and target.request_id.version != 7:
        raise BadName("request", str(target.request_id), "the x-request-id of a request, a UUIDv7")


def _require_room(tenant: Tenant) -> None:
    since = first_id_at(timezone.now() - timedelta(seconds=PURGES_HOLD_SECONDS))
    held = CachePurge.objects.filter(tenant=tenant, id__gte=since)
    whole = held.filter(model_name="", key=None, request_id=None).order_by("-id").first()
    newer = held if whole is None else held.filter(id__gt=whole.id)
    if newer.exclude(request_id=None).count() >= MOST_REQUESTS:
        raise NotAllowed(
            "purge", tenant.slug, f"at the limit of {MOST_REQUESTS} single requests; purge a key, a model or everything"
        )
