"""What Redis stores of a tenant's answers. A purge takes effect by its database row; deleting here frees the memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from django.conf import settings
from redis import Redis, RedisError

from caching import store
from caching.store import CacheUsage
from catalogue.models import ModelAlias
from portal import redis_clients
from tenants.ids import TenantId
from tenants.keys import keys
from tenants.models import Tenant
from tenants.policy.purges import PurgeTarget

#: Timeout of a page's count and of each step of a deletion.
TIMEOUT_SECONDS = 0.5


def stored(tenant: Tenant) -> CacheUsage | None:
    """Return what is stored now; None while Redis is unavailable."""
    with suppress(RedisError):
        return store.usage_of(_redis(), TenantId(tenant.id))
    return None


def delete(tenant: Tenant, target: PurgeTarget) -> None:
    """Delete purged answers. For a key, also those of the keys that it replaced by rotation.

    For a model, also those stored under its aliases, because its earlier names are among them.

    Answers that Redis cannot delete now expire later; no gateway serves them.
    """
    written_by: Iterable[UUID | None] = [None] if target.key is None else keys.lineages([target.key.id])[target.key.id]
    names = _names_of(target.model_name) if target.model_name else None
    with suppress(RedisError):
        for key_id in written_by:
            store.delete(
                _redis(),
                TenantId(tenant.id),
                model_names=names,
                key_id=key_id,
                request_id=target.request_id,
            )


def _names_of(model_name: str) -> frozenset[str]:
    aliases = ModelAlias.objects.filter(model__name=model_name).values_list("name", flat=True)
    return frozenset({model_name, *aliases})


def _redis() -> Redis:
    return redis_clients.client(settings.REDIS_CACHE_URL, TIMEOUT_SECONDS)
