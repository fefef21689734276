"""The role processes of the supervisor: start them, restart them when they die, end them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hearth import process_records
from hearth.supervisor import build
from workers.processes import POLL_SECONDS, ProcessIdentity, collect, is_running, launch

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
#: A role that ran this long was healthy: the restart delay starts from the first value again.
HEALTHY_AFTER_SECONDS = 60.0
#: So did one that was ready this long.
READY_AFTER_SECONDS = 5.0
READY_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRecord:
    """The record of a child for ``hearth status`` and the next start. ``restarts`` counts since ``hearth up``."""

    name: str
    pid: int
    start_ticks: int
    restarts: int
    #: Seconds since the epoch.
    started_at: float
    #: ``build.fingerprint`` of the process; empty in the record of a version that wrote none.
    fingerprint: str = ""

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)


def read_record(path: Path) -> ChildRecord | None:
    """Return a child's record; None if there is none or it is not readable."""
    try:
        return ChildRecord(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


@dataclass(slots=True, kw_only=True)
class Child:
    """One role that is kept alive. Only ``poll`` acts; nothing happens between two calls."""

    name: str
    command: list[str]
    environment: dict[str, str]
    log_path: Path
    record_path: Path
    grace_seconds: float
    stop_stage: int
    #: Return whether the process can do its work now.
    is_ready: Callable[[], bool] = lambda: False
    #: The port that several processes of the role may listen on at once; None: the old one ends before the new starts.
    shared_port: int | None = None
    process: ProcessIdentity | None = None
    _adopted: bool = False
    _restarts: int = 0
    _deaths_in_a_row: int = 0
    _started: float = field(default=0.0)
    _start_at: float = field(default=0.0)
    _ready_since: float | None = None
    _ready_checked: float = field(default=0.0)

    def start(self) -> None:
        """Start the process and record it. Raises OSError."""
        # first, because it reads many files: a supervisor killed between launch and record leaves an unknown process
        fingerprint = build.fingerprint(self.command, self.environment)
        self.process = launch(self.command, log_path=self.log_path, environment=self.environment)
        self._adopted = False
        self._started = time.monotonic()
        self._ready_since = None
        record = ChildRecord(
            name=self.name,
            pid=self.process.pid,
            start_ticks=self.process.start_ticks,
            restarts=self._restarts,
            started_at=time.time(),
            fingerprint=fingerprint,
        )
        temporary = self.record_path.with_name(f".{self.record_path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(record)))
        temporary.replace(self.record_path)

    def adopt(self, record: ChildRecord) -> None:
        """Keep the running process of this record, which another supervisor started."""
        self.process, self._restarts, self._adopted = record.process, record.restarts, True
        self._started = time.monotonic()

    def poll(self) -> str | None:
        """Detect a death, and restart after the delay; return a line to print, if any."""
        if self.process is None:
            if time.monotonic() >= self._start_at:
                self._restarts += 1
                self.start()
            return None
        how = self._ending(self.process)
        if how is None:
            self._forgive()
            return None
        process_records.end_session(self.process, grace_seconds=0)
        self.process = None
        delay = self._next_delay()
        self._start_at = time.monotonic() + delay
        return f"{self.name} ended{how}; restarting it in {delay:g} s (log: {self.log_path})"

    def _ending(self, process: ProcessIdentity) -> str | None:
        """Return how the process ended, which only its parent can know; None while it runs."""
        if self._adopted:
            return None if is_running(process) else ""
        status = collect(process)
        if status is None:
            return None
        return f" with signal {-status}" if status < 0 else f" with status {status}"

    def _forgive(self) -> None:
        """Start the restart delay from the first value again once the process was ready long enough."""
        now = time.monotonic()
        if self._deaths_in_a_row == 0 or now - self._ready_checked < READY_CHECK_SECONDS:
            return
        self._ready_checked = now
        if not self.is_ready():
            self._ready_since = None
            return
        self._ready_since = now if self._ready_since is None else self._ready_since
        if now - self._ready_since >= READY_AFTER_SECONDS:
            self._deaths_in_a_row = 0

    def _next_delay(self) -> float:
        """Return the restart delay: doubled for each death in a row, so that a broken role does not loop."""
        lived = time.monotonic() - self._started
        self._deaths_in_a_row = 1 if lived > HEALTHY_AFTER_SECONDS else self._deaths_in_a_row + 1
        return float(min(FIRST_DELAY_SECONDS * 2 ** (self._deaths_in_a_row - 1), LONGEST_DELAY_SECONDS))


def end_all(children: Iterable[Child], *, forced: Callable[[], bool]) -> list[str]:
    """End children together: SIGTERM, then SIGKILL after the grace period, or at once when ``forced``.

    Returns the names of the killed children. Idempotent.
    """
    waiting = {child.name: child for child in children if child.process is not None}
    began = time.monotonic()
    for child in waiting.values():
        if child.process is not None:
            process_records.request_stop(child.process)
    killed = []
    while waiting:
        for child in list(waiting.values()):
            leader = child.process
            assert leader is not None
            late = forced() or time.monotonic() - began > child.grace_seconds
            if is_running(leader) and not late:
                continue
            if is_running(leader):
                killed.append(child.name)
            process_records.end_session(leader, grace_seconds=0)
            child.process = None
            child.record_path.unlink(missing_ok=True)
            del waiting[child.name]
        time.sleep(POLL_SECONDS)
    return killed
