"""Which devices a node offers, by the setting HEARTH_SLOTS."""

from __future__ import annotations

from workers.devices.cpu import CpuShares
from workers.devices.provider import DeviceProvider


def provider_for(slots: str, cpu_shares: int) -> DeviceProvider:
    """Return the devices that ``slots`` asks for: ``auto`` or a number. ``cpu_shares`` is what auto gives on a CPU.

    Raises ValueError for anything else.
    """
    return CpuShares(cpu_shares if slots == "auto" else int(slots))
