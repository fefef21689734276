"""Measure what the processes of each engine use, from one measurement to the next."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tenants.ids import ReplicaId
from workers import processes
from workers.agent.readings.node_readings import EngineUsage, EngineView
from workers.processes import ProcessIdentity, ProcessUsage


@dataclass(slots=True)
class _Meter:
    """The CPU time of one engine: of each living process so far, and of all of them since the first measurement."""

    leader: ProcessIdentity
    measured_at: float
    by_process: Mapping[ProcessIdentity, float] = field(default_factory=dict)
    total_seconds: float = 0.0

    def measure(self, found: Collection[ProcessUsage], now: float) -> EngineUsage:
        """Add what the processes used since the last measurement; a process that is new counts whole."""
        first = not self.by_process
        used = sum(max(0.0, each.cpu_seconds - self.by_process.get(each.process, 0.0)) for each in found)
        elapsed = now - self.measured_at
        share = 0.0 if first or elapsed <= 0 else min(1.0, used / elapsed / (os.cpu_count() or 1))
        self.total_seconds += used
        self.measured_at = now
        self.by_process = {each.process: each.cpu_seconds for each in found}
        return EngineUsage(
            cpu_seconds=self.total_seconds,
            cpu_share=share,
            resident_bytes=sum(each.resident_bytes for each in found),
        )


class EngineMeters:
    """Measures the engines of one node. One thread calls it."""

    def __init__(self) -> None:
        self._meters: dict[ReplicaId, _Meter] = {}

    def measure(self, engines: Collection[EngineView]) -> dict[ReplicaId, EngineUsage]:
        """Return what each engine uses now; an engine whose processes have ended is left out."""
        now = time.monotonic()
        found = processes.usage_by_session([each.process for each in engines])
        kept: dict[ReplicaId, _Meter] = {}
        measured: dict[ReplicaId, EngineUsage] = {}
        for engine in engines:
            if usages := found.get(engine.process):
                meter = self._meters.get(engine.replica_id)
                if meter is None or meter.leader != engine.process:
                    meter = _Meter(engine.process, now)
                kept[engine.replica_id] = meter
                measured[engine.replica_id] = meter.measure(usages, now)
        self._meters = kept
        return measured
