"""Shares of a CPU: as many slots as the operator says, always free again when their processes are gone."""

from __future__ import annotations

from dataclasses import dataclass

from workers.devices.provider import Device


@dataclass(frozen=True, slots=True)
class CpuShares:
    """``count`` equal shares of one machine."""

    count: int

    def devices(self) -> tuple[Device, ...]:
        """Return the shares, ``cpu-0`` first."""
        return tuple(Device(uuid=f"cpu-{index}", index=index) for index in range(self.count))

    def in_use(self, uuid: str) -> str:
        """Return an empty text: the operating system takes back all that a process had."""
        return ""
