"""Move one placeholder one step: verify its slot, warm a zygote on it, check the zygote, kill it when evicted.
    requested ─► warming ─► warm ─► promoted        any ─► evicting ─► evicted
        └───────────────────▲ └─► warming, when its zygote ends        lost ─► requested

If no zygote can be started, after a few tries or because the engine has none, the placeholder is warm at level h0: it
keeps only its slot, and its reason says why. Evicted means that no process of it lives; the next holder of the slot
still checks the device.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from workers import metrics, processes
from workers.agent.processes.slot_guard import SlotGuard, fault_of
from workers.agent.processes.zygote import Zygote, ZygoteProcesses
from workers.agent.store.placeholder_rows import PlaceholderRow, PlaceholderRows, PlaceholderState
from workers.agent.timeouts import Timeouts, backoff_seconds
from workers.agent.wakeup import WakeEvent
from workers.engines.errors import EngineError
from workers.errors import Superseded
from workers.metrics import AgentCounters
from workers.models import Level

log = logging.getLogger(__name__)

#: After this many zygotes in a row have ended or failed, the placeholder keeps only its slot.
FAILED_ZYGOTES = 3


@dataclass(slots=True)
class _Failures:
    """Failures in a row of a placeholder's zygotes. ``retry_at`` is on the monotonic clock."""

    count: int = 0
    retry_at: float = 0.0


class PlaceholderLifecycle:
    """The zygotes of one node and the steps of their placeholders. One thread calls it."""

    def __init__(
        self,
        rows: PlaceholderRows,
        zygote_processes: ZygoteProcesses,
        slot_guard: SlotGuard,
        wake_event: WakeEvent,
        timeouts: Timeouts,
        counters: AgentCounters,
    ) -> None:
        self._rows = rows
        self._zygote_processes = zygote_processes
        self._slot_guard = slot_guard
        self._wake_event = wake_event
        self._timeouts = timeouts
        self._counters = counters
        self._zygotes: dict[UUID, Zygote] = {}
        self._failures: dict[UUID, _Failures] = {}
        self._evicting_since: dict[UUID, float] = {}

    @property
    def zygotes(self) -> tuple[Zygote, ...]:
        """The zygotes of this node that the agent knows."""
        return tuple(self._zygotes.values())

    def keep(self, zygote: Zygote) -> None:
        """Add a zygote that was started or adopted."""
        self._zygotes[zygote.record.placeholder_id] = zygote
        self._wake_event.watch(zygote.record.process)

    def zygote(self, placeholder_id: UUID | None) -> Zygote | None:
        """Return the placeholder's zygote if it runs."""
        zygote = self._zygotes.get(placeholder_id) if placeholder_id else None
        return zygote if zygote is not None and zygote.running else None

    def consumed(self, zygote: Zygote) -> None:
        """Remove a zygote that has become an engine."""
        self._zygotes.pop(zygote.record.placeholder_id, None)
        self._zygote_processes.forget(zygote.record)

    def end(self, zygote: Zygote) -> bool:
        """Kill a zygote and remove it; False if a process survives, to be tried again in the next round."""
        if not self._zygote_processes.end(zygote):
            log.error("placeholder %s: processes survive SIGKILL: %s", *_names(zygote))
            return False
        self._zygotes.pop(zygote.record.placeholder_id, None)
        return True

    def kill_evicted(self, rows: Iterable[PlaceholderRow]) -> None:
        """Kill the zygotes of all evicted placeholders: none waits for the end of another, or for another's step."""
        for row in rows:
            zygote = self._zygotes.get(row.placeholder_id) if row.state == "evicting" else None
            if zygote is not None and row.placeholder_id not in self._evicting_since:
                self._evicting_since[row.placeholder_id] = time.monotonic()
                self._zygote_processes.kill(zygote)

    def step(self, row: PlaceholderRow) -> None:
        """Make the placeholder's next move, if there is one."""
        zygote = self._zygotes.get(row.placeholder_id)
        if row.state == "promoted":
            return
        if row.state == "evicting":
            self._evict(row, zygote)
        elif fault := fault_of(row.slots):
            self._give_up(row, zygote, fault)
        elif row.state == "requested":
            self._begin(row, zygote)
        elif row.state == "lost":
            self._move(row, "requested", "the node is back", level=Level.H0)
        elif row.state == "warming":
            self._warm(row, zygote)
        elif row.has_zygote:
            self._check_warm(row, zygote)

    def end_all_but(self, rows: Iterable[PlaceholderRow]) -> None:
        """Kill the zygotes of all other placeholders: those have ended or are unknown."""
        known = {row.placeholder_id for row in rows}
        for placeholder_id in self._zygotes.keys() - known:
            self.end(self._zygotes[placeholder_id])
        self._failures = {key: value for key, value in self._failures.items() if key in known}
        self._evicting_since = {key: value for key, value in self._evicting_since.items() if key in known}

    def _begin(self, row: PlaceholderRow, zygote: Zygote | None) -> None:
        blocked = self._slot_guard.blocked_by(row.placeholder_id, row.slots)
        if blocked is not None:
            if blocked.permanent:
                self._give_up(row, zygote, blocked.reason)
            return
        if not row.wants_zygote:
            self._move(row, "warm", "its slot is free", level=Level.H0)
        elif row.program is None:
            self._move(row, "warm", "no deployment uses its pool, so there is no engine to import", level=Level.H0)
        elif self._move(row, "warming", "importing its engine") and zygote is None:
            self._start(dataclasses.replace(row, state="warming"))

    def _start(self, row: PlaceholderRow) -> None:
        try:
            zygote = self._zygote_processes.start(row)
        except (EngineError, OSError) as error:
            self._failed(row, f"no zygote: {error}")
            return
        self.keep(zygote)
        record = zygote.record
        try:
            self._rows.note(row, pid=record.pid, pid_start_ticks=record.start_ticks, boot_id=record.boot_id)
        except Superseded:
            self._zygote_processes.end(zygote)  # the node's new agent does not know this process
            raise

    def _warm(self, row: PlaceholderRow, zygote: Zygote | None) -> None:
        failures = self._failures.get(row.placeholder_id)
        if zygote is None:
            if failures is None or time.monotonic() >= failures.retry_at:
                self._start(row)
        elif not zygote.running:
            self._ended(row, zygote)
        elif (status := zygote.take_status()) is not None:
            if status.state == "warm":
                seconds = round(processes.age_seconds(zygote.record.process), 3)
                facts = {"level": Level.H2, "warm_seconds": seconds, "memory_bytes": status.memory_bytes}
                self._move(row, "warm", "its engine is imported", **facts)
            elif self.end(zygote):
                self._failed(row, f"its zygote is unfit: {status.reason}")
        elif processes.age_seconds(zygote.record.process) > zygote.startup_budget_seconds:
            if self.end(zygote):
                self._failed(row, f"not warm after {zygote.startup_budget_seconds:.0f} s")
        else:
            self._ping(zygote, self._timeouts.eager_probe_seconds)

    def _check_warm(self, row: PlaceholderRow, zygote: Zygote | None) -> None:
        if zygote is None or not zygote.running:
            self._cool(row, zygote, "its zygote ended")
        elif (status := zygote.take_status()) is not None and status.state != "warm":
            self._cool(row, zygote, f"its zygote is unfit: {status.reason}")
        else:
            if row.state_seconds > self._timeouts.healthy_seconds:
                self._failures.pop(row.placeholder_id, None)
            self._ping(zygote, self._timeouts.zygote_ping_seconds)

    def _cool(self, row: PlaceholderRow, zygote: Zygote | None, reason: str) -> None:
        """Warm the placeholder again: first make sure that it is not promoted, then kill its process."""
        if not self._move(row, "warming", reason, level=Level.H0, memory_bytes=None):
            return
        if zygote is None or self.end(zygote):
            self._failed(dataclasses.replace(row, state="warming"), reason)

    def _ended(self, row: PlaceholderRow, zygote: Zygote) -> None:
        status = processes.collect(zygote.record.process)
        words = self._zygote_processes.last_log_line(row)
        how = "its zygote ended" if status is None else f"its zygote ended with status {status}"
        if self.end(zygote):
            self._failed(row, f"{how}: {words}" if words else how)

    def _failed(self, row: PlaceholderRow, reason: str) -> None:
        """Try again after a delay; after too many failures in a row keep only the slot."""
        failures = self._failures.setdefault(row.placeholder_id, _Failures())
        failures.count += 1
        if failures.count >= FAILED_ZYGOTES:
            gone = {"level": Level.H0, "memory_bytes": None, "pid": None}
            self._move(row, "warm", f"{reason}; given up after {FAILED_ZYGOTES} tries", **gone)
            return
        delay = backoff_seconds(self._timeouts, failures.count, random.random())
        failures.retry_at = time.monotonic() + delay
        self._rows.note(row, reason=f"{reason}; next try in {delay:.1f} s"[:500], pid=None)

    def _evict(self, row: PlaceholderRow, zygote: Zygote | None) -> None:
        since = self._evicting_since.setdefault(row.placeholder_id, time.monotonic())
        if (zygote is None or self.end(zygote)) and self._move(row, "evicted", row.reason, pid=None):
            self._counters.placeholders_evicted += 1
            metrics.EVICT_SECONDS.observe(time.monotonic() - since)

    def _give_up(self, row: PlaceholderRow, zygote: Zygote | None, reason: str) -> None:
        """Evict the placeholder and end its lease, because its slot cannot be used."""
        self._slot_guard.forget(row.placeholder_id)
        if zygote is None or self.end(zygote):
            self._move(row, "evicted", reason, pid=None)

    def _ping(self, zygote: Zygote, pause_seconds: float) -> None:
        now = time.monotonic()
        if now - zygote.pinged_at >= pause_seconds:
            zygote.pinged_at = now
            self._zygote_processes.ping_in_thread(zygote, self._timeouts.probe_timeout_seconds, self._wake_event.set)

    def _move(self, row: PlaceholderRow, to: PlaceholderState, reason: str, **changes: object) -> bool:
        moved = self._rows.move(row, to, reason, **changes)
        if moved:
            log.info("placeholder %s: %s → %s: %s", row.placeholder_id, row.state, to, reason)
            self._wake_event.set()
        return moved


def _names(zygote: Zygote) -> tuple[UUID, int]:
    return zygote.record.placeholder_id, zygote.record.pid
