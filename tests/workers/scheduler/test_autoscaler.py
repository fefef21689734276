"""Scaling as part of reconcile: from rows to rows, in the real database."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from tenants.audit import SYSTEM
from tests.workers.conftest import Fleet, add_node, expire_lease
from tests.workers.scheduler.scaling_simulation import facts_from
from workers.fleet import deployments, rollouts
from workers.models import (
    Deployment,
    DeploymentPool,
    GatewayLoad,
    Level,
    Node,
    Placeholder,
    Pool,
    Replica,
    ScaleDecision,
    Slot,
    StartTime,
)
from workers.scheduler import reconciler
from workers.scheduler.scaling import autoscaler, scaling_policy
from workers.scheduler.slots import slot_leases
from workers.serving import gateway_load
from workers.serving.gateway_load import DeploymentLoad

pytestmark = pytest.mark.django_db


def deploy(fleet: Fleet, minimum: int, maximum: int, *pools: Pool, name: str = "chat", **changes: Any) -> Deployment:
    """Create a deployment of ``minimum`` replicas of 1,000 tokens that may grow at once and shrink after 300 s."""
    row = fleet.deploy(minimum, name=name, pools=pools)
    wanted = {"max_replicas": maximum, "target_tokens_per_replica": 1000, "scale_up_delay_seconds": 0.0}
    Deployment.objects.filter(id=row.id).update(**wanted | changes)
    row.refresh_from_db()
    return row


def in_flight(row: Deployment, tokens: int, *, held: int = 0, process: str = "gateway-1") -> None:
    load = DeploymentLoad(
        in_flight_requests=tokens // 100, in_flight_tokens=tokens, queued_requests=held // 100, queued_tokens=held
    )
    gateway_load.report(process, {row.id: load})


def desired(row: Deployment) -> int:
    row.refresh_from_db()
    return row.desired_replicas


def make_ready() -> None:
    Replica.objects.filter(state="reserved").update(state="ready", host="127.0.0.1", port=4711, generation=1)


def wait_for(row: Deployment, seconds: float) -> None:
    """Make the deployment's scaling memory older by this time."""
    age = dt.timedelta(seconds=seconds)
    row.refresh_from_db()
    for name in ("more_wanted_since", "less_wanted_since", "sampled_at"):
        if (value := getattr(row, name)) is not None:
            setattr(row, name, value - age)
    row.save()
    for link in DeploymentPool.objects.filter(deployment=row).exclude(not_needed_since=None):
        assert link.not_needed_since is not None
        link.not_needed_since -= age
        link.save()


@pytest.mark.long
def test_scaling_does_not_wait_for_the_extra_replica_of_a_rollout(fleet: Fleet) -> None:
    row = deploy(fleet, 1, 4)
    reconciler.tick()
    make_ready()
    rollouts.restart(SYSTEM, "chat")
    reconciler.tick()
    assert list(Replica.objects.order_by("id").values_list("state", flat=True)) == ["ready", "reserved"]
    in_flight(row, 2000)
    reconciler.tick()
    assert desired(row) == 2
    in_flight(row, 4000)
    reconciler.tick()
    assert desired(row) == 2  # its own second replica starts


def by_pool() -> dict[str, int]:
    """Count the wanted replicas of each pool."""
    rows = Replica.objects.filter(desired_state="running").values_list("node__pool__name", flat=True)
    return {name or "": list(rows).count(name) for name in rows}


def next_pool(fleet: Fleet, **changes: Any) -> Pool:
    pool = deployments.ensure_pool(SYSTEM, name="overflow", kind="simulated")
    Pool.objects.filter(id=pool.id).update(priority=200, **changes)
    add_node(pool, "n2")
    return pool


def test_load_becomes_replicas_and_a_decision_that_can_be_made_again(fleet: Fleet) -> None:
    row = deploy(fleet, 1, 4)
    reconciler.tick()
    make_ready()
    in_flight(row, 1200)
    in_flight(row, 1231, process="gateway-2")
    outcome = reconciler.tick()
    assert outcome is not None and outcome.placed == 2
    assert desired(row) == 3
    (decision,) = ScaleDecision.objects.all()
    assert (decision.action, decision.from_replicas, decision.to_replicas) == ("up", 1, 3)
    assert decision.reason == "2,431 tokens in flight want 3 replicas of 1,000, for 0 s; 1 exists, 0 start"
    again = scaling_policy.decide(facts_from(decision.inputs))
    assert [step.reason for step in again.steps] == [decision.reason]
    reconciler.tick()
    assert (desired(row), ScaleDecision.objects.count()) == (3, 1)


def test_replicas_that_start_are_supply_and_crashed_ones_are_not(fleet: Fleet) -> None:
    row = deploy(fleet, 1, 4)
    reconciler.tick()
    in_flight(row, 0, held=4000)
    reconciler.tick()
    assert desired(row) == 1
    Replica.objects.update(attempts=1)
    reconciler.tick()
    assert desired(row) == 4


def test_the_up_delay_is_told_by_the_database(fleet: Fleet) -> None:
    row = deploy(fleet, 1, 4, scale_up_delay_seconds=60.0)
    reconciler.tick()
    make_ready()
    in_flight(row, 2000)
    reconciler.tick()
    assert desired(row) == 1
    assert row.more_wanted_since is not None
    wait_for(row, 61)
    reconciler.tick()
    assert Deployment.objects.values_list("desired_replicas", "more_wanted_since").get() == (2, None)


def test_a_held_request_wakes_a_deployment_that_has_nothing(fleet: Fleet) -> None:
    row = deploy(fleet, 0, 4)
    reconciler.tick()
    assert Replica.objects.count() == 0
    in_flight(row, 0, held=100)
    outcome = reconciler.tick()
    assert outcome is not None and (outcome.placed, outcome.nodes) == (1, ("n1",))
    assert list(ScaleDecision.objects.values_list("action", flat=True)) == ["wake"]


def test_nothing_in_flight_for_the_down_delay_ends_the_last_replica(fleet: Fleet) -> None:
    row = deploy(fleet, 0, 4)
    in_flight(row, 0, held=100)
    reconciler.tick()
    make_ready()
    in_flight(row, 0)
    reconciler.tick()
    assert desired(row) == 1
    wait_for(row, 301)
    GatewayLoad.objects.update(busy_at=Now() - dt.timedelta(seconds=301))
    outcome = reconciler.tick()
    assert outcome is not None and outcome.stopped == 1
    assert desired(row) == 0
    last = ScaleDecision.objects.latest("id")
    assert last.reason == "nothing was in flight for 300 s; 0 tokens in flight now, 1,000 to a replica"


def test_requests_too_short_to_be_seen_in_flight_keep_the_last_replica(fleet: Fleet) -> None:
    row = deploy(fleet, 0, 4)
    in_flight(row, 0, held=100)
    reconciler.tick()
    make_ready()
    gateway_load.report("gateway-1", {row.id: DeploymentLoad()}, busy={row.id})
    reconciler.tick()
    wait_for(row, 301)
    reconciler.tick()
    assert desired(row) == 1
    GatewayLoad.objects.update(busy_at=Now() - dt.timedelta(seconds=301))
    reconciler.tick()
    assert desired(row) == 0


def test_gateways_that_are_silent_scale_nothing_down(fleet: Fleet) -> None:
    row = deploy(fleet, 0, 4)
    in_flight(row, 0, held=2000)
    reconciler.tick()
    make_ready()
    in_flight(row, 0)
    reconciler.tick()
    wait_for(row, 301)
    GatewayLoad.objects.update(reported_at=Now() - gateway_load.LASTS)
    reconciler.tick()
    assert (desired(row), row.less_wanted_since) == (2, None)


def test_a_process_that_is_gone_counts_for_nothing(fleet: Fleet) -> None:
    row = deploy(fleet, 1, 4)
    reconciler.tick()
    make_ready()
    in_flight(row, 3000, process="gone")
    GatewayLoad.objects.update(reported_at=Now() - gateway_load.LASTS)
    in_flight(row, 900)
    reconciler.tick()
    assert desired(row) == 1


def test_the_next_pool_is_prepared_before_the_first_is_full_and_given_back_later(fleet: Fleet) -> None:
    row = deploy(fleet, 1, 8, fleet.pool, next_pool(fleet))
    reconciler.tick()
    make_ready()
    in_flight(row, 2700)
    reconciler.tick()
    make_ready()
    assert by_pool() == {"local": 3}
    in_flight(row, 2900)
    outcome = reconciler.tick()
    assert outcome is not None and outcome.nodes == ("n2",)
    make_ready()
    assert by_pool() == {"local": 3, "overflow": 1}
    prepared = ScaleDecision.objects.latest("id")
    assert prepared.pool is not None
    assert (prepared.action, prepared.pool.name) == ("prepare", "overflow")
    in_flight(row, 1500)
    reconciler.tick()
    wait_for(row, 301)
    reconciler.tick()
    assert by_pool() == {"local": 2}
    actions = list(ScaleDecision.objects.order_by("id").values_list("action", "from_replicas", "to_replicas"))
    assert actions == [("up", 1, 3), ("prepare", 3, 4), ("release", 4, 3), ("down", 3, 2)]


def test_a_fixed_deployment_keeps_its_number_whatever_the_load(fleet: Fleet) -> None:
    row = deploy(fleet, 2, 2)
    in_flight(row, 99_000)
    reconciler.tick()
    assert (desired(row), ScaleDecision.objects.count(), row.sampled_at) == (2, 0, None)


def test_an_archived_deployment_is_not_scaled(fleet: Fleet) -> None:
    row = deploy(fleet, 0, 2, archived_at=Now())
    in_flight(row, 0, held=500)
    reconciler.tick()
    assert (desired(row), Replica.objects.count()) == (0, 0)


def test_room_is_what_live_nodes_can_give_to_whole_gangs(fleet: Fleet) -> None:
    """Four nodes of four slots: one cordoned, one silent, one with a quarantined slot, one with a replica's."""
    row = deploy(fleet, 0, 8, slots_per_replica=2)
    other = deploy(fleet, 1, 1, name="other")
    assert reconciler.reserve(other, fleet.node.id) is not None
    nodes = [add_node(fleet.pool, f"n{number}") for number in (2, 3, 4)]
    Node.objects.filter(id=nodes[0].id).update(cordoned=True)
    expire_lease(nodes[1])
    Slot.objects.filter(node=nodes[2], index=0).update(health=Slot.Health.QUARANTINED)
    placeholder = Placeholder.objects.create(node=fleet.node, target_level=Level.H0, state="warm")
    assert slot_leases.lease_for_placeholder(placeholder.id, fleet.node.id) is not None
    in_flight(row, 0, held=100)
    autoscaler.decide_all()
    (decision,) = ScaleDecision.objects.filter(deployment=row)
    (facts,) = facts_from(decision.inputs).pools
    assert (facts.replicas, facts.room) == (0, 2)


@pytest.mark.parametrize(("warm", "seconds"), [(True, 4.0), (False, 26.0)])
def test_a_start_takes_what_was_measured_from_the_warmth_the_pool_has(fleet: Fleet, warm: bool, seconds: float) -> None:
    row = deploy(fleet, 0, 8)
    measured = reconciler.reserve(row, fleet.node.id)
    assert measured is not None
    for level, took in ((Level.COLD, 26.0), (Level.H2, 4.0)):
        StartTime.objects.create(
            replica=measured, revision=row.revision, pool=fleet.pool, level=level, seconds=took, process_seconds=took
        )
    if warm:
        Placeholder.objects.create(
            node=fleet.node, target_level=Level.H2, level=Level.H2, state="warm", engine="simulated"
        )
    in_flight(row, 0, held=100)
    autoscaler.decide_all()
    (decision,) = ScaleDecision.objects.all()
    assert facts_from(decision.inputs).pools[0].start_seconds == seconds


def test_a_larger_fleet_takes_no_more_statements(fleet: Fleet) -> None:
    def statements() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert autoscaler.decide_all() > 0
        return len(captured)

    def load_all() -> None:
        gateway_load.report(
            "gateway-1",
            {row.id: DeploymentLoad(queued_requests=1, queued_tokens=100) for row in Deployment.objects.all()},
        )

    overflow = next_pool(fleet)
    deploy(fleet, 0, 4, fleet.pool, overflow, name="first")
    load_all()
    of_one = statements()
    for number in range(20):
        deploy(fleet, 0, 4, fleet.pool, overflow, name=f"more-{number}")
        add_node(fleet.pool, f"more-{number}")
    load_all()
    assert statements() == of_one
    assert Deployment.objects.aggregate(all=Sum("desired_replicas"))["all"] == 21
