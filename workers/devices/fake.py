"""Simulated devices with faults on demand, so that faults of GPUs can be tested without one.

The faults are in ``fake-devices.json`` in the data directory, by device. The file is read at every call; without faults
it is absent:
    {"fake-0": {"fault": "Xid 79"}, "fake-1": {"release_seconds": 3.0}, "fake-2": {"wedged": "in use"},
     "fake-3": {"pid": 4711, "reading": {"utilisation_percent": 97, "xid_errors": 1, "last_xid": 79}}}
A device whose "pid" is that of a living process is in use by it. "reading" has any fields of Reading, in place of those
of an idle device; "stuck_seconds" is how long each reading takes, as of a driver that hangs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from workers import processes
from workers.devices.errors import DevicesUnreadable
from workers.devices.provider import Device, Reading

MEMORY_BYTES = 80 * 2**30
#: What a device does that nobody uses.
IDLE: Mapping[str, Any] = {
    "used_bytes": 0,
    "utilisation_percent": 0,
    "temperature_celsius": 31,
    "power_watts": 62.5,
    "xid_errors": 0,
    "corrected_ecc_errors": 0,
    "uncorrected_ecc_errors": 0,
    "remapped_rows": 0,
}


@dataclass(slots=True)
class FakeDevices:
    """``count`` devices whose faults are in ``path``. ``release_seconds`` pass before each use."""

    FILE: ClassVar[str] = "fake-devices.json"
    count: int
    path: Path
    _asked_at: dict[str, float] = field(default_factory=dict)

    def devices(self) -> tuple[Device, ...]:
        """Return the devices, ``fake-0`` first. Raises DevicesUnreadable."""
        faults = self._faults()
        return tuple(
            Device(
                uuid=f"fake-{index}",
                index=index,
                memory_bytes=MEMORY_BYTES,
                fault=str(faults.get(f"fake-{index}", {}).get("fault", "")),
            )
            for index in range(self.count)
        )

    def in_use(self, uuid: str) -> str:
        """Return the reason while the device is wedged, or during its release time, which starts at the first call."""
        try:
            faults = self._faults().get(uuid, {})
        except DevicesUnreadable as error:
            return str(error)
        if wedged := faults.get("wedged"):
            return str(wedged)
        if pids := _pids(faults):
            return f"processes {pids[0]} use it"
        asked_at = self._asked_at.setdefault(uuid, time.monotonic())
        if time.monotonic() - asked_at < float(faults.get("release_seconds", 0.0)):
            return "its memory is being released"
        del self._asked_at[uuid]
        return ""

    def reading(self, uuid: str) -> Reading:
        """Return its process, and what it does: nothing, unless the file says otherwise. Raises DevicesUnreadable."""
        faults = self._faults().get(uuid, {})
        time.sleep(float(faults.get("stuck_seconds", 0.0)))
        try:
            return msgspec.convert({**IDLE, **faults.get("reading", {}), "pids": _pids(faults)}, Reading)
        except (msgspec.ValidationError, TypeError) as error:
            raise DevicesUnreadable(str(self.path), f"the reading of {uuid}: {error}") from error

    def _faults(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise DevicesUnreadable(str(self.path), str(error)) from error
        return dict(found)


def _pids(faults: dict[str, Any]) -> tuple[int, ...]:
    pid = faults.get("pid")
    return (int(pid),) if pid is not None and processes.identify(int(pid)) is not None else ()
