"""Celery itself: beat drives reconcile, agents answer operators, every scheduled task exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.celery import app
from tenants.audit import SYSTEM
from tests.workers.agent_processes import NODE, celery_agent, celery_worker, end_everything, in_state, until
from tests.workers.conftest import Fleet
from workers.fleet import deployments, operations
from workers.models import ReplicaEvent


def test_every_scheduled_task_exists_and_expires_before_it_piles_up() -> None:
    app.loader.import_default_modules()
    for entry in app.conf.beat_schedule.values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expires"] <= entry["schedule"]


def test_the_command_line_knows_the_operators_commands() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "hearth", "inspect", "--list"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "100"},
    )
    assert "replicas" in listed.stdout


@pytest.mark.timeout(120)
@pytest.mark.django_db(transaction=True)
def test_beat_reconciles_and_the_agent_acts_and_answers(fleet: Fleet, tmp_path: Path) -> None:
    fleet.deploy(1)
    beat = ("-B", "-s", str(tmp_path / "beat-schedule"))
    try:
        with celery_agent(tmp_path), celery_worker(tmp_path, "control", "-Q", "control", *beat):
            (row,) = until(in_state("ready"), seconds=60)

            def listed() -> list[str]:
                answers = app.control.broadcast("replicas", destination=[f"agent@{NODE}"], reply=True, timeout=5) or []
                return [found["id"] for answer in answers for found in answer[f"agent@{NODE}"].get("replicas", ())]

            # It answers from what it read a second ago.
            assert until(listed, seconds=30) == [str(row.id)]
            deployments.scale(SYSTEM, "chat", 0)
            until(in_state("stopped"), seconds=30)
    finally:
        end_everything(tmp_path)


@pytest.mark.timeout(240)
@pytest.mark.django_db(transaction=True)
def test_a_drained_replica_stops_after_its_replacement_is_ready(fleet: Fleet, tmp_path: Path) -> None:
    fleet.deploy(1)
    beat = ("-B", "-s", str(tmp_path / "beat-schedule"))
    try:
        with celery_agent(tmp_path), celery_worker(tmp_path, "control", "-Q", "control", *beat):
            (old,) = until(in_state("ready"), seconds=60)
            operations.drain(SYSTEM, str(old.id))
            (gone,) = until(in_state("stopped"), seconds=60)
            (new,) = until(in_state("ready"), seconds=60)
    finally:
        end_everything(tmp_path)
    assert gone.id == old.id != new.id
    events = list(ReplicaEvent.objects.order_by("id").values_list("replica_id", "to_state"))
    assert events.index((new.id, "ready")) < events.index((old.id, "draining"))
