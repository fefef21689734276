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
    #: Xid errors that the driver reported since this process first read the device, and the number of the last one.
    #: The driver keeps no count: what it reported before, or to nobody, is in the kernel's log alone.
    xid_errors: int | None = None
    last_xid: int | None = None
    #: ECC errors of its memory since the driver started.
    corrected_ecc_errors: int | None = None
    uncorrected_ecc_errors: int | None = None
    #: Rows of its memory that were replaced by spare ones, since it was made.
    remapped_rows: int | None = None


class DeviceProvider(Protocol):
    """The devices of one node. One thread at a time calls it; a call takes milliseconds unless the driver is stuck."""

    def devices(self) -> tuple[Device, ...]:
        """Return every device the node has now, in order of their index. Raises DevicesUnreadable."""

    def in_use(self, uuid: str) -> str:
        """Return what still uses the device, as text for operators; empty once it is free. Raises nothing."""

    def reading(self, uuid: str) -> Reading:
        """Return what the device does now. Raises DevicesUnreadable."""
