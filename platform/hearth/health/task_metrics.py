"""Prometheus metrics of Celery's tasks: how many ended, how, how long they took, and how many wait in each queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from celery import Celery, signals, states
from prometheus_client import Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

TASKS = Counter(
    "hearth_tasks", "Celery tasks that ended in this process, by name and result.", ("task", "result"), registry=None
)
SECONDS = Histogram(
    "hearth_task_seconds",
    "How long they took.",
    ("task",),
    buckets=(0.01, 0.1, 0.5, 1, 5, 15, 60, 300),
    registry=None,
)
METRICS = (TASKS, SECONDS)

#: Queues of the roles; an agent's own queue waits for its node.
QUEUES = ("control", "background", "inference")
#: By Celery's state; any other is "failed".
_RESULTS = {states.SUCCESS: "done", states.RETRY: "retried", states.IGNORED: "ignored"}
_started: dict[str, float] = {}


def connect() -> None:
    """Count from now on."""
    signals.task_prerun.connect(_begin, weak=False)
    signals.task_postrun.connect(_end, weak=False)


def _begin(task_id: str, **_: Any) -> None:
    _started[task_id] = time.monotonic()


def _end(task_id: str, task: Any, state: str | None = None, **_: Any) -> None:
    began = _started.pop(task_id, None)
    TASKS.labels(task.name, _RESULTS.get(state or "", "failed")).inc()
    if began is not None:
        SECONDS.labels(task.name).observe(time.monotonic() - began)


def waiting(app: Celery) -> Mapping[str, int]:
    """Return how many tasks wait at the broker in each of QUEUES. Raises ConnectionError."""
    broker: Any = app.connection_for_read()
    try:
        with broker, broker.channel() as channel:
            return {name: channel.queue_declare(queue=name).message_count for name in QUEUES}
    except broker.connection_errors as error:
        raise ConnectionError(f"the broker does not answer: {error}") from None


class QueueCollector(Collector):
    """How many tasks wait, as the broker has it. ``read`` returns None while the broker is unavailable."""

    def __init__(self, read: Callable[[], Mapping[str, int] | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge, without a value while nothing is known."""
        number = GaugeMetricFamily("hearth_tasks_waiting", "Celery tasks that no worker has taken.", labels=("queue",))
        for name, tasks in (self._read() or {}).items():
            number.add_metric((name,), tasks)
        yield number
