"""The processes that fetch models' files, as the agent handles them: spawn, adopt, read their reports, kill."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workers import processes
from workers.agent.processes import launch
from workers.agent.processes.engine import last_line
from workers.agent.processes.paths import AgentPaths
from workers.agent.processes.process_records import FetchRecord
from workers.agent.weights.weights_rows import WeightsRow
from workers.engines.driver import EngineCommand
from workers.weights import job
from workers.weights.job import Job, Report

SOURCE_ROOT = Path(__file__).resolve().parents[3]
COMMAND = (sys.executable, "-m", "workers.weights.fetch")
ENVIRONMENT = {"PYTHONPATH": str(SOURCE_ROOT), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@dataclass(slots=True)
class Fetch:
    """A process that fetches, and the bytes that it had fetched at its last report; None if this agent adopted it."""

    record: FetchRecord
    bytes_counted: int | None = None
    noted_at: float = 0.0

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return processes.is_running(self.record.process)


class FetchProcesses:
    """Spawns and kills the fetches of one node. Files: one record and one log per row of weights."""

    def __init__(self, paths: AgentPaths) -> None:
        self._paths = paths

    def start(self, row: WeightsRow, token: str | None, environment: Mapping[str, str] = os.environ) -> Fetch:
        """Start the process and write its record. Raises OSError if it cannot run."""
        given = Job(
            source=row.source,
            commit=row.commit,
            load_format=row.load_format,
            node=self._paths.node,
            token=token,
        )
        log_path = self._paths.weights_log(row.weights_id)
        log_path.unlink(missing_ok=True)
        process = launch.launch(
            self._paths,
            EngineCommand(COMMAND, ENVIRONMENT),
            log_path=log_path,
            fence=0,
            environment=environment,
            given=given.as_line(),
        )
        record = FetchRecord(
            weights_id=row.weights_id,
            node=self._paths.node,
            source=row.source,
            pid=process.pid,
            start_ticks=process.start_ticks,
            boot_id=self._paths.boot_id,
        )
        self._paths.registry.write(record)
        return Fetch(record, bytes_counted=0)

    def adopt(self) -> list[Fetch]:
        """Return the fetches that an earlier agent left in this boot, also those that have ended; forget the others."""
        found = []
        for record in list(self._paths.registry.fetches()):
            if record.boot_id == self._paths.boot_id:
                found.append(Fetch(record))
            else:
                self._paths.registry.forget(record.holder_id)
        return found

    def report(self, fetch: Fetch) -> Report | None:
        """Return what the process last reported."""
        return job.last_report(self._paths.weights_log(fetch.record.weights_id))

    def last_log_line(self, fetch: Fetch) -> str:
        """Return the last line in its log, or an empty text."""
        return last_line(self._paths.weights_log(fetch.record.weights_id))

    def end(self, fetch: Fetch, *, timeout_seconds: float = 2.0) -> bool:
        """Kill the process and remove its record; False if it outlives the timeout. What it fetched stays."""
        return self._paths.end(fetch.record, timeout_seconds=timeout_seconds)
