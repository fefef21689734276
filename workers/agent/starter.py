"""Turn reserved slots into a running engine: promote the zygote that waits on them, or start a new process."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from django.conf import settings
from django.db.models.functions import Now

from workers.agent.placeholder import PlaceholderLifecycle
from workers.agent.processes import node_tls
from workers.agent.processes.engine import Engine, EngineProcesses
from workers.agent.processes.paths import free_port
from workers.agent.processes.slot_guard import Blocked, SlotGuard
from workers.agent.processes.zygote import Zygote
from workers.agent.store.replica_rows import NodeRows, ReplicaRow
from workers.agent.timeouts import Timeouts
from workers.agent.wakeup import WakeEvent
from workers.engines.errors import EngineError
from workers.errors import Superseded
from workers.metrics import AgentCounters
from workers.models import Level
from workers.serving import gateway_load

log = logging.getLogger(__name__)


class Starter:
    """Starts the engines of one node. One thread calls it.

    A start is announced in the database before its process exists, so a crash in between leaves no unknown process.
    """

    def __init__(
        self,
        rows: NodeRows,
        engine_processes: EngineProcesses,
        placeholders: PlaceholderLifecycle,
        slot_guard: SlotGuard,
        wake_event: WakeEvent,
        timeouts: Timeouts,
        counters: AgentCounters,
    ) -> None:
        self._rows = rows
        self._engine_processes = engine_processes
        self._placeholders = placeholders
        self._slot_guard = slot_guard
        self._wake_event = wake_event
        self._timeouts = timeouts
        self._counters = counters

    def blocked_by(self, row: ReplicaRow) -> Blocked | None:
        """Return why the replica cannot start on its slots now, or None if it can. Raises Superseded."""
        if node_tls.needed(self._rows.address) and (reason := self._engine_processes.tls.blocked_by()):
            return Blocked(reason, permanent=False, on="TLS")
        mine = () if row.placeholder_id is None else (row.placeholder_id,)
        return self._slot_guard.blocked_by(row.replica_id, row.slots, mine=mine)

    def announce(self, row: ReplicaRow) -> ReplicaRow | None:
        """Move the replica to starting, as a new generation; return None if it has changed meanwhile.

        A start after a backoff is cold, and its time is measured from here, because the replica kept its slots. Raises
        OSError if no port is free on the node's address; Superseded.
        """
        port = free_port(self._rows.address, settings.ENGINE_PORTS)
        engine_key = gateway_load.engine_key_of_all()
        where: dict[str, Any] = {"host": self._rows.address, "port": port, "engine_key": engine_key}
        tls = node_tls.needed(self._rows.address)
        fresh = dataclasses.replace(row, state="starting", generation=row.generation + 1, speaks_tls=tls, **where)
        changes = {"tls_generation": fresh.generation if tls else None, **where}
        changes |= {"pid": None, "startup_seconds": None, "start_note": ""}
        zygote = self._zygote(row)
        if row.state == "backoff":
            changes |= {"reserved_at": Now(), "start_level": Level.COLD}
        elif zygote is not None:
            # The process exists already, so the next agent can find it by the row alone.
            changes |= {"pid": zygote.record.pid, "pid_start_ticks": zygote.record.start_ticks}
            changes |= {"boot_id": zygote.record.boot_id, "start_level": Level.H2}
        elif row.placeholder_id is not None:
            changes |= _not_promoted("its process is gone")
        how = f"start {row.attempts + 1}" if zygote is None else "a promotion"
        moved = self._rows.announce(row, fresh.generation, f"{how} as generation {fresh.generation}", **changes)
        return fresh if moved else None

    def start(self, row: ReplicaRow) -> Engine:
        """Start the engine of an announced replica. Raises EngineError or OSError if it cannot run; Superseded."""
        zygote = self._zygote(row)
        engine = None if zygote is None else self.promote(row, zygote)
        return engine or self._spawn(row)

    def promote(self, row: ReplicaRow, zygote: Zygote) -> Engine | None:
        """Make the zygote the replica's engine. Return None if that fails; then no process of the zygote is left.

        Raises OSError if a process of it survives SIGKILL; Superseded.
        """
        assert row.port is not None, "announced"
        try:
            engine = self._engine_processes.promote(
                row, row.port, zygote.record, timeout_seconds=self._timeouts.promotion_timeout_seconds
            )
        except (EngineError, OSError) as error:
            self.abandon(row, zygote, str(error))
            return None
        self._placeholders.consumed(zygote)
        self._counters.promoted += 1
        log.info("replica %s: zygote %s becomes its engine", row.replica_id, engine.record.pid)
        return engine

    def abandon(self, row: ReplicaRow, zygote: Zygote, reason: str) -> None:
        """Kill a zygote that did not become the engine, and record why. Raises OSError if it survives SIGKILL."""
        log.warning("replica %s: placeholder could not be promoted: %s", row.replica_id, reason)
        self._counters.promotions_failed += 1
        if not self._placeholders.end(zygote):
            raise OSError(f"process {zygote.record.pid} of its placeholder survives SIGKILL")
        self._engine_processes.forget(row)
        self._rows.note(row, pid=None, **_not_promoted(reason))

    def _spawn(self, row: ReplicaRow) -> Engine:
        assert row.port is not None, "announced"
        engine = self._engine_processes.start(row, row.port)
        self._wake_event.watch(engine.record.process)
        record = engine.record
        try:
            self._rows.note(row, pid=record.pid, pid_start_ticks=record.start_ticks, boot_id=record.boot_id)
        except Superseded:
            self._engine_processes.end(record)  # the node's new agent does not know this process
            raise
        return engine

    def _zygote(self, row: ReplicaRow) -> Zygote | None:
        """Return the zygote that waits to become the replica; only the first start has one."""
        return None if row.state == "backoff" else self._placeholders.zygote(row.placeholder_id)


def _not_promoted(reason: str) -> dict[str, Any]:
    """Return the row's changes for a plain start after a failed promotion: only the slot was kept."""
    return {"start_level": Level.H0, "start_note": f"placeholder could not be promoted: {reason}"[:500]}
