"""The health pages of the Celery roles: agent, control, inference, background and beat.

A timer in a worker's main loop sends heartbeats while the worker is connected to the broker. While the worker waits for
the broker, it sends none: it is alive but not ready. Beat sends a heartbeat at each tick of its scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps, signals
from celery.beat import PersistentScheduler

import billing.metrics
import gateway.metrics
import retention.metrics
from hearth import environment
from hearth.health import http_listener, task_metrics
from hearth.health.checks import Check, CheckState, Health, Heartbeat, Loop, recent, registry
from hearth.instance.health_ports import port_of
from hearth.instance.instance import from_environment
from workers import metrics

BEAT_SECONDS = 1.0
#: A broker that hangs blocks a worker's loop for several socket timeouts of 10 s before the worker notices.
WORKER_LIMIT_SECONDS = 120.0
#: An agent never recovers from a statement that the database never answers, so it must be restarted. Engines keep
#: running meanwhile.
AGENT_LIMIT_SECONDS = 60.0
BEAT_LIMIT_SECONDS = 60.0
#: Reconcile runs every two seconds, an agent's round every second.
READY_SECONDS = 15.0
DATABASE_PATIENCE_SECONDS = 2.0
BROKER_PATIENCE_SECONDS = 2.0

_worker = Heartbeat()
_scheduler = Heartbeat()
_sent = Heartbeat()


def install(app: Celery) -> None:
    """Add health pages to the app's workers and its beat. Without a role (HEARTH_ROLE) nothing listens."""
    app.steps["consumer"].add(HeartbeatStep)
    app.conf.beat_scheduler = f"{__name__}:Scheduler"
    signals.worker_init.connect(_start_worker, weak=False)
    signals.beat_init.connect(_start_beat, weak=False)


class HeartbeatStep(bootsteps.StartStopStep):
    """Sends heartbeats from the worker's main loop. Celery stops this step when the broker connection is lost."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Start the heartbeats."""
        _worker.beat()
        self._timer = parent.timer.call_repeatedly(BEAT_SECONDS, _worker.beat)

    def stop(self, parent: Any) -> None:
        """Stop the heartbeats until the broker is back."""
        self._timer.cancel()
        _worker.rest()


class Scheduler(PersistentScheduler):
    """Celery's scheduler, with a heartbeat at each tick."""

    def tick(self, *arguments: Any, **options: Any) -> float:
        """Send the tasks that are due; return the seconds until the next tick."""
        _scheduler.beat()
        due_in: float = super().tick(*arguments, **options)
        return due_in


def _start_worker(**_: Any) -> None:
    _listen({"agent": _agent, "control": _control, "inference": _inference, "background": _background})


def _start_beat(**_: Any) -> None:
    signals.after_task_publish.connect(_record_sent, weak=False)
    _listen({"beat": _beat})


def _listen(roles: dict[str, Callable[[], Health]]) -> None:
    role = environment.read().role
    if role in roles:
        instance = from_environment()
        http_listener.start(roles[role](), instance.metrics_host, port_of(instance, role))


def _record_sent(**_: Any) -> None:
    _sent.beat()


def _agent() -> Health:
    from workers.agent.agent import engine_metrics, measurements, statuses
    from workers.agent.readings.metrics import NodeCollector

    def loop_age() -> float | None:
        return max((each.loop_age_seconds for each in statuses() if each.loop_age_seconds is not None), default=None)

    def round_age() -> float | None:
        return max((each.round_age_seconds for each in statuses() if each.round_age_seconds is not None), default=None)

    age = metrics.AgeGauge("hearth_agent_loop_age_seconds", "Since the agent last did a round of its node.", round_age)
    return Health(
        role="agent",
        engine_metrics=engine_metrics,
        loops=(_worker_loop(), Loop("agent", AGENT_LIMIT_SECONDS, loop_age)),
        checks=lambda: (recent("node", round_age(), limit_seconds=READY_SECONDS, what="round"), _broker("degraded")),
        registry=registry(
            *metrics.AGENT,
            *billing.metrics.WRITER,
            metrics.AgentCollector(lambda: [each.counters for each in statuses()]),
            NodeCollector(measurements),
            age,
        ),
    )


def _control() -> Health:
    from celery import current_app as app

    from hearth.health.bounded_call import BoundedCall
    from reconciliation import metrics as reconciliation
    from workers import fleet_counts

    fleet = BoundedCall(fleet_counts.read)
    proof = BoundedCall(reconciliation.read)
    queues = BoundedCall(lambda: task_metrics.waiting(app))
    tick_age = metrics.TICKS.age_seconds
    return Health(
        role="control",
        loops=(_worker_loop(),),
        checks=lambda: (
            recent("reconcile", tick_age(), limit_seconds=READY_SECONDS, what="tick"),
            _broker("missing"),
        ),
        registry=registry(
            *metrics.CONTROL,
            *retention.metrics.CONTROL,
            metrics.AgeGauge("hearth_reconcile_tick_age_seconds", "Since reconcile last did a tick here.", tick_age),
            metrics.FleetCollector(lambda: fleet.call(DATABASE_PATIENCE_SECONDS)),
            task_metrics.QueueCollector(lambda: queues.call(BROKER_PATIENCE_SECONDS)),
            reconciliation.ProofCollector(lambda: proof.call(DATABASE_PATIENCE_SECONDS)),
        ),
    )


def _inference() -> Health:
    return Health(
        role="inference",
        loops=(_worker_loop(),),
        checks=lambda: (_broker("missing"),),
        registry=registry(*gateway.metrics.METRICS, *billing.metrics.WRITER),
    )


def _background() -> Health:
    from hearth.health.bounded_call import BoundedCall
    from notifications import metrics as notifications

    task_metrics.connect()
    waiting = BoundedCall(notifications.read)
    return Health(
        role="background",
        loops=(_worker_loop(),),
        checks=lambda: (_broker("missing"),),
        registry=registry(
            *billing.metrics.DUNNING,
            *task_metrics.METRICS,
            notifications.WaitingCollector(lambda: waiting.call(DATABASE_PATIENCE_SECONDS)),
        ),
    )


def _beat() -> Health:
    return Health(
        role="beat",
        loops=(Loop("scheduler", BEAT_LIMIT_SECONDS, _scheduler.age_seconds),),
        checks=lambda: (recent("broker", _sent.age_seconds(), limit_seconds=READY_SECONDS, what="tick sent"),),
        registry=registry(),
    )


def _worker_loop() -> Loop:
    return Loop("worker", WORKER_LIMIT_SECONDS, _worker.age_seconds)


def _broker(otherwise: CheckState) -> Check:
    age = _worker.age_seconds()
    if age is None:
        return Check("broker", otherwise, "not connected")
    if age > READY_SECONDS:
        return Check("broker", otherwise, f"nothing was read from it for {age:.0f} s")
    return Check("broker", "ok")
