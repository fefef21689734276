"""The time in which one agent owns a node, and its rounds: what it does there about once a second."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from django.db import InterfaceError, OperationalError

from workers.agent.adapters.adapter_rows import AdapterRows
from workers.agent.adapters.lifecycle import AdapterLifecycle
from workers.agent.placeholder import PlaceholderLifecycle
from workers.agent.probe_schedule import ProbeSchedule
from workers.agent.probes.http_probe import Prober
from workers.agent.processes import adoption, node_tls, old_relay
from workers.agent.processes.engine import EngineProcesses
from workers.agent.processes.node_tls import NodeTls
from workers.agent.processes.paths import AgentPaths, Folders
from workers.agent.processes.slot_guard import SlotGuard
from workers.agent.processes.zygote import ZygoteProcesses
from workers.agent.readings.gpu_check_file import GpuCheckFile
from workers.agent.readings.monitor import NodeMonitor
from workers.agent.replica import ReplicaLifecycle
from workers.agent.starter import Starter
from workers.agent.store.certificate_rows import CertificateRows
from workers.agent.store.placeholder_rows import PlaceholderRow, PlaceholderRows
from workers.agent.store.replica_rows import NodeRows, ReplicaRow
from workers.agent.timeouts import Timeouts
from workers.agent.wakeup import WakeEvent
from workers.agent.weights.fetch_processes import FetchProcesses
from workers.agent.weights.lifecycle import WeightsLifecycle
from workers.agent.weights.staged_rows import StagedRows
from workers.agent.weights.staging import Stager
from workers.agent.weights.weights_rows import WeightsRows
from workers.devices.errors import DeviceError
from workers.devices.provider import Device
from workers.engines import environment as engine_environment
from workers.engines.choice import installed_versions
from workers.engines.errors import EngineError
from workers.errors import Superseded
from workers.metrics import AgentCounters
from workers.serving.canary import CanarySink

log = logging.getLogger(__name__)


class NodeOwnership:
    """Owns the node of ``rows``. One thread calls it; each method raises Superseded once another agent owns it."""

    def __init__(
        self,
        rows: NodeRows,
        folders: Folders,
        monitor: NodeMonitor,
        sink: CanarySink,
        wake_event: WakeEvent,
        timeouts: Timeouts,
        counters: AgentCounters,
    ) -> None:
        self.rows = rows
        self._placeholder_rows = PlaceholderRows(rows)
        self._paths = AgentPaths(node=rows.name, address=rows.address, folders=folders)
        self._devices = monitor.devices
        self._registered: tuple[Device, ...] = ()
        self._reported: tuple[str, ...] | None = None
        self._gpu_check = GpuCheckFile(folders.data)
        self._timeouts = timeouts
        self._counters = counters
        self._monitor = monitor
        self._tls = NodeTls(CertificateRows(rows), folders.data, folders.account, timeouts)
        self._engines = EngineProcesses(self._paths, self._tls, shutdown_seconds=timeouts.engine_shutdown_seconds)
        self._zygotes = ZygoteProcesses(self._paths)
        self._slot_guard = SlotGuard(
            rows, self._paths, self._devices, counters, patience_seconds=timeouts.slot_free_seconds
        )
        self._placeholders = PlaceholderLifecycle(
            self._placeholder_rows, self._zygotes, self._slot_guard, wake_event, timeouts, counters
        )
        self._starter = Starter(
            rows, self._engines, self._placeholders, self._slot_guard, wake_event, timeouts, counters
        )
        prober = Prober(sink, timeout_seconds=timeouts.probe_timeout_seconds)
        probes = ProbeSchedule(prober, wake_event, timeouts)
        self._replicas = ReplicaLifecycle(rows, self._engines, self._starter, probes, wake_event, timeouts)
        self._adapters = AdapterLifecycle(AdapterRows(rows), prober, wake_event, timeouts)
        self._weights_rows = WeightsRows(rows)
        self._weights = WeightsLifecycle(
            self._weights_rows, FetchProcesses(self._paths), wake_event, timeouts, counters
        )
        self._stager = Stager(StagedRows(rows), pause_seconds=timeouts.staging_seconds)
        self._swept_at = self._looked_at = time.monotonic()
        self._stored_at = 0.0

    def begin(self) -> int:
        """Adopt what an earlier agent left, kill processes without an owner, and register the devices.

        Return how many processes were adopted. If the devices cannot be read now, their registration stays as it is.
        """
        self._tend_tls()
        placeholders = self._placeholder_rows.all()
        rows = self.rows.replicas()
        found = adoption.adopt(self._engines, self._zygotes, rows, placeholders)
        for engine in found.engines:
            self._replicas.keep(engine)
        for zygote in (*found.zygotes, *(zygote for _, zygote in found.mid_promotion)):
            self._placeholders.keep(zygote)
        fetches = self._weights.adopt()
        self._sweep()
        old_relay.end(self._paths)
        self._finish_promotions(found, rows)
        self._check_devices()
        engine_environment.adopt()
        self._report_engines()
        self._report_gpu_check()
        adopted = len(found.engines) + len(found.zygotes) + len(found.mid_promotion) + fetches
        self._counters.adopted += adopted
        return adopted

    def round(self) -> float:
        """Step every placeholder and every replica once; return how long to wait if the wake event is not set.

        Placeholders are read before replicas, so that a placeholder which is promoted in between is still known.
        """
        self.rows.check()  # because signals are sent to processes without a further query
        placeholders = self._placeholder_rows.all()
        self._placeholders.kill_evicted(placeholders)
        rows = self.rows.replicas()
        for placeholder in placeholders:
            with _isolated(f"placeholder {placeholder.placeholder_id}"):
                self._placeholders.step(placeholder)
        for row in rows:
            with _isolated(f"replica {row.replica_id}"):
                self._replicas.step(row)
        with _isolated("the adapters"):
            self._adapters.step(self._replicas.engines)
        self._tend_tls()
        self._fetch_weights()
        with _isolated("the files in the page cache"):
            self._stager.step()
        self._monitor.engines = self._replicas.views(rows)
        self._placeholders.end_all_but(placeholders)
        self._replicas.kill_all_but({row.replica_id for row in rows})
        self._slot_guard.forget_all_but(
            {*(row.replica_id for row in rows), *(row.placeholder_id for row in placeholders)}
        )
        now = time.monotonic()
        if now - self._looked_at >= self._timeouts.devices_seconds:
            self._looked_at = now
            self._check_devices()
            self._report_engines()
            self._report_gpu_check()
        if now - self._swept_at >= self._timeouts.sweep_seconds:
            self._swept_at = now
            self._sweep()
        if now - self._stored_at >= self._timeouts.store_readings_seconds:
            self._stored_at = now
            with _isolated("the readings of its devices"):
                self.rows.store_readings(self._monitor.readings.current)
        return self._pause_seconds(rows, placeholders)

    def close(self) -> None:
        """End the process that keeps files in the page cache; engines, zygotes and fetches go on."""
        self._stager.stop()

    def _tend_tls(self) -> None:
        """Tend the certificate where engines need one, or an engine of before still has one."""
        if node_tls.needed(self._paths.address) or any(each.target.tls for each in self._replicas.engines):
            with _isolated("the node's certificate"):
                self._tls.tend()

    def _fetch_weights(self) -> None:
        rows = self._weights_rows.all()
        self._weights.end_all_but(rows)
        for row in rows:
            with _isolated(f"weights of {row.source}"):
                self._weights.step(row)

    def _pause_seconds(self, rows: list[ReplicaRow], placeholders: list[PlaceholderRow]) -> float:
        if any(row.state in {"requested", "warming", "evicting"} for row in placeholders):
            return self._timeouts.eager_probe_seconds
        return self._replicas.pause_seconds(rows)

    def _sweep(self) -> None:
        engines = (engine.record.process for engine in self._replicas.engines)
        zygotes = (zygote.record.process for zygote in self._placeholders.zygotes)
        fetches = (fetch.record.process for fetch in self._weights.fetches)
        self._counters.orphans_killed += adoption.sweep(self._paths, (*engines, *zygotes, *fetches))
        self._paths.tend_logs()
        self._paths.drop_old_sockets()

    def _finish_promotions(self, found: adoption.Adopted, rows: list[ReplicaRow]) -> None:
        """Repeat promotions that an agent did not finish before it ended; kill zygotes whose replica moved on."""
        by_id = {row.replica_id: row for row in rows}
        for engine, zygote in found.mid_promotion:
            row = by_id[engine.record.replica_id]
            if row.state == "starting" and row.wanted:
                try:
                    promoted = self._starter.start(row)
                except (EngineError, OSError) as error:
                    log.error("replica %s: its promotion cannot be finished: %s", row.replica_id, error)
                else:
                    self._replicas.keep(promoted)
            else:
                self._starter.abandon(row, zygote, f"the replica was {row.state} when the agent came back")

    def _check_devices(self) -> None:
        try:
            found = self._devices.devices()
        except DeviceError as error:
            log.warning("node %s: its devices cannot be read: %s", self._paths.node, error)
            return
        if found != self._registered or any(device.fault for device in found):
            self._register(found)

    def _report_engines(self) -> None:
        """Write which versions of engines this machine has, when they have changed: replicas start where theirs is."""
        found = installed_versions()
        if found != self._reported:
            self.rows.report_engines(found)
            self._reported = found

    def _report_gpu_check(self) -> None:
        """Write what `hearth gpu-check` found on this machine, when its file has changed."""
        with _isolated("the report of hearth gpu-check"):
            if (found := self._gpu_check.changed()) is not None:
                self.rows.report_gpu_check(found)
                self._gpu_check.confirm()

    def _register(self, found: tuple[Device, ...]) -> None:
        self.rows.register(found)
        self._registered = found


@contextlib.contextmanager
def _isolated(holder: str) -> Iterator[None]:
    """Log an unexpected error of one holder, so that it stops neither the other holders nor the node's lease.

    Errors that concern the whole node are raised: Superseded, and a database that is unavailable.
    """
    try:
        yield
    except (Superseded, OperationalError, InterfaceError):
        raise
    except Exception:
        log.exception("%s cannot take its next step", holder)
