"""What Redis keeps of a tenant's answers, where it can be asked. A purge holds by its row; this frees the memory."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

from django.conf import settings
from redis import Redis, RedisError

from caching import store
from caching.store import Held
from tenants.ids import TenantId
from tenants.models import Tenant
from tenants.purges import Target

#: For a page and for each step of a deletion.
TIMEOUT_SECONDS = 0.5


def held(tenant: Tenant) -> Held | None:
    """Count what is stored now, None where Redis does not answer."""
    with suppress(RedisError):
        return store.held(_redis(), TenantId(tenant.id))
    return None


def delete(tenant: Tenant, target: Target) -> None:
    """Delete what was purged. What Redis does not delete now expires; no gateway gives it."""
    with suppress(RedisError):
        store.delete(
            _redis(),
            TenantId(tenant.id),
            model_name=target.model_name or None,
            key_id=target.key.id if target.key else None,
            request_id=target.request_id,
        )


@cache
def _redis() -> Redis:
    timeout = TIMEOUT_SECONDS
    return Redis.from_url(settings.REDIS_CACHE_URL, socket_timeout=timeout, socket_connect_timeout=timeout)
