"""How much of what every gateway keeps in memory, and reads at each change, one tenant may have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants.errors import NotAllowed
from tenants.models import ApiKey, Project, Tenant

LIVE_KEYS = 1_000
#: Keys created within a day, live or not: gateways know a dead key for some time too.
KEYS_A_DAY = 1_000
PROJECTS = 100
#: Limits of one tenant; as many budgets; and as many cache settings.
RULES = 1_000


def require_room_for_key(tenant: Tenant) -> None:
    """Raise NotAllowed if the tenant has as many keys as it may have. Call it in the transaction that creates one.

    Keys of the playground do not count: each member has at most one in each project.
    """
    now = timezone.now()
    own = ApiKey.objects.filter(tenant=tenant, purpose=ApiKey.Purpose.API)
    live = own.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)
    require_room(tenant, live, LIVE_KEYS, "live keys")
    recent = own.filter(created_at__gt=now - timedelta(days=1))
    require_room(tenant, recent, KEYS_A_DAY, "keys created within a day")


def require_room_for_project(tenant: Tenant) -> None:
    """Raise NotAllowed if the tenant has as many open projects as it may have. Call it as above."""
    require_room(tenant, Project.objects.filter(tenant=tenant, archived_at=None), PROJECTS, "projects")


def require_room(tenant: Tenant, rows: QuerySet[Any], most: int, what: str) -> None:
    """Raise NotAllowed if there are ``most`` rows. The tenant's row is locked, so concurrent creations wait."""
    Tenant.objects.select_for_update().get(id=tenant.id)
    if rows.count() >= most:
        raise NotAllowed("tenant", tenant.slug, f"at its limit of {most:,} {what}")
