"""Some of a node's devices, by UUID: the others are left to whatever else runs on the machine."""

from __future__ import annotations

from dataclasses import dataclass

from workers.devices.provider import Device, DeviceProvider, Reading


@dataclass(frozen=True, slots=True)
class Chosen:
    """The devices of ``provider`` whose UUIDs are in ``uuids``. One that the provider has lost is not among them."""

    provider: DeviceProvider
    uuids: frozenset[str]

    def devices(self) -> tuple[Device, ...]:
        """Return the chosen devices, with the index that each has among all. Raises DevicesUnreadable."""
        return tuple(device for device in self.provider.devices() if device.uuid in self.uuids)

    def in_use(self, uuid: str) -> str:
        """Return what still uses the device; empty once it is free."""
        return self.provider.in_use(uuid)

    def reading(self, uuid: str) -> Reading:
        """Return what the device does now. Raises DevicesUnreadable."""
        return self.provider.reading(uuid)
