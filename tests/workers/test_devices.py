"""Which devices a node offers, and how simulated devices fail."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path

import pynvml
import pytest

from workers.devices import nvml
from workers.devices.bounded import BoundedDevices
from workers.devices.choice import provider_for
from workers.devices.chosen import Chosen
from workers.devices.cpu import CpuShares
from workers.devices.errors import BadSlots, DevicesUnreadable
from workers.devices.fake import FakeDevices
from workers.devices.provider import Reading


def test_a_number_gives_shares_of_the_cpu(tmp_path: Path) -> None:
    devices = provider_for("3", 7, tmp_path).devices()
    assert [(device.uuid, device.index, device.fault) for device in devices] == [
        ("cpu-0", 0, ""),
        ("cpu-1", 1, ""),
        ("cpu-2", 2, ""),
    ]


def test_auto_gives_gpus_where_there_are_some_and_otherwise_shares_of_the_cpu(tmp_path: Path) -> None:
    found = provider_for("auto", 2, tmp_path)
    if nvml.find() is None:
        assert found == CpuShares(2)
    else:
        assert all(device.uuid.startswith("GPU-") and device.memory_bytes for device in found.devices())


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "fake:", "fake:0", "fake:x", "GPU", "²"])
def test_anything_else_is_refused_with_what_is_allowed(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadSlots, match="expected auto, UUIDs of GPUs, a number of CPU shares, or fake:N"):
        provider_for(text, 1, tmp_path)


def test_uuids_of_no_gpu_of_this_machine_are_refused_with_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(BadSlots, match=r"'GPU-1,GPU-2': expected a GPU of this machine, which has (GPU-|no GPU)"):
        provider_for("GPU-1,GPU-2", 1, tmp_path)


def test_of_a_nodes_devices_only_the_chosen_ones_are_offered(tmp_path: Path) -> None:
    (tmp_path / "faults").write_text(json.dumps({"fake-2": {"wedged": "held", "reading": {"xid_errors": 1}}}))
    chosen = Chosen(FakeDevices(3, tmp_path / "faults"), frozenset({"fake-2", "fake-9"}))
    assert [(device.uuid, device.index) for device in chosen.devices()] == [("fake-2", 2)]
    assert (chosen.in_use("fake-2"), chosen.reading("fake-2").xid_errors) == ("held", 1)


def test_a_fault_is_shown_on_its_device_alone(tmp_path: Path) -> None:
    provider = provider_for("fake:2", 0, tmp_path)
    assert [device.fault for device in provider.devices()] == ["", ""]
    (tmp_path / FakeDevices.FILE).write_text(json.dumps({"fake-1": {"fault": "Xid 79"}}))
    assert [device.fault for device in provider.devices()] == ["", "Xid 79"]


def test_a_wedged_device_is_in_use_until_that_is_removed(tmp_path: Path) -> None:
    provider = provider_for("fake:1", 0, tmp_path)
    file = tmp_path / FakeDevices.FILE
    file.write_text(json.dumps({"fake-0": {"wedged": "held by nobody"}}))
    assert [provider.in_use("fake-0"), provider.in_use("fake-0")] == ["held by nobody"] * 2
    file.unlink()
    assert provider.in_use("fake-0") == ""


def test_a_release_takes_its_time_before_every_use(tmp_path: Path) -> None:
    provider = provider_for("fake:1", 0, tmp_path)
    (tmp_path / FakeDevices.FILE).write_text(json.dumps({"fake-0": {"release_seconds": 0.5}}))
    for _ in range(2):
        assert provider.in_use("fake-0") == "its memory is being released"
        while provider.in_use("fake-0"):
            pass
    assert provider.in_use("fake-0") != ""


def test_faults_that_cannot_be_read_are_no_faults_that_are_not_there(tmp_path: Path) -> None:
    provider = provider_for("fake:1", 0, tmp_path)
    (tmp_path / FakeDevices.FILE).write_text("{")
    with pytest.raises(DevicesUnreadable):
        provider.devices()
    assert "fake-devices.json" in provider.in_use("fake-0")


def test_a_reading_is_what_the_file_says_and_otherwise_that_of_an_idle_device(tmp_path: Path) -> None:
    provider = provider_for("fake:2", 0, tmp_path)
    (tmp_path / FakeDevices.FILE).write_text(json.dumps({"fake-1": {"reading": {"temperature_celsius": 91}}}))
    idle, hot = provider.reading("fake-0"), provider.reading("fake-1")
    assert (idle.temperature_celsius, idle.utilisation_percent, idle.xid_errors) == (31, 0, 0)
    assert hot == dataclasses.replace(idle, temperature_celsius=91)
    (tmp_path / FakeDevices.FILE).write_text(json.dumps({"fake-1": {"reading": {"temperature_celsius": "hot"}}}))
    with pytest.raises(DevicesUnreadable, match="fake-1"):
        provider.reading("fake-1")


def test_calls_of_a_driver_that_hangs_end_and_go_on_once_it_answers(tmp_path: Path) -> None:
    release = threading.Event()

    class Hanging(FakeDevices):
        def reading(self, uuid: str) -> Reading:
            release.wait(60)
            return super().reading(uuid)

    bounded = BoundedDevices(Hanging(1, tmp_path / FakeDevices.FILE), timeout_seconds=0.2)
    assert [device.uuid for device in bounded.devices()] == ["fake-0"]
    with pytest.raises(DevicesUnreadable, match="has not answered"):
        bounded.reading("fake-0")
    assert "has not answered" in bounded.in_use("fake-0")
    release.set()
    while bounded.in_use("fake-0"):
        pass
    assert bounded.reading("fake-0").utilisation_percent == 0


def test_an_error_of_the_driver_reaches_the_caller(tmp_path: Path) -> None:
    (tmp_path / FakeDevices.FILE).write_text("{")
    with pytest.raises(DevicesUnreadable, match=r"fake-devices\.json"):
        BoundedDevices(FakeDevices(1, tmp_path / FakeDevices.FILE)).devices()


@pytest.mark.parametrize(
    "error", [pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission, pynvml.NVMLError_Unknown]
)
def test_a_reading_that_a_gpu_does_not_give_is_unknown(error: type[Exception]) -> None:
    def query() -> None:
        raise error

    assert nvml.optional(query) is None


def test_a_gpu_that_is_lost_is_an_error_and_not_unknown() -> None:
    def query() -> None:
        raise pynvml.NVMLError_GpuIsLost

    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        nvml.optional(query)
