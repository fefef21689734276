"""Zygotes as the agent handles them: processes that have imported an engine and wait to become one."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workers import processes
from workers.agent.processes import launch
from workers.agent.processes.engine import last_line, spec_for
from workers.agent.processes.paths import FENCE_VARIABLE, AgentPaths
from workers.agent.processes.process_records import ZygoteRecord
from workers.agent.store.placeholder_rows import PlaceholderRow
from workers.engines import zygote_client
from workers.engines.choice import driver_for
from workers.engines.errors import EngineUnavailable, ZygoteError
from workers.engines.zygote_client import ZygoteStatus
from workers.processes import ProcessIdentity


@dataclass(slots=True)
class Zygote:
    """A zygote's process and its last status. Only the agent's thread writes it, except for ``status``."""

    record: ZygoteRecord
    startup_budget_seconds: float
    #: Set by the thread that pings; None again once taken.
    status: ZygoteStatus | None = None
    pinging: bool = False
    pinged_at: float = 0.0

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return processes.is_running(self.record.process)

    def take_status(self) -> ZygoteStatus | None:
        """Return its last status, once."""
        status, self.status = self.status, None
        return status


class ZygoteProcesses:
    """Spawns, pings and kills the zygotes of one node. Files: one record, one log and one socket per placeholder."""

    def __init__(self, paths: AgentPaths) -> None:
        self._paths = paths

    def start(self, row: PlaceholderRow, environment: Mapping[str, str] = os.environ) -> Zygote:
        """Start the placeholder's zygote and write its record. Raises EngineError or OSError if it cannot run."""
        assert row.program is not None, "there is a model to prepare for"
        driver = driver_for(row.program.engine)
        self._paths.make_sockets()
        log_path = self._paths.zygote_log(row.placeholder_id)
        log_path.unlink(missing_ok=True)
        socket_path = self._paths.zygote_socket(row.placeholder_id)
        spec = dataclasses.replace(spec_for(row.program, row.devices, log_path), sockets=self._paths.sockets)
        command = driver.zygote(spec, socket_path)
        if command is None:
            raise EngineUnavailable(f"{driver.name} has no zygote", "use placeholder level h0 for its pools")
        process = launch.launch(self._paths, command, log_path=log_path, fence=row.fence, environment=environment)
        return self._record(row, process)

    def adopt(self, row: PlaceholderRow) -> Zygote | None:
        """Return the zygote that an earlier agent left for the placeholder, if it lives and still belongs to it."""
        record = next(
            (each for each in self._paths.registry.zygotes() if each.placeholder_id == row.placeholder_id), None
        )
        if record is None:
            return self._recognise(row)
        same = (self._paths.boot_id, row.fence) == (record.boot_id, record.fence)
        return self._zygote(record, row) if same and processes.is_running(record.process) else None

    def ping_in_thread(self, zygote: Zygote, timeout_seconds: float, answered: Callable[[], None]) -> None:
        """Ping it in a thread of its own, which calls ``answered`` if there is an answer; one ping at a time."""
        if zygote.pinging:
            return
        zygote.pinging = True

        def run() -> None:
            status = self.ping(zygote.record, timeout_seconds)
            zygote.status = status
            zygote.pinging = False
            if status is not None:
                answered()

        threading.Thread(target=run, name="ping", daemon=True).start()

    def ping(self, record: ZygoteRecord, timeout_seconds: float) -> ZygoteStatus | None:
        """Return its status; None while it still imports, if it has ended, and on a timeout."""
        try:
            return zygote_client.ping(self._paths.zygote_socket(record.placeholder_id), timeout_seconds)
        except ZygoteError:
            return None

    def kill(self, zygote: Zygote) -> None:
        """Kill it and return at once; :meth:`end` waits for its end and removes its files."""
        self._paths.kill(zygote.record)

    def end(self, zygote: Zygote, *, timeout_seconds: float = 2.0) -> bool:
        """Kill its processes and remove its files; False if a process outlives the timeout."""
        if not self._paths.end(zygote.record, timeout_seconds=timeout_seconds):
            return False
        self.forget(zygote.record)
        return True

    def forget(self, record: ZygoteRecord) -> None:
        """Remove its record, log and socket; the process itself is not touched."""
        self._paths.registry.forget(record.placeholder_id)
        self._paths.zygote_socket(record.placeholder_id).unlink(missing_ok=True)
        self._paths.zygote_log(record.placeholder_id).unlink(missing_ok=True)

    def last_log_line(self, row: PlaceholderRow) -> str:
        """Return the last line in the zygote's log, or an empty text."""
        return last_line(self._paths.zygote_log(row.placeholder_id))

    def _recognise(self, row: PlaceholderRow) -> Zygote | None:
        """Return the process that the row names, if it lives and has no other fence; write its record again."""
        process = row.process
        if process is None or row.boot_id != self._paths.boot_id or not processes.is_running(process):
            return None
        if processes.variable(process, FENCE_VARIABLE) not in {None, str(row.fence)}:
            return None
        return self._record(row, process)

    def _record(self, row: PlaceholderRow, process: ProcessIdentity) -> Zygote:
        record = ZygoteRecord(
            placeholder_id=row.placeholder_id,
            node=self._paths.node,
            fence=row.fence,
            pid=process.pid,
            start_ticks=process.start_ticks,
            boot_id=self._paths.boot_id,
            devices=row.devices,
        )
        self._paths.registry.write(record)
        return self._zygote(record, row)

    def _zygote(self, record: ZygoteRecord, row: PlaceholderRow) -> Zygote:
        budget = driver_for(row.program.engine).startup_budget_seconds if row.program else 0.0
        return Zygote(record, budget)
