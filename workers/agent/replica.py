"""Move one replica one step: start it, look at it, restart it, drain and end it.

    reserved ─► starting ─► warming ─► ready ◄─► suspect        not wanted: any ─► draining ─► stopped
                   ▲           │         │          │            its slots cannot be used: ─► stopped
                   └─ backoff ◄┴─────────┴──────────┘            too many failed starts: ─► failed

Each step looks at the row, the process and the last report, and makes at most one move. Nothing here waits on the
network: looks run in threads of their own and ring the wake_event.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import signal
import threading
import time
from collections.abc import Iterable
from typing import cast
from uuid import UUID

from django.db.models.functions import Now

from tenants.ids import ReplicaId
from workers import metrics, processes, tasks
from workers.agent.probes.health import Watched
from workers.agent.probes.http_probe import Prober, ProbeResult
from workers.agent.processes.engine import Engine, EngineProcesses
from workers.agent.processes.slot_guard import fault_of
from workers.agent.starter import Starter
from workers.agent.store.replica_rows import NodeRows, ReplicaRow, State
from workers.agent.timeouts import Timeouts, backoff_seconds
from workers.agent.wakeup import WakeEvent
from workers.engines.errors import EngineError

log = logging.getLogger(__name__)

#: Failed starts within ``rows.FAILURE_WINDOW`` after which the replica is given up on this node.
FAILED_STARTS = 5
#: Where counting ends; the wait between starts has long been the longest.
MOST_ATTEMPTS = 1000
#: States in which a replica has not answered yet. An engine that does is left on a slot of which ill is heard.
UNPROVEN = frozenset({"requested", "reserved", "backoff", "starting", "warming"})


class ReplicaLifecycle:
    """The engines of one node and the steps of their replicas. One thread calls it."""

    def __init__(
        self,
        rows: NodeRows,
        engine_processes: EngineProcesses,
        starter: Starter,
        prober: Prober,
        wake_event: WakeEvent,
        timeouts: Timeouts,
    ) -> None:
        self._rows = rows
        self._engine_processes = engine_processes
        self._starter = starter
        self._prober = prober
        self._wake_event = wake_event
        self._timeouts = timeouts
        self._engines: dict[ReplicaId, Engine] = {}

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines in hand."""
        return tuple(self._engines.values())

    def keep(self, engine: Engine) -> None:
        """Take an engine in, started or adopted."""
        self._engines[engine.record.replica_id] = engine
        self._wake_event.watch(engine.record.process)

    def count_blocks(self, replica_id: UUID, blocks: int) -> None:
        """Take note of how many blocks an engine has cached; written with what else is observed of it."""
        engine = self._engines.get(cast(ReplicaId, replica_id))
        if engine is not None:
            engine.cached_blocks = blocks

    def step(self, row: ReplicaRow) -> None:
        """Make the replica's next move, if there is one."""
        engine = self._engines.get(row.replica_id)
        if engine is not None and engine.record.generation != row.generation:
            self._kill(engine)
            return
        if not row.wanted:
            self._stop(row, engine)
        elif row.state in UNPROVEN and (fault := fault_of(row.slots)):
            self._give_up(row, engine, fault)
        elif row.state in {"requested", "reserved", "backoff"}:
            if row.due:
                self._start(row, engine)
        elif engine is None or not engine.running:
            self._died(row, engine)
        elif row.state == "lost":
            self._move(row, "warming", "the node is back and the engine lives")
        elif row.state != "draining":
            self._watch(row, engine, cast(Watched, row.state))

    def pause_seconds(self, rows: Iterable[ReplicaRow]) -> float:
        """Return how long to wait for the next round if no bell rings."""
        passing = any(row.state in {"reserved", "starting", "warming", "draining"} for row in rows)
        return self._timeouts.eager_probe_seconds if passing else self._timeouts.round_seconds

    def kill_all_but(self, replicas: set[ReplicaId]) -> None:
        """End engines whose replicas are over or unknown."""
        for replica_id in self._engines.keys() - replicas:
            self._kill(self._engines[replica_id])

    def _start(self, row: ReplicaRow, leftover: Engine | None) -> None:
        """Start the replica once nothing else is on its slots."""
        if leftover is not None and not self._kill(leftover):
            return
        blocked = self._starter.blocked_by(row)
        if blocked is not None:
            if blocked.permanent:
                self._give_up(row, None, blocked.reason)
            elif row.start_note != (waits := f"waits for its slots: {blocked.reason}"[:500]):
                self._rows.note(row, start_note=waits)
            return
        try:
            announced = self._starter.announce(row)
        except OSError as error:
            self._back_off(row, f"cannot start: {error}")
            return
        if announced is None:
            return
        self._wake_event.set()
        try:
            self.keep(self._starter.start(announced))
        except (EngineError, OSError) as error:
            self._back_off(announced, f"cannot start: {error}")

    def _give_up(self, row: ReplicaRow, engine: Engine | None, reason: str) -> None:
        """End the replica and free its slots, all of them; reconcile makes another where there is room."""
        if engine is not None and not self._kill(engine):
            return
        if self._rows.give_up(row, reason):
            log.warning("replica %s: %s → stopped: %s", row.replica_id, row.state, reason)
            self._wake_event.set()

    def _watch(self, row: ReplicaRow, engine: Engine, state: Watched) -> None:
        result = engine.take_result()
        if result is not None:
            self._observe(row, engine)
            verdict = engine.health.judge(state, result)
            if verdict is not None:
                self._apply(row, engine, verdict.to, verdict.reason)
                return
        if state in {"starting", "warming"} and row.state_seconds > engine.startup_budget_seconds:
            self._back_off(row, f"not ready after {engine.startup_budget_seconds:.0f} s")
            self._kill(engine)
            return
        if state == "ready" and row.attempts and row.state_seconds > self._timeouts.healthy_seconds:
            self._rows.note(row, attempts=0, last_error="")
        self._look(state, engine)

    def _apply(self, row: ReplicaRow, engine: Engine, to: str, reason: str) -> None:
        if to == "backoff":
            self._back_off(row, reason)
            self._kill(engine)
        elif to == "ready" and not row.started_before:
            if self._rows.ready(row, reason, process_seconds=engine.age_seconds):
                log.info("replica %s: %s → ready: %s", row.replica_id, row.state, reason)
                self._wake_event.set()
        elif to == "suspect":
            self._move(row, "suspect", reason, last_error=reason)
        elif to == "warming":
            engine.probed_at = 0.0  # ask for the first token at once
            self._move(row, "warming", reason)
        else:
            self._move(row, "ready", reason, last_error="")

    def _died(self, row: ReplicaRow, engine: Engine | None) -> None:
        """Take the replica out of routing first, then end what the process left behind."""
        if row.state == "lost":
            self._give_up(row, engine, "the node is back, and nothing of it lives")
            return
        status = None if engine is None else processes.collect(engine.record.process)
        how = "its process is gone" if status is None else f"its process ended with status {status}"
        if row.state in {"starting", "warming"} and (words := self._engine_processes.last_log_line(row)):
            how = f"{how}: {words}"
        self._back_off(row, how)
        if engine is not None:
            self._kill(engine)

    def _back_off(self, row: ReplicaRow, reason: str) -> None:
        attempts = min(row.attempts + 1, MOST_ATTEMPTS)
        never_ready = row.state in UNPROVEN
        if never_ready and self._rows.failed_starts(row) + 1 >= FAILED_STARTS:
            self._move(row, "failed", f"{FAILED_STARTS} failed starts; the last: {reason}", last_error=reason)
            return
        delay = backoff_seconds(self._timeouts, attempts, random.random())
        self._move(
            row,
            "backoff",
            f"{reason}; next start in {delay:.1f} s",
            attempts=attempts,
            next_attempt_at=Now() + dt.timedelta(seconds=delay),
            last_error=reason,
            running_requests=0,
            waiting_requests=0,
            kv_usage=0.0,
            cached_blocks=None,
        )

    def _stop(self, row: ReplicaRow, engine: Engine | None) -> None:
        """Drain, then SIGTERM, then SIGKILL; stopped only once nothing of the engine lives."""
        if engine is None or not engine.running:
            if engine is None or self._kill(engine):
                gone = {"pid": None, "port": None, "running_requests": 0, "waiting_requests": 0, "kv_usage": 0.0}
                gone |= {"cached_blocks": None}
                asked = engine is not None and engine.terminated_at is not None
                how = "its engine ended by itself" if asked else "nothing of it is left"
                if self._move(row, "stopped", how, **gone) and row.state == "draining":
                    metrics.DRAIN_SECONDS.observe(row.state_seconds)
        elif row.state != "draining":
            engine.drained = row.state in {"starting", "warming"}
            self._move(row, "draining", "no longer wanted")
        elif engine.terminated_at is not None:
            if time.monotonic() - engine.terminated_at > self._timeouts.kill_after_seconds:
                self._kill(engine)
        elif self._may_end(row, engine):
            engine.terminated_at = time.monotonic()
            processes.send_signal(engine.record.process, signal.SIGTERM)
        else:
            self._look("draining", engine)

    def _may_end(self, row: ReplicaRow, engine: Engine) -> bool:
        """Return True when no request is left on the engine, or the time for them is over."""
        result = engine.take_result()
        if result is not None and result.load is not None and row.state_seconds >= self._timeouts.drain_least_seconds:
            self._observe(row, engine)
            engine.drained = result.load.running + result.load.waiting == 0
        return engine.drained or row.drain_over

    def _kill(self, engine: Engine) -> bool:
        """Kill what lives of the engine and forget it; False when something survives, to be tried again."""
        if not self._engine_processes.end(engine.record):
            log.error("replica %s: processes survive SIGKILL: %s", engine.record.replica_id, engine.record.pid)
            return False
        self._engines.pop(engine.record.replica_id, None)
        return True

    def _observe(self, row: ReplicaRow, engine: Engine) -> None:
        now = time.monotonic()
        if engine.load is not None and now - engine.observed_at >= self._timeouts.observe_seconds:
            engine.observed_at = now
            self._rows.observe(row, engine.load, engine.cached_blocks)

    def _move(self, row: ReplicaRow, to: State, reason: str, **changes: object) -> bool:
        """Move the replica and look again at once; False when it has changed in the database."""
        moved = self._rows.move(row, to, reason, **changes)
        if moved:
            log.info("replica %s: %s → %s: %s", row.replica_id, row.state, to, reason)
            self._wake_event.set()
            if row.state in {"ready", "suspect"} and to in {"backoff", "failed"}:
                tasks.wake_control()  # a placeholder may take over
        return moved

    def _look(self, state: str, engine: Engine) -> None:
        """Send a look on its way unless one is out or it is too early."""
        timeouts, now = self._timeouts, time.monotonic()
        pause = timeouts.probe_seconds if state in {"ready", "suspect"} else timeouts.eager_probe_seconds
        if engine.probing or now - engine.probed_at < pause:
            return
        canary = self._canary_timeout(state, engine, now)
        if canary is not None:
            engine.canary_at = now
        engine.probing, engine.probed_at = True, now
        threading.Thread(target=self._probe_in_thread, args=(engine, canary, state), name="look", daemon=True).start()

    def _canary_timeout(self, state: str, engine: Engine, now: float) -> float | None:
        """Return how long the look's canary may take, None for a look without one."""
        if state == "warming":
            return self._timeouts.first_canary_timeout_seconds
        quiet = now - max(engine.progress_at, engine.canary_at) >= self._timeouts.quiet_seconds
        doubted = engine.health.failed_canaries > 0
        if state == "suspect" or (state == "ready" and (quiet or doubted)):
            return self._timeouts.canary_timeout_seconds
        return None

    def _probe_in_thread(self, engine: Engine, canary_timeout: float | None, state: str) -> None:
        try:
            result: ProbeResult | None = self._prober.probe(engine.target, canary_timeout_seconds=canary_timeout)
        except Exception:
            # The canary could not be recorded: that says nothing about the engine.
            log.exception("replica %s: no look possible", engine.record.replica_id)
            result = None
        engine.result = result
        engine.probing = False
        if result is not None and result.healthy == (state != "ready"):
            self._wake_event.set()  # news: what starts or drains answers, or what served does not
