"""The placeholders of every pool, kept in the real database."""

from __future__ import annotations

import pytest
from django.db.models import F, Q
from django.db.models.functions import Now

from catalogue.models import ModelRevision
from tenants.audit import SYSTEM
from tests.workers.agent_processes import SLOTS
from tests.workers.conftest import Fleet, add_node, expire_lease
from workers.devices import gpu_report
from workers.fleet import deployments
from workers.fleet.status import inventory
from workers.models import Level, Node, Placeholder, Pool, Replica, Slot, SlotLease
from workers.scheduler import placeholder_pools, reconciler

pytestmark = pytest.mark.django_db
WITH_SLOT = Q(state__in=placeholder_pools.LEASED_STATES)


def keep(pool: Pool, per_node: int, level: Level = Level.H2) -> None:
    Pool.objects.filter(id=pool.id).update(placeholders_per_node=per_node, placeholder_level=level)


def settle(rounds: int = 8) -> None:
    """Fill until nothing changes; each time the agents warm the requested placeholders."""
    for _ in range(rounds):
        placeholder_pools.fill()
        Placeholder.objects.filter(state="requested").update(state="warm", level=Level.H2, state_since=Now())


def held() -> dict[str, int]:
    names = list(Placeholder.objects.filter(WITH_SLOT).values_list("node__name", flat=True))
    return {name: names.count(name) for name in sorted(names)}


def overflow(name: str = "another", nodes: int = 1, *, slots: int = 4) -> Pool:
    """Add a pool of the same priority whose nodes are named after it."""
    pool = deployments.ensure_pool(SYSTEM, name=name, kind="simulated")
    for number in range(1, nodes + 1):
        add_node(pool, f"{name}-{number}", slots=slots)
    return pool


def fill_up(fleet: Fleet, replicas: int) -> None:
    """Create ready replicas on the first node."""
    for _ in range(replicas):
        assert reconciler.reserve(fleet.deploy(1, name=f"full-{Replica.objects.count()}"), fleet.node.id) is not None
    Replica.objects.update(state="ready")


def test_each_node_gets_what_its_pool_wants_one_at_a_time(fleet: Fleet) -> None:
    add_node(fleet.pool, "n2")
    deployment = fleet.deploy(1)
    keep(fleet.pool, 2)
    assert len(placeholder_pools.fill()) == 2
    assert held() == {"n1": 1, "n2": 1}
    assert placeholder_pools.fill() == []
    settle()
    assert held() == {"n1": 2, "n2": 2}
    for row in Placeholder.objects.all():
        assert (row.deployment_id, row.engine, row.target_level) == (deployment.id, "simulated", "h2")
        assert row.fence == row.leases.get(released_at=None).fence > 0


def test_a_placeholder_on_gpus_has_all_slots_of_the_replica_it_may_become(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    type(deployment).objects.update(slots_per_replica=2)
    Pool.objects.update(kind="gpu")
    keep(fleet.pool, 3)
    settle()
    assert held() == {"n1": SLOTS // 2}
    for row in Placeholder.objects.all():
        assert (row.slot_count, row.leases.filter(released_at=None).count()) == (2, 2)
    keep(fleet.pool, 3, Level.H0)
    placeholder_pools.evict_unfit(deployment, deployment.revision, 2)
    assert sum(held().values()) == SLOTS // 2
    placeholder_pools.evict_unfit(deployment, deployment.revision, 1)
    assert held() == {}


def test_a_placeholder_with_one_gpu_gives_way_to_one_with_those_that_the_replica_needs(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    Pool.objects.update(kind="gpu")
    keep(fleet.pool, 1)
    settle()
    assert list(Placeholder.objects.filter(WITH_SLOT).values_list("slot_count", flat=True)) == [1]
    type(deployment).objects.update(slots_per_replica=2)
    settle()
    assert list(Placeholder.objects.filter(WITH_SLOT).values_list("slot_count", flat=True)) == [2]
    assert (
        Placeholder.objects.get(state="evicting").reason == "a replica of its deployment needs another number of slots"
    )
    assert SlotLease.objects.filter(released_at=None).count() == 2


def test_a_node_where_a_replica_starts_is_left_in_peace(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    keep(fleet.pool, 1)
    replica = reconciler.reserve(deployment, fleet.node.id)
    assert replica is not None
    assert placeholder_pools.fill() == []
    Replica.objects.update(state="ready")
    assert placeholder_pools.fill() == [fleet.node.id]


def test_surplus_placeholders_are_evicted_the_least_ready_first(fleet: Fleet) -> None:
    fleet.deploy(1)
    keep(fleet.pool, 3)
    settle()
    keep(fleet.pool, 1)
    first = Placeholder.objects.earliest("id")
    Placeholder.objects.exclude(id=first.id).update(state="warming")
    assert placeholder_pools.fill() == [fleet.node.id]
    assert list(Placeholder.objects.filter(WITH_SLOT)) == [first]
    assert set(Placeholder.objects.filter(state="evicting").values_list("reason", flat=True)) == {
        "its pool has more placeholders than it wants"
    }
    assert SlotLease.objects.filter(released_at=None).count() == 1


def test_cordoned_silent_and_faulty_places_get_none(fleet: Fleet) -> None:
    fleet.deploy(1)
    keep(fleet.pool, 1)
    Node.objects.filter(id=add_node(fleet.pool, "cordoned").id).update(cordoned=True)
    expire_lease(add_node(fleet.pool, "silent"))
    Slot.objects.filter(node=add_node(fleet.pool, "faulty")).update(health=Slot.Health.QUARANTINED)
    settle()
    assert set(held()) == {"n1"}


def test_what_a_cordoned_node_has_stays(fleet: Fleet) -> None:
    fleet.deploy(1)
    keep(fleet.pool, 1)
    settle()
    Node.objects.update(cordoned=True)
    settle()
    assert held() == {"n1": 1}


def test_a_full_pool_keeps_its_warm_capacity_in_the_pool_its_deployments_overflow_to(fleet: Fleet) -> None:
    fleet.deploy(1, pools=(fleet.pool, overflow(nodes=2)))
    keep(fleet.pool, 2)
    settle()
    assert held() == {"n1": 2}
    fill_up(fleet, 4)
    settle()
    assert held() == {"another-1": 1, "another-2": 1}
    assert Placeholder.objects.filter(state="promoted").count() == 2


def test_it_returns_when_the_first_pool_has_room_again(fleet: Fleet) -> None:
    fleet.deploy(1, pools=(fleet.pool, overflow()))
    keep(fleet.pool, 1)
    fill_up(fleet, 4)
    settle()
    assert held() == {"another-1": 1}
    SlotLease.objects.filter(kind="replica").update(released_at=Now())
    settle()
    assert held() == {"n1": 1}


def test_a_pool_that_no_deployment_overflows_to_gets_nothing_of_another(fleet: Fleet) -> None:
    fleet.deploy(1)
    fleet.deploy(1, name="elsewhere", pools=(overflow(),))
    keep(fleet.pool, 1)
    fill_up(fleet, 4)
    settle()
    assert held() == {}


def test_the_deployment_with_the_fewest_is_warmed_for_next(fleet: Fleet) -> None:
    first, second = fleet.deploy(1, name="first"), fleet.deploy(1, name="second")
    fleet.deploy(0, name="switched-off")
    keep(fleet.pool, 4)
    settle()
    warmed = list(Placeholder.objects.order_by("id").values_list("deployment_id", flat=True))
    assert sorted(warmed) == sorted([first.id, second.id] * 2)
    assert warmed[0] != warmed[1]


def test_without_a_deployment_a_slot_is_only_held(fleet: Fleet) -> None:
    keep(fleet.pool, 1)
    settle()
    assert held() == {}
    keep(fleet.pool, 1, Level.H0)
    settle()
    assert held() == {"n1": 1}


def test_a_promoted_placeholder_is_replaced(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    keep(fleet.pool, 1)
    settle()
    replica = reconciler.reserve(deployment, fleet.node.id)
    assert replica is not None and replica.placeholder is not None
    Replica.objects.update(state="ready")
    settle()
    assert held() == {"n1": 1}
    assert Placeholder.objects.count() == 2


def report(node: Node, *, engine: str = "vllm 1", devices: str = "GPU", **verdicts: str) -> None:
    """Store what gpu-check found: ``promotion="fail"``, ``gang="pass"``."""
    names = {"promotion": gpu_report.PROMOTION, "gang": gpu_report.GANG_PROMOTION}
    checks = [{"check": names[name], "verdict": verdict, "text": "so."} for name, verdict in verdicts.items()]
    found = {"made_at": "2026-11-01T10:00:00Z", "devices": devices, "engine": engine, "checks": checks}
    Node.objects.filter(id=node.id).update(gpu_check=found, engines=["vllm 1", "vllm 2"], engines_epoch=F("epoch"))


def gpus(fleet: Fleet, slots: int) -> None:
    """Make the pool one of GPUs that keeps one placeholder for real vLLM."""
    deployment = fleet.deploy(1)
    ModelRevision.objects.update(engine="vllm")
    type(deployment).objects.update(slots_per_replica=slots)
    Pool.objects.update(kind="gpu")
    keep(fleet.pool, 1)


@pytest.mark.parametrize(
    ("found", "kept", "why"),
    [
        ({}, False, "it has not been run there"),
        ({"promotion": "pass", "gang": "pass"}, True, ""),
        ({"promotion": "pass", "gang": "untried"}, False, "untried there: so."),
        ({"promotion": "pass"}, False, "it was not made there"),
        ({"promotion": "fail", "gang": "pass"}, False, "failed there: so."),
        ({"gang": "pass", "engine": "vllm 2"}, False, "it tried vllm 2 there, not vllm 1"),
        ({"gang": "pass", "devices": "fake device"}, False, "it has not been run there"),
    ],
)
def test_a_placeholder_of_several_gpus_is_kept_where_its_promotion_was_shown(
    fleet: Fleet, found: dict[str, str], kept: bool, why: str
) -> None:
    gpus(fleet, 2)
    if found:
        report(fleet.node, **found)
    settle()
    assert held() == ({"n1": 1} if kept else {})
    (node,) = inventory.read().nodes
    assert bool(node.promotion_obstacles) != kept
    assert why in "".join(node.promotion_obstacles)


def test_a_placeholder_of_one_gpu_is_kept_until_its_promotion_fails(fleet: Fleet) -> None:
    gpus(fleet, 1)
    settle()
    report(fleet.node, promotion="untried")
    settle()
    assert held() == {"n1": 1}
    report(fleet.node, engine="vllm 2", promotion="fail")
    settle()
    assert held() == {"n1": 1}
    report(fleet.node, promotion="fail")
    assert placeholder_pools.fill() == [fleet.node.id]
    assert held() == {}
    reason = Placeholder.objects.get(state="evicting").reason
    assert reason == "the check “promotion” of hearth gpu-check failed there: so."
    report(fleet.node, promotion="pass")
    settle()
    assert held() == {"n1": 1}


def test_what_gpu_check_found_counts_for_gpus_and_promotion_alone(fleet: Fleet) -> None:
    gpus(fleet, 1)
    report(fleet.node, promotion="fail")
    Pool.objects.update(kind="cpu")
    assert placeholder_pools.fill() == [fleet.node.id]
    Pool.objects.update(kind="gpu")
    keep(fleet.pool, 1, Level.H0)
    assert placeholder_pools.fill() == []
    assert held() == {"n1": 1}
    assert inventory.read().nodes[0].promotion_obstacles == ()


@pytest.mark.parametrize("slots", [1, 2])
def test_what_is_warm_stays_until_an_agent_that_came_back_has_reported_its_engines(fleet: Fleet, slots: int) -> None:
    gpus(fleet, slots)
    report(fleet.node, promotion="pass", gang="pass")
    settle()
    assert held() == {"n1": 1}
    Node.objects.update(epoch=F("epoch") + 1)
    assert placeholder_pools.fill() == []
    report(fleet.node, engine="vllm 1", promotion="fail")
    Node.objects.update(epoch=F("epoch") + 1)
    assert placeholder_pools.fill() == []
    Node.objects.update(engines_epoch=F("epoch"))
    assert placeholder_pools.fill() == [fleet.node.id]
    assert held() == {}
