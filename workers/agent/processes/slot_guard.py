"""Block a slot until its earlier process has ended and its device reports that it is free."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from workers import processes
from workers.agent.processes.paths import AgentPaths
from workers.agent.store.replica_rows import LeasedSlot, NodeRows
from workers.devices.provider import DeviceProvider
from workers.metrics import AgentCounters

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a holder may not use its slots. If ``permanent`` it must give them up; otherwise it waits."""

    reason: str
    permanent: bool
    #: What it waits for.
    on: str = "its slots"


class SlotGuard:
    """Guards the slots of one node. A slot that does not become free in time is quarantined."""

    def __init__(
        self,
        rows: NodeRows,
        paths: AgentPaths,
        devices: DeviceProvider,
        counters: AgentCounters,
        *,
        patience_seconds: float,
    ) -> None:
        self._rows = rows
        self._paths = paths
        self._devices = devices
        self._counters = counters
        self._patience_seconds = patience_seconds
        self._waiting_since: dict[UUID, float] = {}

    def blocked_by(
        self, holder_id: UUID, slots: Collection[LeasedSlot], *, mine: Collection[UUID] = ()
    ) -> Blocked | None:
        """Return why the holder may not start a process on its slots now, or None if it may.

        Processes of the holders in ``mine`` are allowed there: the holder is promoted from them. Raises Superseded.
        """
        if not slots:
            return Blocked("it has no slots", permanent=True)
        if fault := fault_of(slots):
            return Blocked(fault, permanent=True)
        since = self._waiting_since.setdefault(holder_id, time.monotonic())
        busy = next(
            ((slot, why) for slot in slots if (why := self._occupant(slot.device_uuid, {holder_id, *mine}))), None
        )
        if busy is None:
            self.forget(holder_id)
            return None
        slot, why = busy
        if time.monotonic() - since < self._patience_seconds:
            return Blocked(f"{slot.device_uuid}: {why}", permanent=False)
        self.forget(holder_id)
        fault = f"not free after {self._patience_seconds:.0f} s: {why}"
        if self._rows.quarantine(slot.slot_id, fault):
            self._counters.slots_quarantined += 1
            log.error("node %s: slot %s is quarantined: %s", self._paths.node, slot.device_uuid, fault)
        return Blocked(f"slot {slot.device_uuid} is quarantined: {fault}", permanent=True)

    def forget(self, holder_id: UUID) -> None:
        """Restart the waiting time of a holder."""
        self._waiting_since.pop(holder_id, None)

    def forget_all_but(self, holders: Collection[UUID]) -> None:
        """Drop the waiting times of all other holders: those have ended."""
        self._waiting_since = {key: since for key, since in self._waiting_since.items() if key in holders}

    def _occupant(self, device: str, mine: Collection[UUID]) -> str:
        for record in self._paths.registry.records():
            if device not in record.devices or record.holder_id in mine or record.boot_id != self._paths.boot_id:
                continue
            if processes.session_members(record.process):
                return f"process {record.pid} of another {record.kind} still runs"
        return self._devices.in_use(device)


def fault_of(slots: Collection[LeasedSlot]) -> str:
    """Return which of the slots is unusable and why; empty if none is."""
    return next((f"slot {slot.device_uuid} is unusable: {slot.fault}" for slot in slots if slot.fault), "")
