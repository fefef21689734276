"""The agent of a node: one thread that owns the node and steps every replica on it.

Stopping it, even with SIGKILL, only detaches it: engines live in sessions of their own and the next agent adopts them.
While PostgreSQL is unavailable no replica changes its state and every engine keeps running.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections, connection

from workers.agent.ownership import NodeOwnership
from workers.agent.probes.http_probe import read_metrics
from workers.agent.processes.engine_account import engine_account
from workers.agent.processes.paths import Folders, agent_lock
from workers.agent.readings.metrics import NodeMeasurements
from workers.agent.readings.monitor import NodeMonitor
from workers.agent.store.replica_rows import NodeRows
from workers.agent.timeouts import Timeouts
from workers.agent.wakeup import WakeEvent
from workers.devices.bounded import BoundedDevices
from workers.devices.provider import DeviceProvider
from workers.engines import engine_log
from workers.errors import NotFound, Superseded
from workers.fleet.status import inventory
from workers.fleet.status.inventory import Fleet
from workers.metrics import AgentCounters
from workers.serving.canary import CanarySink

log = logging.getLogger(__name__)

#: Prometheus waits 10 s for a page.
ENGINE_METRICS_SECONDS = 5.0

_running: set[Agent] = set()


def wake_all() -> None:
    """Start the next round of every agent in this process at once."""
    for agent in tuple(_running):
        agent.wake()


def snapshots() -> dict[str, NodeSnapshot | None]:
    """Return what every agent in this process last read, by node; None for an agent that has not read its node yet."""
    return {agent.node: agent.snapshot for agent in tuple(_running)}


def statuses() -> tuple[AgentStatus, ...]:
    """Return the status of every agent in this process."""
    now = time.monotonic()
    return tuple(
        AgentStatus(
            node=agent.node,
            loop_age_seconds=None if agent.passed_at is None else now - agent.passed_at,
            round_age_seconds=None if agent.round_at is None else now - agent.round_at,
            counters=agent.counters,
        )
        for agent in tuple(_running)
    )


def measurements() -> tuple[NodeMeasurements, ...]:
    """Return what every agent in this process last measured of its node."""
    monitors = [agent.monitor for agent in tuple(_running)]
    return tuple(NodeMeasurements(node=each.node, readings=each.readings, engines=each.engines) for each in monitors)


def engine_metrics(replica: str) -> bytes | None:
    """Return the metrics of a replica's engine, as it wrote them; None if no engine of it runs here.

    Raises OSError or http.client.HTTPException if the engine does not answer in time.
    """
    views = (view for agent in tuple(_running) for view in agent.monitor.engines)
    found = next((view for view in views if str(view.replica_id) == replica), None)
    return None if found is None else read_metrics(found.target, timeout_seconds=ENGINE_METRICS_SECONDS)


def log_of(replica_id: UUID) -> str | None:
    """Return the end of the log of a replica's engines; None if no agent of this process has one."""
    for agent in tuple(_running):
        if text := engine_log.tail(agent.logs / engine_log.name_of(replica_id)):
            return text
    return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """Seconds since an agent's loop last began a round, and since a round last succeeded; None: not yet."""

    node: str
    loop_age_seconds: float | None
    round_age_seconds: float | None
    counters: AgentCounters


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """The inventory of a node as its agent last read it, and when, by time.monotonic()."""

    inventory: Fleet
    read_at: float

    @property
    def age_seconds(self) -> float:
        """Return how long ago the lists were read."""
        return time.monotonic() - self.read_at


class Agent:
    """The agent of ``node``. ``open_sink`` is called once, in the agent's thread, when it first owns the node.
    ``sockets`` is a folder of its own with a short path: a socket's path ends at 107 bytes.
    """

    def __init__(
        self,
        node: str,
        data_dir: Path,
        open_sink: Callable[[], CanarySink],
        devices: DeviceProvider,
        *,
        sockets: Path,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.node = node
        self.counters = AgentCounters()
        self.snapshot: NodeSnapshot | None = None
        #: time.monotonic() of the loop's last pass, and of the last round in which nothing failed.
        self.passed_at: float | None = None
        self.round_at: float | None = None
        self._data_dir = data_dir
        self.logs = data_dir / "logs"
        self._sockets = sockets
        self._open_sink = open_sink
        self._timeouts = timeouts or Timeouts()
        self.monitor = NodeMonitor(node, BoundedDevices(devices), pause_seconds=self._timeouts.readings_seconds)
        self._wake_event = WakeEvent()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agent-{node}", daemon=True)
        self._sink: CanarySink | None = None
        self._frozen = False

    def start(self) -> None:
        """Start the agent's thread and return at once."""
        _running.add(self)
        self.monitor.start()
        self._thread.start()

    def stop(self) -> None:
        """Detach from the engines, which keep running; return within a few seconds. Idempotent."""
        _running.discard(self)
        self.monitor.stop()
        self._stopping.set()
        self._wake_event.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def wake(self) -> None:
        """Start the next round at once instead of at the end of the second."""
        self._wake_event.set()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            stack.callback(self._wake_event.close)
            if not self._take_lock(stack):
                return
            try:
                self._own(stack)
            except Superseded as lost:
                log.critical("node %s: another agent took over after epoch %s; this agent stops working", *lost.args)

    def _take_lock(self, stack: contextlib.ExitStack) -> bool:
        """Wait until no other agent of this node runs on this machine; False if stopped before that.

        The kernel releases the lock when the process ends, however it ends.
        """
        lock = agent_lock(self._data_dir, self.node)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, descriptor)
        waiting = False
        while not self._stopping.is_set():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if not waiting:
                    log.warning("node %s: another agent is running; waiting for it to end", self.node)
                    waiting = True
            self._wake_event.wait(self._timeouts.round_seconds)
        return False

    def _own(self, stack: contextlib.ExitStack) -> None:
        """Take the node over, then run rounds until stopped. Raises Superseded."""
        ownership: NodeOwnership | None = None
        beat_at, pause = 0.0, self._timeouts.round_seconds
        while not self._stopping.is_set():
            began = self.passed_at = time.monotonic()
            try:
                close_old_connections()
                ownership = ownership or self._take_over(stack)
                pause = ownership.round()
                if began - beat_at >= self._timeouts.round_seconds:
                    ownership.rows.beat()
                    self.snapshot = NodeSnapshot(inventory=inventory.read(self.node), read_at=began)
                    beat_at = began
                self._frozen = False
                self.round_at = time.monotonic()
            except (OperationalError, InterfaceError) as error:
                self._freeze(error)
            except NotFound:
                self._freeze(f"no node {self.node!r} is registered")
            except Superseded:
                raise
            except Exception:
                # An agent that ends because of one bad round would leave every engine unattended.
                log.exception("node %s: this round failed", self.node)
            self._wake_event.wait(pause - (time.monotonic() - began))

    def _take_over(self, stack: contextlib.ExitStack) -> NodeOwnership:
        rows = NodeRows.take(self.node)
        if self._sink is None:
            self._sink = self._open_sink()
            stack.callback(self._sink.close)
        account = engine_account(settings.ENGINE_USER)
        folders = Folders(data=self._data_dir, sockets=self._sockets, account=account)
        ownership = NodeOwnership(
            rows, folders, self.monitor, self._sink, self._wake_event, self._timeouts, self.counters
        )
        stack.callback(ownership.close)
        adopted = ownership.begin()
        log.info("node %s: epoch %s, %s processes adopted", self.node, rows.epoch, adopted)
        return ownership

    def _freeze(self, cause: object) -> None:
        if not self._frozen:
            log.warning("node %s: no changes without the database; engines keep running: %s", self.node, cause)
            self._frozen = True
        connection.close()
