"""Pools as operators set them up, and deployments that require something of their pools."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tenants.audit import Actor
from tenants.models import AuditEntry
from tests.workers.conftest import Fleet, add_node
from workers.errors import BadCount, BadValue, Conflict, NotFound, Refused
from workers.fleet import operations, pools
from workers.fleet.status import inventory
from workers.models import Node, Placeholder, Pool, Replica, Slot
from workers.scheduler import reconciler

pytestmark = pytest.mark.django_db

ADA = Actor(kind="user", name="ada")
SETTINGS = "kind=simulated priority=10 region=eu gpu_type=h100 labels=net:ib,tier:spot slot_hour_usd=2.5"


def test_a_pool_is_made_set_and_set_again_without_a_change() -> None:
    made = operations.pool_set(ADA, "fast", SETTINGS)
    assert made.changed
    assert made.now == (
        "has priority=10 region=eu high_water=0.7 low_water=0.45 staged_share=0 gpu_type=H100 "
        "labels=net:ib,tier:spot slot_hour_usd=2.50"
    )
    assert Pool.objects.get().slot_hour_pico == Decimal("2.5") * 10**12
    assert not operations.pool_set(ADA, "fast", SETTINGS).changed
    assert operations.pool_set(ADA, "fast", "labels= slot_hour_usd= low_water=0.2").changed
    row = Pool.objects.get()
    assert (row.labels, row.slot_hour_pico, row.low_water, row.gpu_type) == ({}, None, 0.2, "H100")
    assert list(AuditEntry.objects.order_by("id").values_list("action", flat=True)) == ["pool.created", "pool.changed"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("priority=x", BadValue),
        ("priority=40000", BadCount),
        ("speed=9", BadValue),
        ("labels=Net:ib", BadValue),
        ("labels=net", BadValue),
        ("low_water=0.8", BadCount),
        ("high_water=nan", BadCount),
        ("slot_hour_usd=-1", BadValue),
        ("slot_hour_usd=nan", BadValue),
        ("slot_hour_usd=0.0000000000001", BadValue),
        ("gpu_type=<b>", BadValue),
        ("region=a,b", BadValue),
        ("kind=gpu", Conflict),
    ],
)
def test_a_wrong_setting_changes_nothing(fleet: Fleet, given: str, error: type[Exception]) -> None:
    before = pools.settings_of(Pool.objects.get())
    with pytest.raises(error):
        operations.pool_set(ADA, "local", f"gpu_type=L4 {given}" if "gpu_type" not in given else given)
    assert pools.settings_of(Pool.objects.get()) == before


def test_a_pool_without_a_kind_is_not_made(fleet: Fleet) -> None:
    with pytest.raises(NotFound) as error:
        operations.pool_set(ADA, "fast", "priority=1")
    assert error.value.known == ("local", "kind=gpu to make it")


def test_replicas_and_placeholders_go_only_where_the_requirements_are_met(fleet: Fleet) -> None:
    operations.pool_set(ADA, "fast", SETTINGS)
    fast = Pool.objects.get(name="fast")
    add_node(fast, "n2")
    fleet.deploy(1, pools=(fleet.pool, fast))
    operations.warm(ADA, "local", 1, "h2")
    effect = operations.require(ADA, "chat", "gpu_types=h200,H100 labels=net:ib")
    assert effect.now.endswith("left out: pool local has no GPU type, not H200 or H100")
    reconciler.tick()
    row = Replica.objects.select_related("node").get()
    assert row.node is not None and row.node.name == "n2"
    assert not Placeholder.objects.exists()
    found = inventory.read().deployments[0]
    assert found.left_out == ("pool local has no GPU type, not H200 or H100",)
    assert found.hour_pico == Decimal("2.5") * 10**12
    assert operations.require(ADA, "chat").now == "requires nothing of its pools"
    assert not operations.require(ADA, "chat").changed


def test_a_requirement_that_no_pool_meets_is_refused(fleet: Fleet) -> None:
    fleet.deploy(1)
    with pytest.raises(Refused) as error:
        operations.require(ADA, "chat", "labels=net:ib")
    assert error.value.why == "none of its pools has what it would require: pool local has no label net, not net:ib"
    with pytest.raises(BadValue):
        operations.require(ADA, "chat", "gpu=H100")


def test_what_a_running_replica_holds_stays_when_its_pool_no_longer_fits(fleet: Fleet) -> None:
    operations.pool_set(ADA, "local", "gpu_type=L4")
    fleet.deploy(1)
    operations.require(ADA, "chat", "gpu_types=L4")
    reconciler.tick()
    operations.pool_set(ADA, "local", "gpu_type=T4")
    reconciler.tick()
    (row,) = Replica.objects.all()
    assert row.desired_state == Replica.Desired.RUNNING
    found = inventory.read().deployments[0]
    assert found.left_out == ("pool local has GPUs of type T4, not L4",)
    assert found.hour_pico is None


def test_the_sizer_reads_the_gpus_of_a_pool(fleet: Fleet) -> None:
    with pytest.raises(Refused):
        pools.gpus_of("local")
    operations.pool_set(ADA, "local", "gpu_type=H100")
    found = pools.gpus_of("local")
    assert (found.gpu, found.per_node) == ("H100", fleet.node.slots.count())


def test_the_summary_of_the_overview_says_what_the_fleet_says(fleet: Fleet) -> None:
    fast = Pool.objects.create(name="fast", kind="simulated", placeholders_per_node=3)
    add_node(fast, "n2")
    add_node(fast, "gone")
    Node.objects.filter(name="gone").update(lease_expires_at=None)
    fleet.deploy(3, pools=(fleet.pool, fast))
    operations.warm(ADA, "local", 1, "h2")
    reconciler.tick()
    first = Replica.objects.order_by("id").first()
    assert first is not None
    Replica.objects.exclude(id=first.id).update(state=Replica.State.READY)
    Placeholder.objects.update(state=Placeholder.State.WARM)
    Slot.objects.filter(node__name="gone", index=0).update(health=Slot.Health.QUARANTINED)
    whole, found = inventory.read(), inventory.summary()
    assert [(each.name, each.ready, each.desired, each.is_short) for each in found.deployments] == [
        (each.name, each.ready, each.desired, each.is_short) for each in whole.deployments
    ]
    assert [each.ready for each in found.deployments] == [2]
    for name in ("placeholders_warm", "placeholders_wanted", "faulty_slots"):
        assert getattr(found, name) == getattr(whole, name) > 0, name
