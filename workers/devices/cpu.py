"""Shares of a CPU: as many slots as the operator sets, free as soon as their processes have ended."""

from __future__ import annotations

from dataclasses import dataclass

from workers.devices.provider import Device, Reading


@dataclass(frozen=True, slots=True)
class CpuShares:
    """``count`` equal shares of one machine."""

    count: int

    def devices(self) -> tuple[Device, ...]:
        """Return the shares, ``cpu-0`` first."""
        return tuple(Device(uuid=f"cpu-{index}", index=index) for index in range(self.count))

    def in_use(self, uuid: str) -> str:
        """Return an empty text, because the operating system frees all resources of a process that has ended."""
        return ""

    def reading(self, uuid: str) -> Reading:
        """Return nothing known, because a share is no device."""
        return Reading()
