"""One engine process in the agent's hands, and how it gets there: started or adopted."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workers import engine_keys, processes
from workers.agent.health import Health
from workers.agent.probes import Load, Report, Target
from workers.agent.registry import EngineRecord, Registry
from workers.agent.rows import Wanted
from workers.engines.driver import EngineSpec, driver_for

#: Marks an engine's processes as this node's, so that one whose record was never written is found too.
OWNER_VARIABLE = "HEARTH_ENGINE_OF"
HOST = "127.0.0.1"
LOG_BYTES = 32 * 1024 * 1024


@dataclass(slots=True)
class Engine:
    """A process and what is known of it. Only the agent's thread writes it, except for ``report``."""

    record: EngineRecord
    target: Target
    startup_budget_seconds: float
    health: Health = field(default_factory=Health)
    #: Left by the thread that looked; None again once taken.
    report: Report | None = None
    looking: bool = False
    looked_at: float = 0.0
    canary_at: float = field(default_factory=time.monotonic)
    load: Load | None = None
    progress_at: float = field(default_factory=time.monotonic)
    observed_at: float = 0.0
    #: Requests have ended, or it never had any.
    drained: bool = False
    terminated_at: float | None = None

    @property
    def running(self) -> bool:
        """True while the process that was started lives; parts of it may outlive that."""
        return processes.is_running(self.record.process)

    def take_report(self) -> Report | None:
        """Return the last look's report, once, and remember the load in it."""
        report, self.report = self.report, None
        if report is not None and report.load is not None:
            if self.load is None or report.load.tokens != self.load.tokens:
                self.progress_at = time.monotonic()
            self.load = report.load
        return report


class EngineRoom:
    """Starts and adopts the engines of one node. Files: one record and one log per engine."""

    def __init__(self, node: str, data_dir: Path, *, shutdown_seconds: float) -> None:
        self.registry = Registry(data_dir / "engines", node)
        self._node = node
        self._logs = data_dir / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._boot_id = processes.boot_id()
        self._shutdown_seconds = shutdown_seconds

    @property
    def boot_id(self) -> str:
        """This boot of the machine."""
        return self._boot_id

    def start(self, row: Wanted, port: int, environment: Mapping[str, str] = os.environ) -> Engine:
        """Start the replica's process and keep its record. Raises EngineError or OSError when it cannot run."""
        target = _target(row, port)
        log_path = self.log_path(row)
        driver = driver_for(row.engine)
        command = driver.command(
            EngineSpec(
                replica_id=str(row.replica_id),
                model_path=row.source,
                served_name=row.served_name,
                host=HOST,
                port=port,
                api_key=target.api_key,
                log_path=log_path,
                context_length_tokens=row.context_length_tokens,
                shutdown_timeout_seconds=int(self._shutdown_seconds),
                engine_args=row.engine_args,
            )
        )
        _rotate(log_path)
        inherited = command.environment(environment) | {OWNER_VARIABLE: self._owner()}
        process = processes.launch(command.argv, log_path=log_path, environment=inherited)
        record = EngineRecord(
            replica_id=row.replica_id,
            node=self._node,
            fence=row.fence,
            generation=row.generation,
            pid=process.pid,
            start_ticks=process.start_ticks,
            boot_id=self._boot_id,
            port=port,
            argv0=command.argv[0],
        )
        self.registry.write(record)
        return Engine(record, target, driver.startup_budget_seconds)

    def adopt(self, rows: Mapping[object, Wanted]) -> list[Engine]:
        """Return the engines that an earlier agent left and that are still theirs to be; end all others.

        An engine is kept when boot, pid, start time, fence and generation are those of its record and its replica
        has a process in the state it is in. Call it before anything is started.
        """
        kept = []
        for record in list(self.registry.records()):
            row = rows.get(record.replica_id)
            if row is not None and self._is_of(record, row):
                kept.append(Engine(record, _target(row, record.port), driver_for(row.engine).startup_budget_seconds))
            else:
                self.end(record)
        self._end_unrecorded({process for engine in kept for process in _members(engine.record)})
        return kept

    def end(self, record: EngineRecord, *, timeout_seconds: float = 2.0) -> bool:
        """Kill what lives of an engine and forget it; False when something outlives the timeout."""
        if record.boot_id == self._boot_id and not processes.kill_session(
            record.process, timeout_seconds=timeout_seconds
        ):
            return False
        self.registry.forget(record.replica_id)
        return True

    def log_path(self, row: Wanted) -> Path:
        """Return where the replica's engines write, one after another."""
        return self._logs / f"engine-{str(row.replica_id)[-8:]}.log"

    def last_words(self, row: Wanted) -> str:
        """Return the last line in the replica's log, or an empty text."""
        try:
            with self.log_path(row).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def _is_of(self, record: EngineRecord, row: Wanted) -> bool:
        same = (record.boot_id, record.fence, record.generation) == (self._boot_id, row.fence, row.generation)
        return same and row.state not in {"requested", "reserved", "backoff"} and processes.is_running(record.process)

    def _end_unrecorded(self, kept: set[processes.ProcessIdentity]) -> None:
        """Kill engine processes whose agent died before it could write their record.

        vLLM's engine core overwrites its environment with its title, so it is found through the session's leader.
        """
        owned = processes.find_by_environment(OWNER_VARIABLE)
        for process, owner in owned.items():
            if owner == self._owner() and process not in kept:
                processes.kill_session(process, timeout_seconds=2.0)
                processes.send_signal(process, signal.SIGKILL)  # a child whose leader is gone

    def _owner(self) -> str:
        return f"{self._node} {self.registry.folder}"


def free_port() -> int:
    """Return a TCP port that was free a moment ago; an engine that finds it taken ends and is started on another."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _target(row: Wanted, port: int) -> Target:
    return Target(
        host=HOST,
        port=port,
        api_key=engine_keys.derive(row.replica_id),
        replica_id=row.replica_id,
        revision_id=row.revision_id,
        model_name=row.served_name,
    )


def _members(record: EngineRecord) -> list[processes.ProcessIdentity]:
    return processes.session_members(record.process)


def _rotate(log_path: Path) -> None:
    """Put a large log aside, replacing the one put aside before."""
    try:
        if log_path.stat().st_size > LOG_BYTES:
            log_path.replace(log_path.with_suffix(".log.1"))
    except FileNotFoundError:
        return
