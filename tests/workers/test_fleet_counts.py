"""The fleet in numbers, against the real database."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.workers.conftest import Fleet
from workers import fleet_counts, metrics
from workers.fleet_counts import FleetCounts
from workers.models import Replica, Slot, StartTime
from workers.scheduler import reconciler

pytestmark = pytest.mark.django_db


def shown(found: FleetCounts | None) -> dict[tuple[str, ...], float]:
    """Return the samples that Prometheus would read: name and label values to value."""
    registry = CollectorRegistry()
    registry.register(metrics.FleetCollector(lambda: found))
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value for sample in samples}


def test_replicas_are_counted_by_state_and_a_state_without_any_is_zero(fleet: Fleet) -> None:
    fleet.deploy(2)
    reconciler.tick()
    Replica.objects.filter(id=Replica.objects.order_by("id")[0].id).update(state="ready")
    found = fleet_counts.read()
    assert {state: count for (_, state), count in found.replicas.items() if count} == {"ready": 1, "reserved": 1}
    assert ("chat", "backoff") in found.replicas
    assert found.desired == {("chat",): 2}


def test_replicas_that_have_ended_are_not_counted_but_failed_ones_that_are_wanted_are(fleet: Fleet) -> None:
    fleet.deploy(2)
    reconciler.tick()
    first, second = Replica.objects.order_by("id")
    Replica.objects.filter(id=first.id).update(state="stopped")
    Replica.objects.filter(id=second.id).update(state="failed")
    assert {state: count for (_, state), count in fleet_counts.read().replicas.items() if count} == {"failed": 1}
    Replica.objects.filter(id=second.id).update(desired_state="stopped")
    assert set(fleet_counts.read().replicas.values()) == {0}


def test_slots_are_counted_by_who_has_them(fleet: Fleet) -> None:
    slots = Slot.objects.filter(node=fleet.node).order_by("index")
    total = slots.count()
    Slot.objects.filter(id=slots[total - 1].id).update(health="gone")
    Slot.objects.filter(id=slots[total - 2].id).update(health="quarantined")
    fleet.deploy(1)
    reconciler.tick()
    found = fleet_counts.read().slots
    assert found[("local", "quarantined")] == 1
    assert found[("local", "replica")] == 1
    assert sum(found.values()) == total - 1


def test_starts_are_a_histogram_by_level_pool_and_model(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    replica = Replica.objects.get()
    for level, seconds in (("h2", 2.5), ("h2", 3.0), ("h2", 700.0), ("cold", 26.0)):
        StartTime.objects.create(
            replica=replica, revision=fleet.revision, pool=fleet.pool, level=level, seconds=seconds, process_seconds=1.0
        )
    found = shown(fleet_counts.read())
    # Sorted by label name: le, level, model, pool.
    assert found["hearth_promotion_seconds_bucket", "2.0", "h2", "tiny-chat", "local"] == 0
    assert found["hearth_promotion_seconds_bucket", "3.0", "h2", "tiny-chat", "local"] == 2
    assert found["hearth_promotion_seconds_bucket", "600.0", "h2", "tiny-chat", "local"] == 2
    assert found["hearth_promotion_seconds_bucket", "+Inf", "h2", "tiny-chat", "local"] == 3
    assert found["hearth_promotion_seconds_count", "h2", "tiny-chat", "local"] == 3
    assert found["hearth_promotion_seconds_sum", "h2", "tiny-chat", "local"] == 705.5
    assert found["hearth_promotion_seconds_count", "cold", "tiny-chat", "local"] == 1


def test_parts_of_starts_are_a_histogram_of_those_that_have_them(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    replica = Replica.objects.get()
    for load in (4.5, 9.0, None):
        StartTime.objects.create(
            replica=replica,
            revision=fleet.revision,
            pool=fleet.pool,
            level="cold",
            seconds=26.0,
            process_seconds=25.0,
            load_seconds=load,
        )
    found = shown(fleet_counts.read())
    # Sorted by label name: le, level, model, part, pool.
    assert found["hearth_start_part_seconds_bucket", "5.0", "cold", "tiny-chat", "load", "local"] == 1
    assert found["hearth_start_part_seconds_count", "cold", "tiny-chat", "load", "local"] == 2
    assert found["hearth_start_part_seconds_sum", "cold", "tiny-chat", "load", "local"] == 13.5
    assert not any("compile" in key for key in found)


def test_a_database_that_is_away_makes_the_fleet_absent() -> None:
    assert shown(None) == {}
