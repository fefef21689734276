"""Prometheus metrics of a worker's Celery tasks, from Celery's signals: how many ended, how, and how long they took."""

from __future__ import annotations

import time
from typing import Any

from celery import signals, states
from prometheus_client import Counter, Histogram

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
