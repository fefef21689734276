"""Engine processes as the agent handles them: spawn, promote, adopt and kill."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from django.conf import settings

from workers import log_files, processes
from workers.agent.probes.health import Health
from workers.agent.probes.http_probe import EngineLoad, ProbeResult
from workers.agent.probes.recent_times import RecentTimes, Times
from workers.agent.processes import launch
from workers.agent.processes.node_tls import NodeTls
from workers.agent.processes.paths import FENCE_VARIABLE, AgentPaths
from workers.agent.processes.process_records import EngineRecord, ZygoteRecord
from workers.agent.store.replica_rows import Program, ReplicaRow
from workers.engines import engine_log, start_parts, zygote_client
from workers.engines.argument_check import refusal_in
from workers.engines.choice import driver_for
from workers.engines.driver import EngineCommand, EngineSpec, serves_embeddings
from workers.engines.errors import UnknownEngineKey
from workers.engines.start_parts import StartParts
from workers.processes import ProcessIdentity
from workers.serving import engine_keys
from workers.serving.canary import CanaryTarget

log = logging.getLogger(__name__)

GPU = "GPU-"
#: The part of a log that is read for why an engine ended.
LOG_TAIL_BYTES = 8192
#: The part of a log that is read for how long a start took; a start of vLLM writes some 100 KiB.
START_LOG_BYTES = 4 * 2**20


@dataclass(slots=True)
class Engine:
    """An engine process and what is known about it. Only the agent's thread writes it, except for ``result``."""

    record: EngineRecord
    target: CanaryTarget
    startup_budget_seconds: float
    health: Health = field(default_factory=Health)
    #: Set by the thread that probes; None again once taken.
    result: ProbeResult | None = None
    probing: bool = False
    probed_at: float = 0.0
    canary_at: float = field(default_factory=time.monotonic)
    load: EngineLoad | None = None
    recent: RecentTimes = field(default_factory=RecentTimes)
    progress_at: float = field(default_factory=time.monotonic)
    observed_at: float = 0.0
    #: The load and the times that the database has of it, and since when.
    written: tuple[EngineLoad, Times] | None = None
    written_at: float = 0.0
    #: Requests have ended, or it never had any.
    drained: bool = False
    terminated_at: float | None = None

    @property
    def running(self) -> bool:
        """True while the process that was started lives; its children may outlive it."""
        return processes.is_running(self.record.process)

    @property
    def age_seconds(self) -> float:
        """How long ago it was spawned or promoted."""
        return processes.boot_seconds() - self.record.begun_at

    def take_result(self) -> ProbeResult | None:
        """Return the last probe's result, once, and keep the load in it."""
        result, self.result = self.result, None
        if result is not None and result.load is not None:
            if self.load is None or result.load.tokens != self.load.tokens:
                self.progress_at = time.monotonic()
            self.load = result.load
            self.recent.add(time.monotonic(), result.load.totals)
        return result


class EngineProcesses:
    """Spawns, promotes and kills the engines of one node. Files: one record and one log per replica."""

    def __init__(self, paths: AgentPaths, tls: NodeTls, *, shutdown_seconds: float) -> None:
        self._paths = paths
        self.tls = tls
        self._shutdown_seconds = shutdown_seconds

    def start(self, row: ReplicaRow, port: int, environment: Mapping[str, str] = os.environ) -> Engine:
        """Start the replica's process and write its record. Raises EngineError or OSError if it cannot run."""
        command = self._command(row, port)
        log_path = self.log_path(row)
        log_files.rotate(log_path)
        log_offset = _size(log_path)
        process = launch.launch(self._paths, command, log_path=log_path, fence=row.fence, environment=environment)
        begun_at = process.start_ticks / processes.TICKS_PER_SECOND
        return self._record(row, port, process, begun_at=begun_at, log_offset=log_offset)

    def promote(self, row: ReplicaRow, port: int, zygote: ZygoteRecord, *, timeout_seconds: float) -> Engine:
        """Make a zygote the replica's engine. The record is written before the process gets the command.

        So an agent that ends at any moment leaves a record of the process. Raises EngineError or OSError; then the
        process may be a zygote or an engine, and its record is the engine's.
        """
        command = self._command(row, port)
        log_path = self.log_path(row)
        log_files.rotate(log_path)
        begun_at, log_offset = processes.boot_seconds(), _size(log_path)
        engine = self._record(row, port, zygote.process, begun_at=begun_at, log_offset=log_offset)
        socket_path = self._paths.zygote_socket(zygote.placeholder_id)
        zygote_client.become(socket_path, command, log_path, timeout_seconds)
        return engine

    def adopt(self, row: ReplicaRow) -> Engine | None:
        """Return the engine that an earlier agent left for the replica, if it lives and still belongs to the replica.

        It does if boot, pid, start time, fence and generation match its record and the replica has a process in its
        present state. Without a record the row itself must name the process. None, too, if this machine lacks the
        engine key that the engine was started with: then it cannot be reached, and another is started.
        """
        if row.state in {"requested", "reserved", "backoff"}:
            return None
        record = next((each for each in self._paths.registry.engines() if each.replica_id == row.replica_id), None)
        try:
            return self._recognise(row) if record is None else self._recorded(row, record)
        except UnknownEngineKey as error:
            log.error("replica %s: its engine is not adopted: %s", row.replica_id, error)
            return None

    def end(self, record: EngineRecord, *, timeout_seconds: float = 2.0) -> bool:
        """Kill an engine's processes and remove its record; False if one outlives the timeout."""
        return self._paths.end(record, timeout_seconds=timeout_seconds)

    def forget(self, row: ReplicaRow) -> None:
        """Remove the record of an engine that has no process left."""
        self._paths.registry.forget(row.replica_id)

    def log_path(self, row: ReplicaRow) -> Path:
        """Return the log that the replica's engines append to, one after another."""
        return self._paths.engine_log(row.replica_id)

    def last_log_line(self, row: ReplicaRow) -> str:
        """Return the last line in the replica's log, or an empty text."""
        return last_line(self.log_path(row))

    def log_tail(self, row: ReplicaRow) -> str:
        """Return the end of the replica's log, as people may read it."""
        return engine_log.tail(self.log_path(row))

    def start_parts(self, row: ReplicaRow, record: EngineRecord) -> StartParts:
        """Return how long the parts of the engine's start took, as far as its log says."""
        try:
            with self.log_path(row).open("rb") as file:
                file.seek(record.log_offset)
                log = file.read(START_LOG_BYTES)
        except OSError:
            return StartParts()
        return start_parts.parts(log.decode(errors="replace"))

    def refusal(self, row: ReplicaRow) -> str:
        """Return what the engine's parser refused last, if the end of the log has it; an empty text if not."""
        return refusal_in(engine_log.tail(self.log_path(row), LOG_TAIL_BYTES))

    def _recorded(self, row: ReplicaRow, record: EngineRecord) -> Engine | None:
        """Return the process that the record names, if it lives and still belongs to the replica."""
        same = (self._paths.boot_id, row.fence, row.generation) == (record.boot_id, record.fence, record.generation)
        if not same or not processes.is_running(record.process):
            return None
        return self._engine(record, row)

    def _recognise(self, row: ReplicaRow) -> Engine | None:
        """Return the process that the row names, if it lives and has no other fence; write its record again."""
        process = row.process
        if process is None or row.port is None or row.boot_id != self._paths.boot_id:
            return None
        fences = {None, str(row.fence), str(row.placeholder_fence)}
        if not processes.is_running(process) or processes.variable(process, FENCE_VARIABLE) not in fences:
            return None
        begun_at = process.start_ticks / processes.TICKS_PER_SECOND
        return self._record(row, row.port, process, begun_at=begun_at)

    def _record(
        self, row: ReplicaRow, port: int, process: ProcessIdentity, *, begun_at: float, log_offset: int = 0
    ) -> Engine:
        record = EngineRecord(
            replica_id=row.replica_id,
            node=self._paths.node,
            fence=row.fence,
            generation=row.generation,
            pid=process.pid,
            start_ticks=process.start_ticks,
            boot_id=self._paths.boot_id,
            port=port,
            devices=row.devices,
            begun_at=begun_at,
            log_offset=log_offset,
        )
        self._paths.registry.write(record)
        return self._engine(record, row)

    def _engine(self, record: EngineRecord, row: ReplicaRow) -> Engine:
        target = CanaryTarget(
            host=row.host or self._paths.address,
            port=record.port,
            api_key=engine_keys.derive(row.replica_id, row.engine_key),
            replica_id=row.replica_id,
            generation=record.generation,
            revision_id=row.revision_id,
            model_name=row.program.served_name,
            embeds=serves_embeddings(row.program.engine_args),
            tls=self.tls.peer if row.speaks_tls else None,
        )
        return Engine(record, target, driver_for(row.program.engine).startup_budget_seconds)

    def _command(self, row: ReplicaRow, port: int) -> EngineCommand:
        self._paths.make_sockets()
        spec = spec_for(row.program, row.devices, self.log_path(row))
        spec = dataclasses.replace(
            spec,
            replica_id=str(row.replica_id),
            host=row.host or self._paths.address,
            port=port,
            api_key=engine_keys.derive(row.replica_id, row.engine_key),
            sockets=self._paths.sockets,
            tls=self.tls.files if row.speaks_tls else None,
            shutdown_timeout_seconds=int(self._shutdown_seconds),
        )
        return driver_for(row.program.engine).command(spec)


def spec_for(program: Program, devices: tuple[str, ...], log_path: Path) -> EngineSpec:
    """Return what a zygote has in common with the engine it becomes; the rest belongs to one replica."""
    return EngineSpec(
        replica_id="",
        model_path=program.source,
        served_name=program.served_name,
        host="127.0.0.1",
        port=0,
        api_key="",
        log_path=log_path,
        context_length_tokens=program.context_length_tokens,
        media_domains=tuple(settings.MEDIA_DOMAINS),
        log_requests=settings.LOG_REQUESTS,
        traces_url=settings.TRACES_URL,
        gpu_uuids=tuple(device for device in devices if device.startswith(GPU)),
        options=program.options,
        version=program.version,
        engine_args=program.engine_args,
    )


def last_line(log_path: Path) -> str:
    """Return the last line of a log that is not blank, without private values, or an empty text."""
    lines = engine_log.tail(log_path, LOG_TAIL_BYTES).split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _size(log_path: Path) -> int:
    try:
        return log_path.stat().st_size
    except OSError:
        return 0
