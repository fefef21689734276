"""Gangs of simulated devices that fail on demand: taken together, verified free, quarantined, given up together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tenants.audit import SYSTEM
from tests.workers.agent_processes import NODE, QUICK, agent_thread, identity_of, in_state, settled, until, warm
from tests.workers.conftest import Fleet, add_node
from workers import processes
from workers.devices.fake import FakeDevices
from workers.fleet import deployments
from workers.models import Deployment, Placeholder, Pool, Replica, Slot, SlotLease, StartTime

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


def devices(data_dir: Path, count: int, **faults: object) -> FakeDevices:
    """Return simulated devices with these faults, named ``fake_0`` and so on."""
    spoil(data_dir, **faults)
    return FakeDevices(count, data_dir / FakeDevices.FILE)


def spoil(data_dir: Path, **faults: object) -> None:
    """Give the devices these faults and no others."""
    fresh = data_dir / "faults"
    fresh.write_text(json.dumps({name.replace("_", "-"): fault for name, fault in faults.items()}))
    fresh.replace(data_dir / FakeDevices.FILE)


def slots_of(row: Replica) -> list[str]:
    """Return the devices the replica has now."""
    held = SlotLease.objects.filter(replica=row, released_at=None).order_by("slot__index")
    return list(held.values_list("slot__device_uuid", flat=True))


def gang(fleet: Fleet, *pools: Pool, slots: int = 2) -> Deployment:
    """Create a deployment of one replica with this number of slots."""
    deployment = fleet.deploy(1, pools=pools)
    Deployment.objects.update(slots_per_replica=slots)
    return deployment


@pytest.mark.long
def test_a_gang_takes_two_of_eight_placeholders_and_the_next_pool_keeps_two_instead(
    fleet: Fleet, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spare = deployments.ensure_pool(SYSTEM, name="spare", kind="simulated", priority=200)
    add_node(spare, "n2", slots=0)
    Pool.objects.update(placeholder_level="h0")
    Pool.objects.filter(id=fleet.pool.id).update(placeholders_per_node=8)
    elsewhere = tmp_path_factory.mktemp("n2")
    with agent_thread(data_dir, devices=devices(data_dir, 8)), agent_thread(elsewhere, node="n2"):
        until(lambda: Slot.objects.filter(device_uuid="fake-7").exists())
        before = settled(warm("h0", 8))
        gang(fleet, fleet.pool, spare)
        (replica,) = settled(in_state("ready"))
        kept = settled(warm("h0", 6))
        settled(warm("h0", 2, node="n2"))
    evicted = Placeholder.objects.filter(state="evicted")
    assert {row.id for row in evicted} == {row.id for row in before} - {row.id for row in kept}
    assert len(evicted) == 2 and len(slots_of(replica)) == 2
    assert set(SlotLease.objects.filter(replica=replica).values_list("fence", flat=True)) == {replica.fence}
    assert (replica.start_level, replica.node_id) == ("h0", fleet.node.id)
    assert StartTime.objects.get().level == "h0"


def test_a_replica_waits_until_its_device_has_released_what_it_held(fleet: Fleet, data_dir: Path) -> None:
    patient = dataclasses.replace(QUICK, slot_free_seconds=100)
    gang(fleet, slots=1)
    with agent_thread(data_dir, timeouts=patient, devices=devices(data_dir, 1, fake_0={"wedged": "3 GiB in use"})):
        until(lambda: Slot.objects.filter(device_uuid="fake-0").exists())
        waiting = settled(lambda: Replica.objects.filter(state="reserved").exclude(start_note="").first())
        assert waiting is not None and waiting.start_note == "waits for its slots: fake-0: 3 GiB in use"
        spoil(data_dir, fake_0={"release_seconds": 0.5})
        (replica,) = until(in_state("ready"))
    assert (replica.id, replica.start_note, slots_of(replica)) == (waiting.id, "", ["fake-0"])
    measured = StartTime.objects.get()
    assert measured.seconds - measured.process_seconds >= 0.5


def test_a_device_that_is_never_free_is_quarantined_and_the_replica_starts_on_others(
    fleet: Fleet, data_dir: Path
) -> None:
    gang(fleet)
    with agent_thread(data_dir, devices=devices(data_dir, 4, fake_1={"wedged": "held by nobody"})) as agent:
        until(lambda: Slot.objects.filter(device_uuid="fake-3").exists())
        (replica,) = settled(in_state("ready"))
        assert agent.counters.slots_quarantined == 1
    assert slots_of(replica) == ["fake-0", "fake-2"]
    slot = Slot.objects.get(device_uuid="fake-1")
    assert (slot.health, slot.fault) == ("quarantined", "not free after 1 s: held by nobody")
    (given_up,) = Replica.objects.filter(state="stopped")
    assert "fake-1 is quarantined" in given_up.last_error and given_up.generation == 0
    assert slots_of(given_up) == []


def test_a_gang_that_loses_one_slot_while_it_starts_gives_up_both_and_starts_elsewhere(
    fleet: Fleet, data_dir: Path
) -> None:
    type(fleet.revision).objects.update(engine_args=["--startup-seconds", "60"])
    gang(fleet)
    with agent_thread(data_dir, devices=devices(data_dir, 4)):
        until(lambda: Slot.objects.filter(device_uuid="fake-3").exists())
        settled(lambda: Replica.objects.filter(state="starting", pid__isnull=False).exists())
        (before,) = in_state("starting")()
        assert slots_of(before) == ["fake-0", "fake-1"]
        type(fleet.revision).objects.update(engine_args=[])
        spoil(data_dir, fake_0={"fault": "Xid 79: fallen off the bus"})
        (after,) = settled(in_state("ready"))
    assert slots_of(after) == ["fake-1", "fake-2"]
    before.refresh_from_db()
    assert (before.state, before.desired_state, slots_of(before)) == ("stopped", "stopped", [])
    assert before.last_error == "slot fake-0 is unusable: Xid 79: fallen off the bus"
    assert Slot.objects.get(device_uuid="fake-0").health == "quarantined"


def test_a_placeholder_leaves_a_slot_that_fails(fleet: Fleet, data_dir: Path) -> None:
    Pool.objects.update(placeholders_per_node=1, placeholder_level="h2")
    Deployment.objects.filter(id=fleet.deploy(1).id).update(min_replicas=0, desired_replicas=0)
    with agent_thread(data_dir, devices=devices(data_dir, 2)):
        until(lambda: Slot.objects.filter(device_uuid="fake-1").exists())
        (before,) = settled(warm("h2"))
        assert SlotLease.objects.get(placeholder=before).slot.device_uuid == "fake-0"
        spoil(data_dir, fake_0={"fault": "Xid 79"})
        after = settled(lambda: Placeholder.objects.filter(state="warm", level="h2").exclude(id=before.id).first())
    assert after is not None and SlotLease.objects.get(placeholder=after).slot.device_uuid == "fake-1"
    assert processes.session_members(identity_of(before)) == []
    assert Placeholder.objects.get(id=before.id).reason == "slot fake-0 is unusable: Xid 79"


def test_a_device_that_is_gone_leaves_with_its_slot(fleet: Fleet, data_dir: Path) -> None:
    with agent_thread(data_dir, devices=devices(data_dir, 2)):
        until(lambda: Slot.objects.filter(device_uuid="fake-1").exists())
    with agent_thread(data_dir, devices=devices(data_dir, 1)):
        until(lambda: Slot.objects.filter(device_uuid="fake-1", health="gone").exists())
    assert Slot.objects.filter(node__name=NODE, health="ok").get().device_uuid == "fake-0"


def test_a_device_that_comes_back_is_as_it_was(fleet: Fleet, data_dir: Path) -> None:
    with agent_thread(data_dir, devices=devices(data_dir, 3, fake_1={"fault": "Xid 79"})):
        until(lambda: Slot.objects.filter(device_uuid="fake-1", health="quarantined").exists())
    with agent_thread(data_dir, devices=devices(data_dir, 1)):
        until(lambda: Slot.objects.filter(device_uuid__in=("fake-1", "fake-2"), health="gone").count() == 2)
    with agent_thread(data_dir, devices=devices(data_dir, 3)):
        until(lambda: Slot.objects.filter(device_uuid="fake-2", health="ok").exists())
    assert Slot.objects.filter(health="quarantined").get().device_uuid == "fake-1"
