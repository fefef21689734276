"""What an agent last measured of its node, and what it knows of its engines: for metrics, pages and the API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tenants.ids import ReplicaId
from workers.agent.probes.http_probe import EngineLoad
from workers.devices.provider import Device, Reading
from workers.processes import ProcessIdentity
from workers.serving.canary import CanaryTarget

#: A reading that is older says nothing about now: its driver hangs.
LIFETIME_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """A replica whose engine runs on this node. ``load`` is None before its first probe."""

    replica_id: ReplicaId
    deployment: str
    process: ProcessIdentity
    devices: tuple[str, ...]
    load: EngineLoad | None
    #: Where its own metrics are.
    target: CanaryTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUsage:
    """What the processes of one engine use. ``cpu_share`` is of all CPUs of the machine, 0 to 1.

    ``cpu_seconds`` only grows while this agent runs. ``resident_bytes`` counts pages that they share more than once.
    """

    cpu_seconds: float
    cpu_share: float
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """A device and what it did at ``read_at``, by time.monotonic()."""

    device: Device
    reading: Reading
    read_at: float

    @property
    def age_seconds(self) -> float:
        """Return how long ago it was read."""
        return time.monotonic() - self.read_at

    @property
    def is_current(self) -> bool:
        """Return whether it is young enough to be shown."""
        return self.age_seconds <= LIFETIME_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReadings:
    """The last readings of a node, by the UUID of the device and the replica of the engine."""

    devices: Mapping[str, DeviceReading] = field(default_factory=dict)
    usage: Mapping[ReplicaId, EngineUsage] = field(default_factory=dict)

    @property
    def current(self) -> tuple[DeviceReading, ...]:
        """The readings that are young enough to be shown, by index."""
        found = (each for each in self.devices.values() if each.is_current)
        return tuple(sorted(found, key=lambda each: each.device.index))
