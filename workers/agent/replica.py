"""Move one replica one step: start it, probe it, restart it, drain and stop it.

    reserved ─► starting ─► warming ─► ready ◄─► suspect        not wanted: any ─► draining ─► stopped
                   ▲           │         │          │            its slots cannot be used: ─► stopped
                   └─ backoff ◄┴─────────┴──────────┘            too many failed starts: ─► failed

Each step looks at the row, the process and the last probe, and does what the first matching line of the table in
:meth:`ReplicaLifecycle._table` says. Nothing here waits on the network: probes run in threads of their own and set
the wake event.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from django.db.models.functions import Now

from tenants.ids import ReplicaId
from workers import metrics, processes, tasks
from workers.agent.probe_schedule import ProbeSchedule
from workers.agent.probes.health import Verdict, Watched
from workers.agent.probes.recent_times import Times
from workers.agent.processes.engine import Engine, EngineProcesses
from workers.agent.processes.slot_guard import fault_of
from workers.agent.readings.node_readings import EngineView
from workers.agent.starter import Starter
from workers.agent.store.replica_rows import NodeRows, ReplicaRow, State
from workers.agent.timeouts import Timeouts, backoff_seconds
from workers.agent.wakeup import WakeEvent
from workers.engines.argument_check import REFUSED_STATUS
from workers.engines.errors import EngineError

log = logging.getLogger(__name__)

#: After this many failed starts within ``replica_rows.FAILURE_WINDOW`` the replica is failed on this node.
FAILED_STARTS = 5
#: Counting of attempts ends here; the wait between starts reached its cap long before.
MOST_ATTEMPTS = 1000

#: What a replica without an engine does.
IDLE: Mapping[str, object] = {
    "running_requests": 0,
    "waiting_requests": 0,
    "kv_usage": 0.0,
    **dataclasses.asdict(Times()),
}

ANY = frozenset(get_args(State))
#: The replica has no process yet, or none any more, and starts when it is due.
NOT_STARTED = frozenset({"requested", "reserved", "backoff"})
STARTING = frozenset({"starting", "warming"})
#: The replica has not answered yet. One that has keeps its slot even if the slot's device reports a fault.
UNPROVEN = NOT_STARTED | STARTING
WATCHED = frozenset(get_args(Watched))
READY = frozenset({"ready"})
LOST = frozenset({"lost"})
DRAINING = frozenset({"draining"})


@dataclass(frozen=True, slots=True)
class Situation:
    """A replica in one round: its row, its engine if there is one, and what the last probe says should change."""

    row: ReplicaRow
    engine: Engine | None
    running: bool
    verdict: Verdict | None = None

    @property
    def live_engine(self) -> Engine:
        """The engine, in a situation where a process runs."""
        assert self.engine is not None
        return self.engine


Condition = Callable[[Situation], bool]
Action = Callable[[Situation], None]


class ReplicaLifecycle:
    """The engines of one node and the steps of their replicas. One thread calls it."""

    def __init__(
        self,
        rows: NodeRows,
        engine_processes: EngineProcesses,
        starter: Starter,
        probes: ProbeSchedule,
        wake_event: WakeEvent,
        timeouts: Timeouts,
    ) -> None:
        self._rows = rows
        self._engine_processes = engine_processes
        self._starter = starter
        self._probes = probes
        self._wake_event = wake_event
        self._timeouts = timeouts
        self._engines: dict[ReplicaId, Engine] = {}
        self._transitions = self._table()

    def _table(self) -> tuple[tuple[frozenset[str], Condition, Action], ...]:
        """Return (states, condition, action) in order: the first line that matches is done, and no other."""
        return (
            (ANY, _is_outdated, self._kill_engine),
            # Not wanted: drain, then SIGTERM, then SIGKILL, and stopped once nothing of the engine lives.
            (ANY, _unwanted_and_ended, self._stop),
            (ANY - DRAINING, _unwanted, self._drain),
            (DRAINING, self._ignores_sigterm, self._kill_engine),
            (DRAINING, _unwanted_and_terminated, _wait),
            (DRAINING, self._unwanted_and_drained, self._terminate),
            (DRAINING, _unwanted, self._probe),
            (DRAINING, _is_running, _wait),
            # Wanted, and not started yet.
            (UNPROVEN, _slot_is_faulty, self._give_up_slots),
            (NOT_STARTED, _is_due, self._start),
            (NOT_STARTED, _always, _wait),
            # Wanted and started, and the engine has ended.
            (LOST, _has_ended, self._give_up_lost),
            (ANY, _has_ended, self._restart_ended),
            # Wanted, and the engine runs: what the last probe found.
            (LOST, _always, self._return_to_service),
            (WATCHED, _probed("backoff"), self._restart_unhealthy),
            (WATCHED, _probed("warming"), self._warm),
            (WATCHED, _probed("suspect"), self._suspect),
            (WATCHED, _first_ready, self._first_ready),
            (WATCHED, _probed("ready"), self._recover),
            (STARTING, _start_is_overdue, self._restart_overdue),
            (READY, self._has_stayed_healthy, self._forget_failures),
            (WATCHED, _always, self._probe),
        )

    def step(self, row: ReplicaRow) -> None:
        """Make the replica's next move, if there is one."""
        situation = self._situation(row)
        for states, condition, action in self._transitions:
            if row.state in states and condition(situation):
                action(situation)
                return

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines of this node that the agent knows."""
        return tuple(self._engines.values())

    def views(self, rows: Iterable[ReplicaRow]) -> tuple[EngineView, ...]:
        """Return what is known of the engines of these replicas."""
        return tuple(
            EngineView(
                replica_id=row.replica_id,
                deployment=row.deployment,
                process=engine.record.process,
                devices=engine.record.devices,
                load=engine.load,
                target=engine.target,
            )
            for row in rows
            if (engine := self._engines.get(row.replica_id)) is not None
        )

    def keep(self, engine: Engine) -> None:
        """Add an engine that was started or adopted."""
        self._engines[engine.record.replica_id] = engine
        self._wake_event.watch(engine.record.process)

    def pause_seconds(self, rows: Iterable[ReplicaRow]) -> float:
        """Return how long to wait for the next round if the wake event is not set."""
        passing = any(row.state in {"reserved", "starting", "warming", "draining"} for row in rows)
        return self._timeouts.eager_probe_seconds if passing else self._timeouts.round_seconds

    def kill_all_but(self, replicas: set[ReplicaId]) -> None:
        """Kill the engines of all other replicas: those have ended or are unknown."""
        for replica_id in self._engines.keys() - replicas:
            self._kill(self._engines[replica_id])

    def _situation(self, row: ReplicaRow) -> Situation:
        engine = self._engines.get(row.replica_id)
        running = engine is not None and engine.running
        if engine is None or not running or not row.wanted or row.state not in WATCHED or _outdated(row, engine):
            return Situation(row, engine, running)
        result = engine.take_result()
        if result is None:
            return Situation(row, engine, running)
        self._observe(row, engine)
        return Situation(row, engine, running, engine.health.judge(cast(Watched, row.state), result))

    # Conditions that need the agent's timeouts.

    def _ignores_sigterm(self, now: Situation) -> bool:
        terminated_at = now.live_engine.terminated_at if now.engine else None
        if now.row.wanted or terminated_at is None:
            return False
        return time.monotonic() - terminated_at > self._timeouts.kill_after_seconds

    def _unwanted_and_drained(self, now: Situation) -> bool:
        """Return whether no request is left on the engine, or the time for them is over."""
        if now.row.wanted:
            return False
        row, engine = now.row, now.live_engine
        result = engine.take_result()
        if result is not None and result.load is not None and row.state_seconds >= self._timeouts.drain_least_seconds:
            self._observe(row, engine)
            engine.drained = result.load.running + result.load.waiting == 0
        return engine.drained or row.drain_over

    def _has_stayed_healthy(self, now: Situation) -> bool:
        return bool(now.row.attempts) and now.row.state_seconds > self._timeouts.healthy_seconds

    # Actions, in the order of the table.

    def _kill_engine(self, now: Situation) -> None:
        self._kill(now.live_engine)

    def _stop(self, now: Situation) -> None:
        row, engine = now.row, now.engine
        if engine is not None and not self._kill(engine):
            return
        gone: dict[str, Any] = {"pid": None, "port": None, **IDLE}
        terminated = engine is not None and engine.terminated_at is not None
        how = "its engine ended after SIGTERM" if terminated else "no process of it is left"
        if self._move(row, "stopped", how, **gone) and row.state == "draining":
            metrics.DRAIN_SECONDS.observe(row.state_seconds)

    def _drain(self, now: Situation) -> None:
        now.live_engine.drained = now.row.state in STARTING
        self._move(now.row, "draining", "no longer wanted")

    def _terminate(self, now: Situation) -> None:
        engine = now.live_engine
        self._rows.stopping(now.row, engine.load)
        engine.terminated_at = time.monotonic()
        processes.send_signal(engine.record.process, signal.SIGTERM)

    def _probe(self, now: Situation) -> None:
        self._probes.probe(now.row.state, now.live_engine)

    def _give_up_slots(self, now: Situation) -> None:
        self._give_up(now.row, now.engine, fault_of(now.row.slots))

    def _start(self, now: Situation) -> None:
        """Start the replica once its slots are free of every other process."""
        row, leftover = now.row, now.engine
        if leftover is not None and not self._kill(leftover):
            return
        blocked = self._starter.blocked_by(row)
        if blocked is not None:
            if blocked.permanent:
                self._give_up(row, None, blocked.reason)
            elif row.start_note != (waits := f"waits for {blocked.on}: {blocked.reason}"[:500]):
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

    def _give_up_lost(self, now: Situation) -> None:
        self._give_up(now.row, now.engine, "the node is back, but no process of the replica lives")

    def _restart_ended(self, now: Situation) -> None:
        """Take the replica out of routing first, then kill what the process left behind."""
        row, engine = now.row, now.engine
        status = None if engine is None else processes.collect(engine.record.process)
        how = "its process is gone" if status is None else f"its process ended with status {status}"
        if row.state in STARTING:
            refusal = self._engine_processes.refusal(row) if status == REFUSED_STATUS else ""
            if refusal:
                how = f"the engine's own parser refuses its arguments: {refusal}"
            elif line := self._engine_processes.last_log_line(row):
                how = f"{how}: {line}"
        self._back_off(row, how)
        if engine is not None:
            self._kill(engine)

    def _return_to_service(self, now: Situation) -> None:
        self._move(now.row, "warming", "the node is back and the engine lives")

    def _restart_unhealthy(self, now: Situation) -> None:
        self._back_off(now.row, _reason(now))
        self._kill(now.live_engine)

    def _warm(self, now: Situation) -> None:
        now.live_engine.probed_at = 0.0  # request the first token at once
        self._move(now.row, "warming", _reason(now))

    def _suspect(self, now: Situation) -> None:
        self._move(now.row, "suspect", _reason(now), last_error=_reason(now))

    def _first_ready(self, now: Situation) -> None:
        row, reason = now.row, _reason(now)
        engine = now.live_engine
        parts = self._engine_processes.start_parts(row, engine.record)
        if self._rows.ready(row, reason, process_seconds=engine.age_seconds, parts=parts):
            log.info("replica %s: %s → ready: %s", row.replica_id, row.state, reason)
            self._wake_event.set()

    def _recover(self, now: Situation) -> None:
        self._move(now.row, "ready", _reason(now), last_error="")

    def _restart_overdue(self, now: Situation) -> None:
        self._back_off(now.row, f"not ready after {now.live_engine.startup_budget_seconds:.0f} s")
        self._kill(now.live_engine)

    def _forget_failures(self, now: Situation) -> None:
        self._rows.note(now.row, attempts=0, last_error="")
        self._probe(now)

    # What several actions share.

    def _give_up(self, row: ReplicaRow, engine: Engine | None, reason: str) -> None:
        """Stop the replica and free all its slots; reconcile creates another where slots are free."""
        if engine is not None and not self._kill(engine):
            return
        if self._rows.give_up(row, reason):
            log.warning("replica %s: %s → stopped: %s", row.replica_id, row.state, reason)
            self._wake_event.set()

    def _back_off(self, row: ReplicaRow, reason: str) -> None:
        attempts = min(row.attempts + 1, MOST_ATTEMPTS)
        if row.state in UNPROVEN and self._rows.failed_starts(row) + 1 >= FAILED_STARTS:
            text = f"{FAILED_STARTS} failed starts; the last: {reason}"
            self._move(row, "failed", text, log_tail=self._log_tail(row), last_error=reason)
            return
        delay = backoff_seconds(self._timeouts, attempts, random.random())
        self._move(
            row,
            "backoff",
            f"{reason}; next start in {delay:.1f} s",
            log_tail=self._log_tail(row),
            attempts=attempts,
            next_attempt_at=Now() + dt.timedelta(seconds=delay),
            last_error=reason,
            **IDLE,
        )

    def _log_tail(self, row: ReplicaRow) -> str:
        """Return the end of the log of an engine that failed; empty for a replica that had none in this attempt."""
        return "" if row.state in NOT_STARTED else self._engine_processes.log_tail(row)

    def _kill(self, engine: Engine) -> bool:
        """Kill the engine's processes and forget it; False if one survives, to be tried again in the next round."""
        if not self._engine_processes.end(engine.record):
            log.error("replica %s: processes survive SIGKILL: %s", engine.record.replica_id, engine.record.pid)
            return False
        self._engines.pop(engine.record.replica_id, None)
        return True

    def _observe(self, row: ReplicaRow, engine: Engine) -> None:
        """Write what the engine does, every two seconds; of an idle one that does what it did, much less often.

        ``load_curves`` takes the time of the last writing as that of the counters, so an engine with requests is
        written each time, even if nothing of it changes.
        """
        now, load = time.monotonic(), engine.load
        if load is None or now - engine.observed_at < self._timeouts.observe_seconds:
            return
        engine.observed_at = now
        seen = (load, engine.recent.times())
        is_idle = load.running + load.waiting == 0
        if is_idle and seen == engine.written and now - engine.written_at < self._timeouts.unchanged_seconds:
            return
        if self._rows.observe(row, *seen):
            engine.written, engine.written_at = seen, now

    def _move(self, row: ReplicaRow, to: State, reason: str, *, log_tail: str = "", **changes: object) -> bool:
        """Move the replica and start the next round at once; False when it has changed in the database."""
        moved = self._rows.move(row, to, reason, log_tail=log_tail, **changes)
        if moved:
            log.info("replica %s: %s → %s: %s", row.replica_id, row.state, to, reason)
            self._wake_event.set()
            if row.state in {"ready", "suspect"} and to in {"backoff", "failed"}:
                tasks.wake_control()  # a placeholder may take over
        return moved


def _outdated(row: ReplicaRow, engine: Engine) -> bool:
    return engine.record.generation != row.generation


def _is_outdated(now: Situation) -> bool:
    return now.engine is not None and _outdated(now.row, now.engine)


def _unwanted(now: Situation) -> bool:
    return not now.row.wanted


def _unwanted_and_ended(now: Situation) -> bool:
    return not now.row.wanted and not now.running


def _unwanted_and_terminated(now: Situation) -> bool:
    return not now.row.wanted and now.live_engine.terminated_at is not None


def _is_running(now: Situation) -> bool:
    return now.running


def _has_ended(now: Situation) -> bool:
    return not now.running


def _slot_is_faulty(now: Situation) -> bool:
    return bool(fault_of(now.row.slots))


def _is_due(now: Situation) -> bool:
    return now.row.due


def _always(_: Situation) -> bool:
    return True


def _probed(to: str) -> Condition:
    """Return the condition that the last probe's verdict is ``to``."""
    return lambda now: now.verdict is not None and now.verdict.to == to


def _first_ready(now: Situation) -> bool:
    """Return whether the last probe found the replica ready for the first time in this generation."""
    return now.verdict is not None and now.verdict.to == "ready" and not now.row.started_before


def _start_is_overdue(now: Situation) -> bool:
    return now.row.state_seconds > now.live_engine.startup_budget_seconds


def _reason(now: Situation) -> str:
    assert now.verdict is not None
    return now.verdict.reason


def _wait(_: Situation) -> None:
    """Do nothing in this round."""
