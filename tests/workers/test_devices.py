"""Which devices a node offers, and how simulated devices fail."""

from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest

from workers.devices import nvml
from workers.devices.choice import provider_for
from workers.devices.cpu import CpuShares
from workers.devices.errors import BadSlots, DevicesUnreadable
from workers.devices.fake import FakeDevices


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


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "fake:", "fake:0", "fake:x", "GPU-1", "²"])
def test_anything_else_is_refused_with_what_is_allowed(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadSlots, match="expected auto, a number of CPU shares, or fake:N"):
        provider_for(text, 1, tmp_path)


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
