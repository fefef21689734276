"""How long replicas had slots: leases cut at the period, of replicas alone, at the cost of their pool."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from tests.portal import fixtures
from workers.models import Pool, Replica, Slot, SlotLease
from workers.serving import slot_hours

pytestmark = pytest.mark.django_db
START, END = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
HOUR_MS = 3_600_000


def lease(slot: Slot, replica: Replica, begins: datetime, ends: datetime | None) -> None:
    row = SlotLease.objects.create(slot=slot, kind="replica", replica=replica, fence=1, released_at=timezone.now())
    SlotLease.objects.filter(id=row.id).update(acquired_at=begins, released_at=ends)


def test_leases_are_cut_at_the_period_and_slots_counted_each() -> None:
    world = fixtures.build()
    deployment = fixtures.fleet(world)
    SlotLease.objects.all().delete()
    Pool.objects.update(slot_hour_pico=7)
    first, second, *_ = Slot.objects.order_by("index")
    one, two, *_ = Replica.objects.filter(deployment=deployment).order_by("id")
    hour = timedelta(hours=1)
    lease(first, one, START - hour, START + 2 * hour)
    lease(second, one, START, START + 2 * hour)
    lease(first, two, END - hour, END + hour)
    lease(second, two, END + hour, None)
    found = {each.replica_id: each for each in slot_hours.by_replica(START, END)}
    assert {(found[one.id].slots, found[one.id].slot_ms), (found[two.id].slots, found[two.id].slot_ms)} == {
        (2, 4 * HOUR_MS),
        (1, HOUR_MS),
    }
    assert {(each.deployment, each.pool, each.slot_hour_pico) for each in found.values()} == {
        (deployment.name, "local", 7)
    }


def test_an_open_lease_counts_until_now() -> None:
    world = fixtures.build()
    fixtures.fleet(world)
    SlotLease.objects.all().delete()
    replica, slot = Replica.objects.order_by("id")[0], Slot.objects.order_by("index")[0]
    before = timezone.now()
    lease(slot, replica, before - timedelta(hours=1), None)
    (found,) = slot_hours.by_replica(before - timedelta(minutes=30), before + timedelta(days=9))
    spent_ms = (timezone.now() - before) / timedelta(milliseconds=1)
    assert HOUR_MS // 2 <= found.slot_ms <= HOUR_MS // 2 + spent_ms
