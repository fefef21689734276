"""Choose which devices a node offers, by the setting HEARTH_SLOTS."""

from __future__ import annotations

from pathlib import Path

from workers.devices import nvml
from workers.devices.cpu import CpuShares
from workers.devices.errors import BadSlots
from workers.devices.fake import FakeDevices
from workers.devices.provider import DeviceProvider

FAKE = "fake:"


def provider_for(slots: str, cpu_shares: int, data_dir: Path) -> DeviceProvider:
    """Return the devices that ``slots`` names: ``auto``, a number of CPU shares, or ``fake:N``.

    ``auto`` gives the GPUs that NVML finds, or ``cpu_shares`` shares of the CPU if it finds none. Raises BadSlots for
    any other value, and DevicesUnreadable if there is a driver that does not answer.
    """
    if slots == "auto":
        return nvml.find() or CpuShares(cpu_shares)
    if slots.startswith(FAKE):
        return FakeDevices(_count(slots, slots.removeprefix(FAKE), minimum=1), data_dir / FakeDevices.FILE)
    return CpuShares(_count(slots, slots, minimum=0))


def _count(slots: str, text: str, *, minimum: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < minimum:
        raise BadSlots(slots)
    return int(text)
