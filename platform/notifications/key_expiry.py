"""Announce API keys that expire soon: within seven days, and again within one."""

from __future__ import annotations

import datetime as dt

from django.db import transaction
from django.utils import timezone

from notifications import outbox
from notifications.event_types import KEY_EXPIRY_ANNOUNCED
from notifications.models import Event
from tenants.models import ApiKey, Tenant

DAYS = (7, 1)
#: Keys that live for a shorter time are made to expire: no event is sent for them.
SHORT_LIFE = dt.timedelta(days=14)
BATCH_ROWS = 500


def announce(now: dt.datetime | None = None) -> int:
    """Write an event for each key that expires soon and was not announced yet; return how many."""
    now = now or timezone.now()
    soon = ApiKey.objects.filter(
        expires_at__gt=now, expires_at__lte=now + dt.timedelta(days=max(DAYS)), revoked_at=None, rotated_to=None
    )
    rows = soon.exclude(tenant__state=Tenant.State.ARCHIVED).select_related("tenant", "project").order_by("id")
    return sum(_announce(key, now) for key in rows.iterator(BATCH_ROWS))


def _announce(key: ApiKey, now: dt.datetime) -> int:
    assert key.expires_at is not None  # rows without it are not read
    if key.expires_at - key.created_at < SHORT_LIFE:
        return 0
    days = min(each for each in DAYS if key.expires_at <= now + dt.timedelta(days=each))
    dedupe_key = f"{key.id} {key.expires_at.isoformat()} {days}"
    if Event.objects.filter(type=KEY_EXPIRY_ANNOUNCED.name, tenant=key.tenant, dedupe_key=dedupe_key).exists():
        return 0
    with transaction.atomic():
        event = outbox.emit(
            KEY_EXPIRY_ANNOUNCED,
            tenant=key.tenant,
            subject=("key", key.id),
            data={
                "key": str(key.id),
                "public_id": f"hk_{key.public_id}",
                "name": key.name,
                "project": key.project.slug,
                "expires_at": key.expires_at.isoformat(),
                "days": days,
            },
            dedupe_key=dedupe_key,
        )
    return int(event is not None)
