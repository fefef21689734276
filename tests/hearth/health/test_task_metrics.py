"""Tasks are counted by name and result, and what waits to be sent by kind."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from celery import Celery, states
from django.utils import timezone

from hearth.health import task_metrics
from notifications import metrics
from notifications.models import Event


def test_tasks_are_counted_by_name_and_result() -> None:
    task = SimpleNamespace(name=f"tests.{uuid4()}")
    for state in (states.SUCCESS, states.FAILURE, states.SUCCESS, states.RETRY, states.IGNORED):
        identity = str(uuid4())
        task_metrics._begin(task_id=identity, task=task)
        task_metrics._end(task_id=identity, task=task, state=state)
    found = {
        sample.labels["result"]: sample.value
        for metric in task_metrics.TASKS.collect()
        for sample in metric.samples
        if sample.labels.get("task") == task.name and sample.name.endswith("_total")
    }
    assert found == {"done": 2, "failed": 1, "retried": 1, "ignored": 1}
    assert task_metrics.SECONDS.labels(task.name)._sum.get() >= 0


def test_tasks_that_no_worker_has_taken_are_counted_by_queue() -> None:
    app = Celery(broker="memory://", set_as_current=False)
    for queue in ("background", "background", "control"):
        app.send_task("tests.nothing", queue=queue)
    found = task_metrics.waiting(app)
    assert found == {"control": 1, "background": 2, "inference": 0}
    (metric,) = task_metrics.QueueCollector(lambda: found).collect()
    assert {(each.labels["queue"], each.value) for each in metric.samples} == set(found.items())
    assert [each.samples for each in task_metrics.QueueCollector(lambda: None).collect()] == [[]]


@pytest.mark.django_db
def test_what_waits_is_counted_with_the_age_of_the_oldest() -> None:
    empty = metrics.read()
    assert empty.keys() == {"events", "webhooks", "mails"}
    made = Event.objects.create(type="hearth.test.made.v1", subject="test/1", data={}, dedupe_key="1")
    Event.objects.filter(id=made.id).update(created_at=timezone.now() - timedelta(hours=1))
    found = metrics.read()
    assert found["events"].number == empty["events"].number + 1
    assert found["events"].oldest_seconds >= 3600
    samples = {
        (sample.name, sample.labels["kind"])
        for metric in metrics.WaitingCollector(lambda: found).collect()
        for sample in metric.samples
    }
    names = ("hearth_notifications_due", "hearth_notifications_oldest_due_seconds")
    assert samples == {(name, kind) for name in names for kind in found}
    assert [metric.samples for metric in metrics.WaitingCollector(lambda: None).collect()] == [[], []]
