"""Move one replica one step: start it, look at it, restart it, drain and end it.

    reserved ─► starting ─► warming ─► ready ◄─► suspect        not wanted: any ─► draining ─► stopped
                   ▲           │         │          │            its slots cannot be used: ─► stopped
                   └─ backoff ◄┴─────────┴──────────┘            too many failed starts: ─► failed

Each step looks at the row, the process and the last report, and makes at most one move. Nothing here waits on the
network: looks run in threads of their own and ring the bell.
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
from workers.agent.probes.http_probe import Prober, Report
from workers.agent.processes.engine import Engine, EngineRoom
from workers.agent.processes.slot_guard import fault_of
from workers.agent.starter import Starter
from workers.agent.store.replica_rows import NodeRows, State, Wanted
from workers.agent.timeouts import Timing, backoff_seconds
from workers.agent.wakeup import Bell
from workers.engines.errors import EngineError

log = logging.getLogger(__name__)

#: Failed starts within ``rows.FAILURE_WINDOW`` after which the replica is given up on this node.
FAILED_STARTS = 5
#: Where counting ends; the wait between starts has long been the longest.
MOST_ATTEMPTS = 1000
#: States in which a replica has not answered yet. An engine that does is left on a slot of which ill is heard.
UNPROVEN = frozenset({"requested", "reserved", "backoff", "starting", "warming"})


class Lifecycle:
    """The engines of one node and the steps of their replicas. One thread calls it."""

    def __init__(
        self, rows: NodeRows, room: EngineRoom, starter: Starter, prober: Prober, bell: Bell, timing: Timing
    ) -> None:
        self._rows = rows
        self._room = room
        self._starter = starter
        self._prober = prober
        self._bell = bell
        self._timing = timing
        self._engines: dict[ReplicaId, Engine] = {}

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines in hand."""
        return tuple(self._engines.values())

    def keep(self, engine: Engine) -> None:
        """Take an engine in, started or adopted."""
        self._engines[engine.record.replica_id] = engine
        self._bell.watch(engine.record.process)

    def count_blocks(self, replica_id: UUID, blocks: int) -> None:
        """Take note of how many blocks an engine has cached; written with what else is observed of it."""
        engine = self._engines.get(cast(ReplicaId, replica_id))
        if engine is not None:
            engine.cached_blocks = blocks

    def step(self, row: Wanted) -> None:
        """Make the replica's next move, if there is one."""
        engine = self._engines.get(row.replica_id)
        if engine is not None and engine.record.generation != row.generation:
            self._bury(engine)
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

    def pause_seconds(self, rows: Iterable[Wanted]) -> float:
        """Return how long to wait for the next round if no bell rings."""
        passing = any(row.state in {"reserved", "starting", "warming", "draining"} for row in rows)
        return self._timing.eager_probe_seconds if passing else self._timing.round_seconds

    def bury_all_but(self, replicas: set[ReplicaId]) -> None:
        """End engines whose replicas are over or unknown."""
        for replica_id in self._engines.keys() - replicas:
            self._bury(self._engines[replica_id])

    def _start(self, row: Wanted, leftover: Engine | None) -> None:
        """Start the replica once nothing else is on its slots."""
        if leftover is not None and not self._bury(leftover):
            return
        closed = self._starter.closed(row)
        if closed is not None:
            if closed.for_good:
                self._give_up(row, None, closed.reason)
            elif row.start_note != (waits := f"waits for its slots: {closed.reason}"[:500]):
                self._rows.note(row, start_note=waits)
            return
        try:
            announced = self._starter.announce(row)
        except OSError as error:
            self._back_off(row, f"cannot start: {error}")
            return
        if announced is None:
            return
        self._bell.ring()
        try:
            self.keep(self._starter.start(announced))
        except (EngineError, OSError) as error:
            self._back_off(announced, f"cannot start: {error}")

    def _give_up(self, row: Wanted, engine: Engine | None, reason: str) -> None:
        """End the replica and free its slots, all of them; reconcile makes another where there is room."""
        if engine is not None and not self._bury(engine):
            return
        if self._rows.give_up(row, reason):
            log.warning("replica %s: %s → stopped: %s", row.replica_id, row.state, reason)
            self._bell.ring()

    def _watch(self, row: Wanted, engine: Engine, state: Watched) -> None:
        report = engine.take_report()
        if report is not None:
            self._observe(row, engine)
            verdict = engine.health.judge(state, report)
            if verdict is not None:
                self._obey(row, engine, verdict.to, verdict.reason)
                return
        if state in {"starting", "warming"} and row.state_seconds > engine.startup_budget_seconds:
            self._back_off(row, f"not ready after {engine.startup_budget_seconds:.0f} s")
            self._bury(engine)
            return
        if state == "ready" and row.attempts and row.state_seconds > self._timing.healthy_seconds:
            self._rows.note(row, attempts=0, last_error="")
        self._look(state, engine)

    def _obey(self, row: Wanted, engine: Engine, to: str, reason: str) -> None:
        if to == "backoff":
            self._back_off(row, reason)
            self._bury(engine)
        elif to == "ready" and not row.started_before:
            if self._rows.ready(row, reason, process_seconds=engine.age_seconds):
                log.info("replica %s: %s → ready: %s", row.replica_id, row.state, reason)
                self._bell.ring()
        elif to == "suspect":
            self._move(row, "suspect", reason, last_error=reason)
        elif to == "warming":
            engine.looked_at = 0.0  # ask for the first token at once
            self._move(row, "warming", reason)
        else:
            self._move(row, "ready", reason, last_error="")

    def _died(self, row: Wanted, engine: Engine | None) -> None:
        """Take the replica out of routing first, then end what the process left behind."""
        if row.state == "lost":
            self._give_up(row, engine, "the node is back, and nothing of it lives")
            return
        status = None if engine is None else processes.collect(engine.record.process)
        how = "its process is gone" if status is None else f"its process ended with status {status}"
        if row.state in {"starting", "warming"} and (words := self._room.last_words(row)):
            how = f"{how}: {words}"
        self._back_off(row, how)
        if engine is not None:
            self._bury(engine)

    def _back_off(self, row: Wanted, reason: str) -> None:
        attempts = min(row.attempts + 1, MOST_ATTEMPTS)
        never_ready = row.state in UNPROVEN
        if never_ready and self._rows.failed_starts(row) + 1 >= FAILED_STARTS:
            self._move(row, "failed", f"{FAILED_STARTS} failed starts; the last: {reason}", last_error=reason)
            return
        delay = backoff_seconds(self._timing, attempts, random.random())
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

    def _stop(self, row: Wanted, engine: Engine | None) -> None:
        """Drain, then SIGTERM, then SIGKILL; stopped only once nothing of the engine lives."""
        if engine is None or not engine.running:
            if engine is None or self._bury(engine):
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
            if time.monotonic() - engine.terminated_at > self._timing.kill_after_seconds:
                self._bury(engine)
        elif self._may_end(row, engine):
            engine.terminated_at = time.monotonic()
            processes.send_signal(engine.record.process, signal.SIGTERM)
        else:
            self._look("draining", engine)

    def _may_end(self, row: Wanted, engine: Engine) -> bool:
        """Return True when no request is left on the engine, or the time for them is over."""
        report = engine.take_report()
        if report is not None and report.load is not None and row.state_seconds >= self._timing.drain_least_seconds:
            self._observe(row, engine)
            engine.drained = report.load.running + report.load.waiting == 0
        return engine.drained or row.drain_over

    def _bury(self, engine: Engine) -> bool:
        """Kill what lives of the engine and forget it; False when something survives, to be tried again."""
        if not self._room.end(engine.record):
            log.error("replica %s: processes survive SIGKILL: %s", engine.record.replica_id, engine.record.pid)
            return False
        self._engines.pop(engine.record.replica_id, None)
        return True

    def _observe(self, row: Wanted, engine: Engine) -> None:
        now = time.monotonic()
        if engine.load is not None and now - engine.observed_at >= self._timing.observe_seconds:
            engine.observed_at = now
            self._rows.observe(row, engine.load, engine.cached_blocks)

    def _move(self, row: Wanted, to: State, reason: str, **changes: object) -> bool:
        """Move the replica and look again at once; False when it has changed in the database."""
        moved = self._rows.move(row, to, reason, **changes)
        if moved:
            log.info("replica %s: %s → %s: %s", row.replica_id, row.state, to, reason)
            self._bell.ring()
            if row.state in {"ready", "suspect"} and to in {"backoff", "failed"}:
                tasks.wake_control()  # a placeholder may take over
        return moved

    def _look(self, state: str, engine: Engine) -> None:
        """Send a look on its way unless one is out or it is too early."""
        timing, now = self._timing, time.monotonic()
        pause = timing.probe_seconds if state in {"ready", "suspect"} else timing.eager_probe_seconds
        if engine.looking or now - engine.looked_at < pause:
            return
        canary = self._canary_timeout(state, engine, now)
        if canary is not None:
            engine.canary_at = now
        engine.looking, engine.looked_at = True, now
        threading.Thread(target=self._look_in_thread, args=(engine, canary, state), name="look", daemon=True).start()

    def _canary_timeout(self, state: str, engine: Engine, now: float) -> float | None:
        """Return how long the look's canary may take, None for a look without one."""
        if state == "warming":
            return self._timing.first_canary_timeout_seconds
        quiet = now - max(engine.progress_at, engine.canary_at) >= self._timing.quiet_seconds
        doubted = engine.health.failed_canaries > 0
        if state == "suspect" or (state == "ready" and (quiet or doubted)):
            return self._timing.canary_timeout_seconds
        return None

    def _look_in_thread(self, engine: Engine, canary_timeout: float | None, state: str) -> None:
        try:
            report: Report | None = self._prober.look(engine.target, canary_timeout_seconds=canary_timeout)
        except Exception:
            # The canary could not be recorded: that says nothing about the engine.
            log.exception("replica %s: no look possible", engine.record.replica_id)
            report = None
        engine.report = report
        engine.looking = False
        if report is not None and report.healthy == (state != "ready"):
            self._bell.ring()  # news: what starts or drains answers, or what served does not
