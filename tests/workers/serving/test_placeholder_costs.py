"""What placeholders cost and saved, from rows: exact figures by day, waits that reconcile records, and the doors."""

from __future__ import annotations

import datetime as dt
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from hearth.cli.output import fleet_tables
from portal.reporting.placeholder_costs_csv import CSV_HEADER, csv_rows
from tests.workers.conftest import Fleet
from workers import fleet_counts, metrics
from workers.models import Deployment, Level, Node, Placeholder, Pool, Replica, Slot, SlotLease, SlotWait, StartTime
from workers.scheduler import reconciler
from workers.serving import placeholder_costs

pytestmark = pytest.mark.django_db
DAY = dt.date(2026, 3, 2)
NEXT = DAY + dt.timedelta(days=1)
GIB = 2**30


def at(hour: float, day: dt.date = DAY) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), dt.UTC) + dt.timedelta(hours=hour)


def lease(node: Node, start: dt.datetime, end: dt.datetime | None, **holder: UUID) -> None:
    kind = SlotLease.Kind.REPLICA if "replica_id" in holder else SlotLease.Kind.PLACEHOLDER
    slot = Slot.objects.filter(node=node).order_by("index")[0]
    SlotLease.objects.create(slot=slot, kind=kind, fence=1, acquired_at=start, released_at=end, **holder)


def held(node: Node, start: dt.datetime, end: dt.datetime | None, **changes: object) -> Placeholder:
    """Create a placeholder that had a slot for this time."""
    values = {"state": Placeholder.State.EVICTED, "state_since": end or start} | changes
    row = Placeholder.objects.create(node=node, engine="simulated", target_level=Level.H2, **values)
    lease(node, start, end, placeholder_id=row.id)
    return row


def replica(deployment: Deployment) -> Replica:
    return Replica.objects.create(
        deployment=deployment, revision=deployment.revision, state="stopped", desired_state="stopped"
    )


def started(deployment: Deployment, pool: Pool, level: str, seconds: float, moment: dt.datetime) -> None:
    StartTime.objects.create(
        replica=replica(deployment),
        revision=deployment.revision,
        pool=pool,
        level=level,
        seconds=seconds,
        process_seconds=seconds,
        created_at=moment,
    )


def test_hours_and_memory_are_exact_and_split_at_midnight(fleet: Fleet) -> None:
    Pool.objects.update(slot_hour_pico=2_500_000_000_000)
    held(fleet.node, at(20), at(26), memory_bytes=2 * GIB, warm_seconds=1800.0)
    later, day = placeholder_costs.by_day(DAY, NEXT)
    assert (day.day, day.pool, day.slot_hours, day.memory_gib_hours) == (DAY, "local", 4.0, 7.0)
    assert (later.day, later.slot_hours, later.memory_gib_hours) == (NEXT, 2.0, 4.0)
    assert (day.cost_pico, later.cost_pico) == (10 * 10**12, 5 * 10**12)
    assert (day.promotions, day.saved_seconds, day.waited_hours) == (0, 0.0, 0.0)
    assert placeholder_costs.by_day(NEXT, NEXT) == (later,)
    assert placeholder_costs.by_day(DAY, NEXT, "other") == ()


def test_an_open_lease_counts_until_now(fleet: Fleet) -> None:
    start = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    held(fleet.node, start, None, state=Placeholder.State.WARM)
    assert sum(each.slot_hours for each in placeholder_costs.newest(2)) == pytest.approx(1.0, abs=0.05)


def test_hours_in_which_a_replica_waited_count_once(fleet: Fleet) -> None:
    chat, other = fleet.deploy(0), fleet.deploy(0, name="other")
    held(fleet.node, at(1), at(5))
    SlotWait.objects.create(deployment=chat, pool=fleet.pool, began_at=at(0), ended_at=at(2))
    SlotWait.objects.create(deployment=other, pool=fleet.pool, began_at=at(1.5), ended_at=at(3))
    SlotWait.objects.create(deployment=other, pool=fleet.pool, began_at=at(4.5), ended_at=at(9))
    (day,) = placeholder_costs.by_day(DAY, DAY)
    assert (day.slot_hours, day.waited_hours) == (4.0, 2.5)


def test_a_replica_also_waits_until_the_evicted_process_has_ended(fleet: Fleet) -> None:
    held(fleet.node, at(1), at(2), state_since=at(2.25))
    (day,) = placeholder_costs.by_day(DAY, DAY)
    assert day.waited_hours == 0.0  # nobody took the slot
    lease(fleet.node, at(2), at(3), replica_id=replica(fleet.deploy(0)).id)
    (day,) = placeholder_costs.by_day(DAY, DAY)
    assert day.waited_hours == 0.25


def test_a_promotion_saves_what_cold_starts_before_it_took_more(fleet: Fleet) -> None:
    chat = fleet.deploy(0)
    started(chat, fleet.pool, Level.H2, 4.0, at(1))
    (day,) = placeholder_costs.by_day(DAY, DAY)
    assert (day.promotions, day.unmeasured, day.saved_seconds) == (1, 1, 0.0)
    for seconds, hour in ((20.0, 2), (30.0, 3), (900.0, 9)):
        started(chat, fleet.pool, Level.COLD, seconds, at(hour))
    started(chat, fleet.pool, Level.H2, 5.0, at(4))
    (day,) = placeholder_costs.by_day(DAY, DAY)
    assert (day.promotions, day.unmeasured) == (2, 0)
    assert day.saved_seconds == (20.0 - 4.0) + (25.0 - 5.0)


def test_reconcile_records_when_a_deployment_waits_for_slots(fleet: Fleet) -> None:
    slots = Slot.objects.count()
    row = fleet.deploy(slots + 1)
    reconciler.tick()
    wait = SlotWait.objects.get()
    assert (wait.deployment_id, wait.pool_id, wait.ended_at) == (row.id, fleet.pool.id, None)
    reconciler.tick()
    assert SlotWait.objects.get() == wait
    Deployment.objects.filter(id=row.id).update(min_replicas=slots, desired_replicas=slots)
    reconciler.tick()
    wait.refresh_from_db()
    assert wait.ended_at is not None


def test_lists_metrics_and_csv_have_the_same_figures(fleet: Fleet) -> None:
    start = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    Pool.objects.update(slot_hour_pico=10**12)
    held(fleet.node, start, start + dt.timedelta(microseconds=3_600_000))
    listing = fleet_tables.read("placeholder-costs", 1)
    assert listing.data == [
        {
            "day": start.date().isoformat(),
            "pool": "local",
            "slot_hours": 0.001,
            "waited_hours": 0.0,
            "memory_gib_hours": 0.0,
            "promotions": 0,
            "unmeasured": 0,
            "saved_seconds": 0.0,
            "cost_usd": "0.001",
        }
    ]
    assert "SLOT HOURS" in listing.text
    (row,) = csv_rows(placeholder_costs.today())
    assert dict(zip(CSV_HEADER, row, strict=True))["cost_usd"] == "0.001000000000"
    registry = CollectorRegistry()
    registry.register(metrics.FleetCollector(fleet_counts.read))
    assert 'hearth_placeholder_slot_hours_today{pool="local"} 0.001' in generate_latest(registry).decode()
