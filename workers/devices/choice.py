"""Choose which devices a node offers, by the setting HEARTH_SLOTS."""

from __future__ import annotations

from pathlib import Path

from workers.devices import nvml
from workers.devices.chosen import Chosen
from workers.devices.cpu import CpuShares
from workers.devices.errors import BadSlots
from workers.devices.fake import FakeDevices
from workers.devices.provider import DeviceProvider

FAKE = "fake:"
#: How the UUID of a GPU begins; that of an instance of MIG begins otherwise.
GPU = "GPU-"


def provider_for(slots: str, cpu_shares: int, data_dir: Path) -> DeviceProvider:
    """Return the devices that ``slots`` names: ``auto``, UUIDs of GPUs, a number of CPU shares, or ``fake:N``.

    ``auto`` gives the GPUs that NVML finds, or ``cpu_shares`` shares of the CPU if it finds none. Raises BadSlots for
    any other value and for UUIDs of which this machine has none, and DevicesUnreadable if there is a driver that does
    not answer.
    """
    if slots == "auto":
        return nvml.find() or CpuShares(cpu_shares)
    if slots.startswith(GPU):
        return _gpus(slots)
    if slots.startswith(FAKE):
        return FakeDevices(_count(slots, slots.removeprefix(FAKE), minimum=1), data_dir / FakeDevices.FILE)
    return CpuShares(_count(slots, slots, minimum=0))


def _gpus(slots: str) -> Chosen:
    """Return the GPUs named, separated by commas. A lost one must not keep the agent of the others from starting."""
    uuids = frozenset(part.strip() for part in slots.split(",") if part.strip())
    gpus = nvml.find()
    there = {device.uuid for device in gpus.devices()} if gpus is not None else set()
    if gpus is None or not uuids & there:
        shown = ", ".join(sorted(there)) or "no GPU that NVML shows"
        raise BadSlots(slots, f"a GPU of this machine, which has {shown}")
    return Chosen(gpus, uuids)


def _count(slots: str, text: str, *, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        raise BadSlots(slots)
    return int(text)
