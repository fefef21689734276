"""A pool is lost and comes back: replicas go to the next pool at once, and back without an outage."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db.models.functions import Now

from tenants.audit import SYSTEM
from tests.workers.conftest import Fleet, add_node, expire_lease, renew
from workers.fleet import deployments, operations
from workers.models import Deployment, DeploymentPool, Node, Pool, Replica, ScaleDecision, Slot
from workers.scheduler import reconciler
from workers.serving import endpoints

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def long_running_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore that the test's PostgreSQL has just started, which would prevent any replica from being lost."""
    monkeypatch.setattr(reconciler, "DATABASE_GRACE", dt.timedelta(0))


@pytest.fixture
def far(fleet: Fleet) -> Pool:
    """A second pool with a node."""
    pool = deployments.ensure_pool(SYSTEM, name="far", kind="simulated")
    add_node(pool, "n2")
    return pool


def step() -> None:
    """Tick, and let what was placed serve and what stops end, as agents would."""
    reconciler.tick()
    for port, row in enumerate(Replica.objects.filter(state="reserved", desired_state="running"), start=4711):
        Replica.objects.filter(id=row.id).update(state="ready", host="127.0.0.1", port=port, generation=1)
    for row in Replica.objects.filter(desired_state="stopped").exclude(state__in=("stopped", "lost")):
        Replica.objects.filter(id=row.id).update(state="stopped")
        row.leases.filter(released_at=None).update(released_at=Now())
    Replica.objects.filter(desired_state="stopped", state="lost").update(state="stopped")


def serving() -> list[str]:
    """Return the nodes of the replicas that requests can go to."""
    by_id = dict(Replica.objects.values_list("id", "node__name"))
    return sorted(by_id[endpoint.replica_id] for endpoint in endpoints.ready())


def reasons(action: str) -> list[str]:
    return list(ScaleDecision.objects.filter(action=action).order_by("id").values_list("reason", flat=True))


def comes_back(fleet: Fleet) -> None:
    """Let the agent of the first pool's node return to an empty node, whose processes have ended."""
    renew(fleet.node)
    for row in Replica.objects.filter(node=fleet.node):
        row.leases.filter(released_at=None).update(released_at=Now())


def wait_out_the_delay() -> None:
    """Let the first pool have worked for longer than the down delay."""
    DeploymentPool.objects.exclude(works_since=None).update(works_since=Now() - dt.timedelta(seconds=301))


def test_a_lost_pool_is_replaced_at_once_and_gets_its_replicas_back_one_by_one(fleet: Fleet, far: Pool) -> None:
    fleet.deploy(2, pools=(fleet.pool, far))
    step()
    assert serving() == ["n1", "n1"]
    expire_lease(fleet.node)
    step()
    assert serving() == ["n2", "n2"]
    assert reasons("failover") == ["no node of pool local works (1 silent): 2 replicas are placed in pool far"]
    comes_back(fleet)
    for _ in range(3):
        step()
    assert serving() == ["n2", "n2"]  # a pool that has just come back may go again
    wait_out_the_delay()
    seen = []
    for _ in range(6):
        reconciler.tick()
        assert len(serving()) >= 2
        step()
        seen.append(serving())
    assert seen[-1] == ["n1", "n1"]
    assert reasons("failback") == 2 * ["pool local has worked again for 300 s: one replica moves back from pool far"]
    assert not DeploymentPool.objects.exclude(failed_over_at=None).exists()
    step()
    assert len(reasons("failover")) == 1


def test_a_pool_whose_nodes_are_cordoned_or_have_no_healthy_slot_does_not_work(fleet: Fleet, far: Pool) -> None:
    fleet.deploy(1, pools=(fleet.pool, far))
    add_node(fleet.pool, "n3", slots=1)
    Slot.objects.filter(node__name="n3").update(health="quarantined")
    operations.cordon(SYSTEM, "n1")
    step()
    assert serving() == ["n2"]
    assert reasons("failover") == [
        "no node of pool local works (1 cordoned, 1 without a healthy slot): 1 replica is placed in pool far"
    ]
    operations.uncordon(SYSTEM, "n1")
    step()
    wait_out_the_delay()
    for _ in range(3):
        step()
    assert serving() == ["n1"]


def test_what_was_only_full_is_no_failover(fleet: Fleet, far: Pool) -> None:
    slots = fleet.node.slots.count()
    fleet.deploy(slots + 1, pools=(fleet.pool, far))
    step()
    assert serving() == [*("n1" for _ in range(slots)), "n2"]
    assert reasons("failover") == []


def test_a_pool_that_goes_again_keeps_the_replica_that_was_about_to_move(fleet: Fleet, far: Pool) -> None:
    fleet.deploy(1, pools=(fleet.pool, far))
    step()
    expire_lease(fleet.node)
    step()
    comes_back(fleet)
    step()
    wait_out_the_delay()
    reconciler.tick()
    assert Replica.objects.get(moves_back=True).leaving
    expire_lease(fleet.node)
    Slot.objects.filter(node__name="n2", leases=None).update(health="quarantined")  # no room for anything else
    for _ in range(3):
        step()
        assert serving() == ["n2"]
    assert not Replica.objects.filter(moves_back=True).exists()


def test_a_move_waits_for_room_and_for_every_replica_to_serve(fleet: Fleet, far: Pool) -> None:
    row = fleet.deploy(1, pools=(fleet.pool, far))
    step()
    expire_lease(fleet.node)
    step()
    comes_back(fleet)
    step()
    wait_out_the_delay()
    Slot.objects.filter(node=fleet.node).update(health="quarantined")
    for _ in range(2):
        step()
    assert (serving(), reasons("failback")) == (["n2"], [])
    Slot.objects.filter(node=fleet.node).update(health="ok")
    Replica.objects.filter(state="ready").update(state="suspect")
    step()
    wait_out_the_delay()
    step()
    assert reasons("failback") == []
    Replica.objects.filter(state="suspect").update(state="ready")
    for _ in range(3):
        step()
    assert serving() == ["n1"]
    assert Deployment.objects.get(id=row.id).desired_replicas == 1
    assert Node.objects.filter(cordoned=True).count() == 0
