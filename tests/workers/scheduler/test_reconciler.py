"""One tick against the real database."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading

import pytest
from django.db import Error, connection, transaction
from django.db.models.functions import Now

from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from tests.workers.agent_processes import until
from tests.workers.conftest import Fleet, add_node, expire_lease, renew
from workers.errors import BadCount, Conflict, NotFound
from workers.fleet import deployments
from workers.models import Deployment, Level, Placeholder, Pool, Replica, ReplicaEvent, SlotLease
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases
from workers.serving import endpoints

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def long_running_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore that the test's PostgreSQL has just started, which would prevent any replica from being lost."""
    monkeypatch.setattr(reconciler, "DATABASE_GRACE", dt.timedelta(0))


def states() -> list[tuple[str, str]]:
    return list(Replica.objects.order_by("id").values_list("state", "desired_state"))


def make_ready() -> None:
    Replica.objects.filter(state="reserved").update(state="ready", host="127.0.0.1", port=4711, generation=1)


def test_a_tick_creates_what_is_missing_and_the_next_one_changes_nothing(fleet: Fleet) -> None:
    fleet.deploy(2)
    first, second = reconciler.tick(), reconciler.tick()
    assert first is not None and (first.placed, first.nodes) == (2, ("n1",))
    assert second is not None and (second.placed, second.stopped, second.nodes) == (0, 0, ())
    assert states() == [("reserved", "running")] * 2
    fences = list(Replica.objects.values_list("fence", flat=True))
    assert len(set(fences)) == 2 and min(fences) > 0


def test_scaling_down_withdraws_ready_replicas_from_routing_at_once(fleet: Fleet) -> None:
    fleet.deploy(2)
    reconciler.tick()
    make_ready()
    assert len(endpoints.ready()) == 2
    deployments.scale(SYSTEM, "chat", 1)
    reconciler.tick()
    assert sorted(states()) == [("ready", "running"), ("ready", "stopped")]
    (endpoint,) = endpoints.ready()
    assert endpoint.base_url == "http://127.0.0.1:4711"
    assert (endpoint.deployment, endpoint.model_name, endpoint.generation) == ("chat", "tiny-chat", 1)
    assert endpoint.api_key not in repr(endpoint)


def test_a_silent_node_loses_its_replicas_to_a_live_one(fleet: Fleet) -> None:
    other = add_node(fleet.pool, "n2")
    fleet.deploy(1)
    reconciler.tick()
    make_ready()
    expire_lease(fleet.node)
    renew(other)
    outcome = reconciler.tick()
    assert outcome is not None and (outcome.lost, outcome.placed, outcome.stopped) == (1, 1, 1)
    assert states() == [("lost", "stopped"), ("reserved", "running")]
    assert endpoints.ready() == ()
    reasons = list(ReplicaEvent.objects.order_by("id").values_list("to_state", "reason"))
    assert ("lost", "the node's lease expired") in reasons


def test_a_lost_replica_waits_for_its_node_when_there_is_no_other(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    expire_lease(fleet.node)
    reconciler.tick()
    assert states() == [("lost", "running")]


def test_a_database_that_was_down_loses_nobody(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "DATABASE_GRACE", dt.timedelta(days=1))
    fleet.deploy(1)
    reconciler.tick()
    expire_lease(fleet.node)
    outcome = reconciler.tick()
    assert outcome is not None and outcome.lost == 0


def test_a_cordoned_node_takes_no_new_replica(fleet: Fleet) -> None:
    type(fleet.node).objects.update(cordoned=True)
    fleet.deploy(1)
    reconciler.tick()
    assert states() == []


def test_a_failed_deployment_leaves_its_node_alone_until_an_operator_scales_it(fleet: Fleet) -> None:
    fleet.deploy(1)
    reconciler.tick()
    Replica.objects.update(state="failed", state_since=Now())
    reconciler.tick()
    assert states() == [("failed", "running")]
    deployments.scale(SYSTEM, "chat", 1)
    reconciler.tick()
    assert states() == [("failed", "stopped"), ("reserved", "running")]


def test_a_deployment_that_keeps_crashing_does_not_use_up_all_placeholders(fleet: Fleet) -> None:
    Pool.objects.update(placeholders_per_node=1, placeholder_level=Level.H2)
    fleet.deploy(1)
    for _ in range(2 * reconciler.MOST_REVIVALS + 4):
        reconciler.tick()
        Placeholder.objects.filter(state="requested").update(state="warm", level=Level.H2)
        Replica.objects.filter(desired_state="running").update(state="backoff", attempts=1, startup_seconds=1.0)
        for row in Replica.objects.filter(desired_state="stopped"):
            slot_leases.release(replica_id=row.id)
    assert Placeholder.objects.filter(state="promoted").count() == reconciler.MOST_REVIVALS
    assert Placeholder.objects.filter(state="warm").count() == 1
    assert Replica.objects.get(desired_state="running").state == "backoff"


def test_an_archived_deployment_stops(fleet: Fleet) -> None:
    deployment = fleet.deploy(1)
    reconciler.tick()
    deployment.archived_at = Now()
    deployment.save()
    reconciler.tick()
    assert states() == [("reserved", "stopped")]


def test_a_tick_makes_room_for_a_gang_and_warm_capacity_appears_in_the_next_pool(fleet: Fleet) -> None:
    """Scenario S1 by its rows: a node full of placeholders, and a deployment that takes two slots a replica."""
    overflow = deployments.ensure_pool(SYSTEM, name="overflow", kind="simulated")
    add_node(overflow, "n2")
    Pool.objects.filter(id=fleet.pool.id).update(placeholders_per_node=4, placeholder_level=Level.H0)
    Pool.objects.filter(id=overflow.id).update(placeholder_level=Level.H0)
    deployment = fleet.deploy(0, pools=(fleet.pool, overflow))
    Deployment.objects.filter(id=deployment.id).update(slots_per_replica=2)
    for _ in range(4):
        reconciler.tick()
        Placeholder.objects.filter(state="requested").update(state="warm")
    assert held() == ["n1"] * 4
    deployments.scale(SYSTEM, "chat", 1)
    outcome = reconciler.tick()
    assert outcome is not None and (outcome.placed, outcome.nodes) == (1, ("n1", "n2"))
    assert Placeholder.objects.filter(state="evicting").count() == 2
    for _ in range(3):
        reconciler.tick()
        Placeholder.objects.filter(state="requested").update(state="warm")
    assert held() == ["n1", "n1", "n2", "n2"]


def held() -> list[str]:
    """Return the nodes of the placeholders that have a slot."""
    open_leases = SlotLease.objects.filter(kind="placeholder", released_at=None)
    return list(open_leases.order_by("slot__node__name").values_list("slot__node__name", flat=True))


@pytest.mark.django_db(transaction=True)
def test_two_ticks_at_once_make_one(fleet: Fleet) -> None:
    fleet.deploy(1)
    seen: list[object] = []

    def other() -> None:
        seen.append(reconciler.tick())
        connection.close()

    with transaction.atomic():
        assert reconciler.lock(wait=False)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.django_db(transaction=True)
def test_a_process_suspended_in_a_tick_does_not_stop_the_fleet(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.deploy(1)
    locked, over = threading.Event(), threading.Event()

    def other() -> None:
        with contextlib.suppress(Error), transaction.atomic():
            reconciler.lock(wait=True)
            locked.set()
            over.wait(60)
        connection.close()

    thread = threading.Thread(target=other)
    with monkeypatch.context() as impatient:
        impatient.setattr(reconciler, "LONGEST_PAUSE_MS", 100)
        thread.start()
        assert locked.wait(60)
    try:
        outcome = until(reconciler.tick, seconds=30)
        assert outcome is not None and outcome.placed == 1
    finally:
        over.set()
        thread.join()


def test_asking_twice_changes_nothing_and_a_contradiction_is_refused(fleet: Fleet) -> None:
    assert deployments.ensure_pool(SYSTEM, name="local", kind="simulated") == fleet.pool
    assert deployments.ensure_node(SYSTEM, pool=fleet.pool, name="n1") == fleet.node
    with pytest.raises(Conflict):
        deployments.ensure_pool(SYSTEM, name="local", kind="gpu")
    fleet.deploy(1)
    with pytest.raises(Conflict):
        fleet.deploy(1)


def test_scaling_is_audited_once_and_bad_numbers_are_refused(fleet: Fleet) -> None:
    fleet.deploy(1)
    for _ in range(2):
        deployments.scale(SYSTEM, "chat", 3)
    (entry,) = AuditEntry.objects.filter(action="deployment.scaled")
    assert (entry.before, entry.after) == ({"replicas": 1}, {"replicas": 3})
    with pytest.raises(BadCount):
        deployments.scale(SYSTEM, "chat", -1)
    with pytest.raises(NotFound):
        deployments.scale(SYSTEM, "nowhere", 1)


def test_stopping_everything_leaves_the_numbers_for_the_next_start(fleet: Fleet) -> None:
    deployment = fleet.deploy(2)
    reconciler.tick()
    make_ready()
    assert deployments.stop_all(SYSTEM) == 2
    assert endpoints.ready() == ()
    deployment.refresh_from_db()
    assert deployment.desired_replicas == 2
