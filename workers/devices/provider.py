"""The devices that a node can run engines on, by an id that never changes, and whether a device is free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device. ``uuid`` is permanent, unlike the index: ``GPU-…`` from NVML, ``cpu-0``, ``fake-0``.

    ``fault`` says why it is unusable; empty if it is usable.
    """

    uuid: str
    index: int
    memory_bytes: int | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one device does now. None: the device does not say."""

    used_bytes: int | None = None
    #: Share of the last second in which it computed, percent.
    utilisation_percent: int | None = None
    temperature_celsius: int | None = None
    power_watts: float | None = None
    #: The processes that use it, as far as the driver shows them.
    pids: tuple[int, ...] = ()
    #: The driver reports its Xid errors as events.
    reports_xid: bool | None = None


class DeviceProvider(Protocol):
    """The devices of one node. Calls take milliseconds and come from the agent's thread only."""

    def devices(self) -> tuple[Device, ...]:
        """Return every device the node has now, in order of their index. Raises DevicesUnreadable."""

    def in_use(self, uuid: str) -> str:
        """Return what still uses the device, as text for operators; empty once it is free. Raises nothing."""

    def reading(self, uuid: str) -> Reading:
        """Return what the device does now. Raises DevicesUnreadable."""
