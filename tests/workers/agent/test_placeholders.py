"""Placeholders against simulated engines: warmed, promoted, evicted, and warmed again; all processes are real."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
from pathlib import Path

import pytest

from tenants.audit import SYSTEM
from tests.workers.agent_processes import NODE, agent_thread, identity_of, in_state, records, settled, until, warm
from tests.workers.conftest import Fleet, expire_lease
from workers import processes
from workers.agent.placeholder import PlaceholderLifecycle
from workers.agent.processes.engine_account import engine_account
from workers.agent.processes.paths import AgentPaths, Folders
from workers.agent.processes.process_records import ProcessRecords, ZygoteRecord
from workers.agent.processes.slot_guard import SlotGuard
from workers.agent.processes.zygote import Zygote, ZygoteProcesses
from workers.agent.store.placeholder_rows import PlaceholderRows
from workers.agent.store.replica_rows import NodeRows
from workers.agent.timeouts import Timeouts
from workers.agent.wakeup import WakeEvent
from workers.devices.cpu import CpuShares
from workers.devices.fake import FakeDevices
from workers.fleet import deployments
from workers.metrics import AgentCounters
from workers.models import Deployment, Node, Placeholder, Pool, Replica, ReplicaEvent, SlotLease, StartTime
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


@pytest.fixture
def shelf(fleet: Fleet) -> Deployment:
    """A deployment that wants no replica yet, in a pool that keeps one zygote per node."""
    Pool.objects.update(placeholders_per_node=1, placeholder_level="h2")
    deployment = fleet.deploy(1)
    size(deployment, 0)
    return deployment


def size(deployment: Deployment, replicas: int) -> None:
    """Set the number of replicas, with a higher maximum."""
    Deployment.objects.filter(id=deployment.id).update(min_replicas=0, desired_replicas=replicas, max_replicas=4)
    Deployment.objects.filter(id=deployment.id).update(min_replicas=replicas)


def zygotes(data_dir: Path) -> list[int]:
    """Return the pids of the zygotes in the process records."""
    return [record.pid for record in ProcessRecords(data_dir / "engines", NODE).zygotes()]


def test_a_warm_placeholder_becomes_the_replica_and_the_pool_refills(shelf: Deployment, data_dir: Path) -> None:
    with agent_thread(data_dir) as agent:
        (before,) = settled(warm("h2"))
        assert before.warm_seconds and before.memory_bytes and before.deployment_id == shelf.id
        assert zygotes(data_dir) == [before.pid]
        size(shelf, 1)
        (replica,) = settled(in_state("ready"))
        (after,) = settled(warm("h2"))
    assert identity_of(replica) == identity_of(before), "the process that waited is the one that serves"
    assert (replica.start_level, replica.start_note, replica.generation) == ("h2", "", 1)
    assert Placeholder.objects.get(id=before.id).state == "promoted" and replica.placeholder_id == before.id
    assert after.id != before.id and zygotes(data_dir) == [after.pid]
    assert [record.pid for record in records(data_dir)] == [replica.pid]
    measured = StartTime.objects.get()
    assert (measured.level, measured.revision_id) == ("h2", shelf.revision_id)
    assert 0 < measured.process_seconds <= measured.seconds
    assert measured.process_seconds == replica.startup_seconds
    assert (agent.counters.promoted, agent.counters.promotions_failed) == (1, 0)


def test_a_placeholder_of_two_devices_becomes_a_replica_on_both(shelf: Deployment, data_dir: Path) -> None:
    Deployment.objects.update(slots_per_replica=2)
    Pool.objects.update(kind="gpu")
    with agent_thread(data_dir, devices=FakeDevices(2, data_dir / FakeDevices.FILE)):
        (before,) = settled(warm("h2"))
        held = list(SlotLease.objects.filter(placeholder=before).values_list("slot__device_uuid", flat=True))
        size(shelf, 1)
        (replica,) = settled(in_state("ready"))
    assert identity_of(replica) == identity_of(before)
    assert (sorted(held), replica.start_level, replica.start_note) == (["fake-0", "fake-1"], "h2", "")
    assert SlotLease.objects.filter(replica=replica, released_at=None).count() == 2


def test_a_crashed_engine_that_was_promoted_starts_again_on_its_slots_from_nothing(
    shelf: Deployment, data_dir: Path
) -> None:
    with agent_thread(data_dir):
        settled(warm("h2"))
        size(shelf, 1)
        (before,) = settled(in_state("ready"))
        lease = SlotLease.objects.get(replica=before, released_at=None)
        os.killpg(identity_of(before).pid, signal.SIGKILL)
        after = until(lambda: Replica.objects.filter(state="ready", generation=2).first())
    assert after is not None and after.start_level == "cold"
    assert SlotLease.objects.get(replica=before, released_at=None) == lease
    assert list(StartTime.objects.order_by("id").values_list("level", flat=True)) == ["h2", "cold"]


def test_a_zygote_that_does_not_answer_is_killed_and_the_start_is_plain_and_says_so(
    shelf: Deployment, data_dir: Path
) -> None:
    with agent_thread(data_dir) as agent:
        (before,) = settled(warm("h2"))
        os.kill(identity_of(before).pid, signal.SIGSTOP)
        size(shelf, 1)
        (replica,) = settled(in_state("ready"))
    assert identity_of(replica) != identity_of(before)
    assert processes.session_members(identity_of(before)) == []
    assert replica.start_level == "h0"
    assert replica.start_note.startswith("placeholder could not be promoted: ")
    assert agent.counters.promotions_failed == 1


def test_the_zygote_of_another_engine_is_gone_before_the_replica_starts_on_its_slot(
    shelf: Deployment, data_dir: Path
) -> None:
    with agent_thread(data_dir, devices=CpuShares(1)) as agent:
        (before,) = settled(warm("h2"))
        Placeholder.objects.update(engine="vllm")
        size(shelf, 1)
        (replica,) = settled(in_state("ready"))
        assert agent.counters.placeholders_evicted == 1
    evicted = Placeholder.objects.get(id=before.id)
    assert (evicted.state, evicted.pid) == ("evicted", None)
    assert evicted.reason.startswith("its slot is needed by chat/")
    assert processes.session_members(identity_of(before)) == [] and zygotes(data_dir) == []
    started = ReplicaEvent.objects.get(replica=replica, to_state="starting")
    assert evicted.state_since <= started.created_at
    assert replica.start_level == "h0" and replica.placeholder_id is None


def test_a_zygote_that_ends_is_warmed_again(shelf: Deployment, data_dir: Path) -> None:
    with agent_thread(data_dir):
        (before,) = settled(warm("h2"))
        os.kill(identity_of(before).pid, signal.SIGKILL)
        after = until(lambda: Placeholder.objects.filter(state="warm", level="h2").exclude(pid=before.pid).first())
    assert after is not None and after.id == before.id
    assert zygotes(data_dir) == [after.pid]


def test_an_engine_whose_zygote_cannot_start_leaves_its_slot_warm_at_h0_with_the_reason(
    shelf: Deployment, fleet: Fleet, data_dir: Path
) -> None:
    type(fleet.revision).objects.update(engine_args=["--no-such-flag"])
    with agent_thread(data_dir):
        (row,) = settled(warm("h0"))
    assert "status 2" in row.reason and row.reason.endswith("--no-such-flag; given up after 3 tries")
    assert zygotes(data_dir) == []


def test_a_placeholder_of_no_deployment_holds_its_slot_only(shelf: Deployment, data_dir: Path) -> None:
    reconciler.tick()
    assert Placeholder.objects.update(deployment=None) == 1
    with agent_thread(data_dir):
        (row,) = until(warm("h0"))
    assert row.reason == "no deployment uses its pool, so there is no engine to import"
    assert zygotes(data_dir) == []


def test_a_fleet_that_stops_keeps_no_placeholder(shelf: Deployment, data_dir: Path) -> None:
    with agent_thread(data_dir):
        (row,) = settled(warm("h2"))
        deployments.stop_all(SYSTEM)
        until(lambda: Placeholder.objects.filter(state="evicted").exists())
    assert processes.session_members(identity_of(row)) == [] and zygotes(data_dir) == []
    assert not SlotLease.objects.filter(released_at=None).exists()


def test_every_evicted_placeholder_is_killed_before_the_end_of_one_is_waited_for(fleet: Fleet, data_dir: Path) -> None:
    rows = NodeRows.take(NODE)
    folders = Folders(data=data_dir, sockets=data_dir, account=engine_account(""))
    paths = AgentPaths(node=NODE, address="127.0.0.1", folders=folders)
    counters = AgentCounters()
    guard = SlotGuard(rows, paths, CpuShares(4), counters, patience_seconds=1)
    lifecycle = PlaceholderLifecycle(
        PlaceholderRows(rows), ZygoteProcesses(paths), guard, WakeEvent(), Timeouts(), counters
    )
    started = {}
    for state in ("evicting", "evicting", "warm"):
        row = Placeholder.objects.create(node=fleet.node, target_level="h2", level="h2", state=state)
        fence = slot_leases.lease_for_placeholder(row.id, fleet.node.id)
        assert fence is not None
        Placeholder.objects.filter(id=row.id).update(fence=fence)
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        process = processes.launch(command, log_path=paths.zygote_log(row.id), environment={})
        record = ZygoteRecord(
            placeholder_id=row.id,
            node=NODE,
            fence=fence,
            pid=process.pid,
            start_ticks=process.start_ticks,
            boot_id=paths.boot_id,
            devices=(),
        )
        paths.registry.write(record)
        lifecycle.keep(Zygote(record, 60))
        started[row.id] = process
    found = PlaceholderRows(rows).all()
    lifecycle.kill_evicted(found)
    first, second, warm_one = started.values()
    until(lambda: not processes.is_running(first) and not processes.is_running(second))
    assert processes.is_running(warm_one)
    for each in found[:2]:
        lifecycle.step(each)
    assert sorted(Placeholder.objects.values_list("state", flat=True)) == ["evicted", "evicted", "warm"]
    assert (zygotes(data_dir), counters.placeholders_evicted) == ([warm_one.pid], 2)


def test_a_placeholder_lost_with_its_node_goes_on_when_the_agent_returns(
    shelf: Deployment, fleet: Fleet, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "DATABASE_GRACE", dt.timedelta(0))
    with agent_thread(data_dir):
        (before,) = settled(warm("h2"))
    expire_lease(fleet.node)
    reconciler.tick()
    assert Placeholder.objects.get().state == "lost"
    with agent_thread(data_dir):
        (after,) = until(warm("h2"))
    assert after.id == before.id and identity_of(after) == identity_of(before)
    assert Node.objects.get().epoch == 2
