"""What an agent measures of its node: devices and engines, in metrics and in the rows that pages show."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from tests.workers.agent_processes import NODE, agent_thread, celery_agent, identity_of, in_state, until
from tests.workers.conftest import Fleet
from workers import processes
from workers.agent import agent
from workers.agent.readings.gpu_check_file import GpuCheckFile
from workers.agent.readings.metrics import NodeCollector
from workers.devices import gpu_report
from workers.devices.bounded import BoundedDevices
from workers.devices.fake import MEMORY_BYTES, FakeDevices
from workers.fleet.status import inventory, json_rows, slots
from workers.models import Node, Slot
from workers.scheduler import reconciler

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]

BUSY = {
    "utilisation_percent": 93,
    "used_bytes": 71 * 2**30,
    "temperature_celsius": 78,
    "power_watts": 612.5,
    "xid_errors": 2,
    "last_xid": 31,
    "corrected_ecc_errors": 4,
    "uncorrected_ecc_errors": 0,
    "remapped_rows": 1,
}
REPORT = {
    "made_at": "2026-11-01T10:00:00Z",
    "devices": "fake device",
    "engine": "simulated",
    "machine": {"host": "n1"},
    "checks": [{"check": "promotion", "verdict": "pass", "text": "x" * 600, "figures": {"seconds": 1}, "log": ""}],
}


@pytest.fixture
def fakes(data_dir: Path, fleet: Fleet) -> Iterator[FakeDevices]:
    """Two fake devices; the second is busy."""
    path = data_dir / FakeDevices.FILE
    path.write_text(json.dumps({"fake-1": {"reading": BUSY}}))
    (data_dir / gpu_report.FILE).write_text(json.dumps(REPORT))
    yield FakeDevices(2, path)


def exported() -> dict[str, dict[tuple[str, ...], float]]:
    """Return the agent's samples by name, by their labels other than the node's."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    families: list[Metric] = list(NodeCollector(agent.measurements).collect())
    for family in families:
        for sample in family.samples:
            assert sample.labels.pop("node") == NODE
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_what_devices_do_is_exported_and_shown(fleet: Fleet, data_dir: Path, fakes: FakeDevices) -> None:
    with agent_thread(data_dir, devices=fakes):
        until(lambda: Slot.objects.filter(device_uuid="fake-1").exclude(read_at=None).first())
        idle, busy = ("fake-0", "0"), ("fake-1", "1")
        samples = exported()
    assert samples["hearth_device_utilisation_ratio"] == {idle: 0, busy: 0.93}
    assert samples["hearth_device_memory_used_bytes"] == {idle: 0, busy: 71 * 2**30}
    assert samples["hearth_device_memory_bytes"] == {idle: MEMORY_BYTES, busy: MEMORY_BYTES}
    assert samples["hearth_device_temperature_celsius"] == {idle: 31, busy: 78}
    assert samples["hearth_device_power_watts"] == {idle: 62.5, busy: 612.5}
    assert samples["hearth_device_xid_errors_total"] == {idle: 0, busy: 2}
    assert samples["hearth_device_last_xid"] == {busy: 31}
    assert samples["hearth_device_ecc_errors_total"][*busy, "corrected"] == 4
    assert samples["hearth_device_remapped_rows"] == {idle: 0, busy: 1}
    shown = next(row for row in json_rows.slots(inventory.read()) if row["device"] == "fake-1")
    assert {name: shown[name] for name in BUSY} == BUSY
    (node,) = json_rows.nodes(inventory.read())
    assert node["gpu_check"] == {
        **{name: REPORT[name] for name in ("made_at", "devices", "engine")},
        "checks": [{"check": "promotion", "verdict": "pass", "text": "x" * gpu_report.MOST_CHARACTERS}],
        "counts": "1 pass",
    }


def test_a_report_is_read_when_its_file_has_changed_and_never_half(tmp_path: Path) -> None:
    file, path = GpuCheckFile(tmp_path), tmp_path / gpu_report.FILE

    def stored() -> dict[str, Any] | None:
        if (found := file.changed()) is not None:
            file.confirm()
        return found

    assert (file.changed(), stored(), stored()) == ({}, {}, None)
    path.write_text(json.dumps(REPORT | {"checks": []}))
    found = file.changed()
    assert found == stored()  # until it is confirmed
    assert found is not None and (found["engine"], stored()) == ("simulated", None)
    path.write_text(json.dumps(REPORT | {"checks": [], "ended": False}))
    assert stored() is None  # the run goes on
    for wrong in ("{", "[]", json.dumps(REPORT | {"checks": [{"check": "promotion", "verdict": "yes"}]})):
        path.write_text(wrong)
        assert stored() == {}
    path.unlink()
    assert (stored(), gpu_report.read({"engine": 1})) == ({}, None)


def test_a_reading_is_shown_for_a_minute(fleet: Fleet, data_dir: Path, fakes: FakeDevices) -> None:
    with agent_thread(data_dir, devices=fakes):
        slot = until(lambda: Slot.objects.filter(device_uuid="fake-1").exclude(read_at=None).first())
    assert slot is not None and slot.read_at is not None
    Slot.objects.update(read_at=slot.read_at - slots.LIFETIME)
    (shown,) = [row for row in json_rows.slots(inventory.read()) if row["device"] == "fake-1"]
    assert (shown["read_at"], shown["utilisation_percent"]) == (None, None)


def test_a_share_of_a_cpu_shows_what_its_engine_uses(fleet: Fleet, data_dir: Path) -> None:
    fleet.deploy(1)
    reconciler.tick()
    with celery_agent(data_dir):  # with the rights of a node
        (row,) = until(in_state("ready"), seconds=60)
        held = Slot.objects.filter(leases__replica=row, leases__released_at=None)
        slot = until(lambda: held.filter(reading__used_bytes__gt=0).first(), seconds=60)
        usage = processes.usage_by_session([identity_of(row)])[identity_of(row)]
    assert slot is not None and slot.reading["used_bytes"] > 2**20
    assert sum(each.resident_bytes for each in usage) > 2**20
    free = [row for row in json_rows.slots(inventory.read()) if not row["holder"]]
    assert {row["used_bytes"] for row in free} == {None}


def test_an_engine_is_exported_with_its_load_its_devices_and_what_it_uses(
    fleet: Fleet, data_dir: Path, fakes: FakeDevices
) -> None:
    Slot.objects.all().delete()
    with agent_thread(data_dir, devices=fakes):
        until(lambda: Slot.objects.count() == 2)
        fleet.deploy(1)
        reconciler.tick()
        (row,) = until(in_state("ready"))
        engine = ("chat", str(row.id))
        until(lambda: exported().get("hearth_replica_cpu_seconds_total"))
        samples = exported()
    assert samples["hearth_replica_running_requests"] == {engine: 0}
    assert samples["hearth_replica_waiting_requests"] == {engine: 0}
    assert samples["hearth_replica_kv_usage_ratio"] == {engine: 0}
    assert samples["hearth_replica_resident_bytes"][engine] > 2**20
    assert samples["hearth_replica_cpu_seconds_total"][engine] > 0
    (device,) = samples["hearth_replica_devices"]
    assert device[:2] == engine and device[2] in {"fake-0", "fake-1"}


def test_a_driver_that_hangs_stops_no_round_of_the_agent(fleet: Fleet, data_dir: Path, fakes: FakeDevices) -> None:
    fakes.path.write_text(json.dumps({"fake-1": {"stuck_seconds": 600}}))
    bounded = BoundedDevices(fakes, timeout_seconds=0.3)
    with agent_thread(data_dir, devices=bounded) as running:
        until(lambda: "has not answered" in bounded.in_use("fake-0"))
        lease = Node.objects.get().lease_expires_at
        until(lambda: Node.objects.get().lease_expires_at != lease)
        began, round_at = time.monotonic(), running.round_at
        until(lambda: running.round_at != round_at and running.round_at is not None and running.round_at > began)
        assert [status.node for status in agent.statuses()] == [NODE]
    assert exported() is not None
