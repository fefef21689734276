"""The drain stores when each key was last used."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone
from msgspec.structs import replace

from tenants.ids import TenantId
from tests.billing.usage_records import row_at, store
from tests.tenants import customers


def test_the_newest_use_of_each_key_in_a_batch_is_noted_and_canaries_are_no_use(db: None) -> None:
    acme, globex = customers.create("acme"), customers.create("globex")
    now = timezone.now()
    early, late = (
        replace(row_at(moment, TenantId(acme.tenant.id)), key_id=acme.key.id, finished_at=moment)
        for moment in (now - timedelta(minutes=5), now)
    )
    canary = replace(row_at(now, TenantId(globex.tenant.id), purpose="canary"), key_id=globex.key.id)
    store(late, early, canary)
    acme.key.refresh_from_db()
    globex.key.refresh_from_db()
    assert (acme.key.last_used_at, globex.key.last_used_at) == (now, None)
