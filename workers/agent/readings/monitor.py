"""Read the devices of a node and the usage of its engines, in a thread of its own.

The agent's loop only takes the last result, so it waits neither for a driver that hangs nor for ``/proc``.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping

from tenants.ids import ReplicaId
from workers.agent.readings.engine_usage import EngineMeters
from workers.agent.readings.node_readings import DeviceReading, EngineUsage, EngineView, NodeReadings
from workers.devices.bounded import BoundedDevices
from workers.devices.errors import DeviceError
from workers.devices.provider import Device, Reading

log = logging.getLogger(__name__)


class NodeMonitor:
    """Measures a node every ``pause_seconds`` from :meth:`start` to :meth:`stop`."""

    def __init__(self, node: str, devices: BoundedDevices, *, pause_seconds: float) -> None:
        self.node = node
        #: Replaced as a whole by the monitor's thread; any thread may read it.
        self.readings = NodeReadings()
        #: Replaced as a whole by the agent's thread.
        self.engines: tuple[EngineView, ...] = ()
        #: Calls of these end in time; see ``workers.devices.bounded``.
        self.devices = devices
        self._pause_seconds = pause_seconds
        self._meters = EngineMeters()
        self._stopping = threading.Event()
        self._silent = False
        self._thread = threading.Thread(target=self._run, name=f"readings-{node}", daemon=True)

    def start(self) -> None:
        """Start the thread and return at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present measurement; do not wait for it, because its driver may hang."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._measure()
            except Exception:
                # What is shown of a node must not end because of one bad reading.
                log.exception("node %s: its devices and engines could not be measured", self.node)
            self._stopping.wait(self._pause_seconds)

    def _measure(self) -> None:
        engines = self.engines
        usage = self._meters.measure(engines)
        self.readings = dataclasses.replace(self.readings, usage=usage)
        try:
            found = self._read(engines, usage)
        except DeviceError as error:
            if not self._silent:
                log.warning("node %s: its devices cannot be read: %s", self.node, error)
            self._silent = True
            return
        self._silent = False
        self.readings = NodeReadings(devices=found, usage=usage)

    def _read(
        self, engines: tuple[EngineView, ...], usage: Mapping[ReplicaId, EngineUsage]
    ) -> dict[str, DeviceReading]:
        """Read every device. Raises DevicesUnreadable."""
        holders = {device: engine.replica_id for engine in engines for device in engine.devices}
        found = {}
        for device in self.devices.devices():
            reading = self.devices.reading(device.uuid)
            if reading == Reading():
                reading = _by_processes(device, holders, usage)
            found[device.uuid] = DeviceReading(device=device, reading=reading, read_at=time.monotonic())
        return found


def _by_processes(device: Device, holders: Mapping[str, ReplicaId], usage: Mapping[ReplicaId, EngineUsage]) -> Reading:
    """Return the reading of a share of a CPU, which has none of its own: what its engine uses of the machine."""
    holder = holders.get(device.uuid)
    used = None if holder is None else usage.get(holder)
    if used is None:
        return Reading()
    return Reading(used_bytes=used.resident_bytes, utilisation_percent=round(used.cpu_share * 100))
