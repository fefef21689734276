"""``celery -A hearth inspect | control …``: two real workers, one of them an agent, and the real database."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now

from hearth.celery import app
from tenants.models import AuditEntry
from tests.workers.agent_processes import (
    NODE,
    SLOTS,
    celery_agent,
    celery_worker,
    database_refusing_connections,
    end_everything,
    until,
)
from tests.workers.conftest import Fleet, add_node
from workers.fleet import operations
from workers.models import Deployment, Level, Node, Placeholder, Pool, Replica, Slot, StartTime
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]

AGENT, CONTROL = f"agent@{NODE}", f"control@{NODE}"


@pytest.fixture
def workers(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent that has read its node, and a worker without an agent; without beat, only verbs change the fleet."""
    monkeypatch.setenv("HEARTH_SLOTS", str(SLOTS))
    agent = celery_agent(tmp_path, as_node=False)
    with agent, celery_worker(tmp_path, "control", "-Q", "nobody-sends-here"):
        until(lambda: "slots" in inspect("slots")[AGENT], seconds=60)
        until(lambda: app.control.ping(destination=[CONTROL], timeout=5), seconds=60)
        yield
    end_everything(tmp_path)


def ask(command: str, **arguments: object) -> dict[str, dict[str, Any]]:
    """Return the answer of each worker; one that is still starting does not answer."""
    found = app.control.broadcast(command, arguments=arguments, destination=[AGENT, CONTROL], reply=True, timeout=5)
    return {AGENT: {}, CONTROL: {}} | {worker: answer for each in found or [] for worker, answer in each.items()}


def inspect(what: str) -> dict[str, dict[str, Any]]:
    return ask(what)


def say(verb: str, **arguments: object) -> str:
    """Repeat the verb until both workers have performed it, as an operator would; return both answers."""

    def both() -> list[str]:
        texts = [answer["ok"] for answer in ask(verb, **arguments).values() if "ok" in answer]
        return texts if len(texts) == 2 else []

    first, second = until(both, seconds=60)
    assert first == second
    return first


def celery(said: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Celery command, repeatedly if a busy machine makes workers too slow, until its output contains ``said``."""
    command = [sys.executable, "-m", "celery", "-A", "hearth", *words, "-t", "20", "-d", f"{AGENT},{CONTROL}"]
    surroundings = os.environ | {"COLUMNS": "200"}

    def done() -> subprocess.CompletedProcess[str] | None:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=100, env=surroundings, check=False)
        return ran if said in ran.stdout + ran.stderr else None

    found = until(done, seconds=60)
    assert found is not None
    return found


def keep_warm(fleet: Fleet) -> Placeholder:
    """Create a warm placeholder on another node, which has no agent."""
    node = add_node(fleet.pool, "n2")
    Node.objects.filter(id=node.id).update(lease_expires_at=Now() + dt.timedelta(hours=1))
    row = Placeholder.objects.create(
        node=node, engine="simulated", target_level=Level.H2, level=Level.H2, state=Placeholder.State.WARM
    )
    fence = slot_leases.lease_for_placeholder(row.id, node.id)
    assert fence is not None
    Placeholder.objects.filter(id=row.id).update(fence=fence)
    return row


@pytest.mark.usefixtures("workers")
def test_each_verb_is_done_by_two_workers_and_audited_once(fleet: Fleet) -> None:
    deployment = fleet.deploy(0)
    kept = keep_warm(fleet)
    Slot.objects.filter(node=fleet.node, device_uuid="cpu-0").update(health="quarantined", fault="xid 79")
    short = str(kept.id)[-6:]

    assert (
        say("scale", deployment="chat", replicas="0-2")
        == "deployment chat wants 0 to 2 replicas, 0 at the present load"
    )
    said = say("promote", placeholder=short, deployment="chat")
    promoted = Replica.objects.get(placeholder=kept)
    assert said == f"placeholder {short} is replica chat/{str(promoted.id)[-6:]}"
    assert say("drain", target=str(promoted.id)[-6:]).endswith(operations.LEAVES)
    assert say("cordon", node="n2").startswith("node n2 is cordoned")
    assert say("uncordon", node="n2").startswith("node n2 takes replicas")
    assert say("warm", pool="local", per_node=1, level="h2") == "pool local keeps 1 placeholders at h2 on each node"
    assert say("restore", node=NODE, device="cpu-0") == f"slot {NODE} cpu-0 is ok"
    say("target", deployment="chat", tokens=512, up_after=1, down_after=60)
    assert say("route", deployment="chat", policy="session") == "deployment chat routes by session"
    say("drain", target="n2")

    actions = list(AuditEntry.objects.filter(actor="celery control").order_by("id").values_list("action", flat=True))
    assert actions == [
        "deployment.scaled",
        "placeholder.promoted",
        "replica.drained",
        "node.cordoned",
        "node.uncordoned",
        "pool.warmed",
        "slot.restored",
        "deployment.target_set",
        "deployment.routed",
        "node.drained",
    ]
    deployment.refresh_from_db()
    assert (deployment.desired_replicas, deployment.max_replicas) == (1, 2)


@pytest.mark.long
@pytest.mark.usefixtures("workers")
def test_operators_type_verbs_and_read_refusals(fleet: Fleet) -> None:
    fleet.deploy(0)
    row = keep_warm(fleet)
    assert celery("deployment chat wants 0 to 3 replicas", "control", "scale", "chat", "0-3").returncode == 0
    assert Deployment.objects.get().max_replicas == 3
    assert celery("is evicting", "control", "evict", str(row.id)[-6:]).returncode == 0
    row.refresh_from_db()
    assert row.state == "evicting"
    celery("there is no deployment 'chatt'; there is chat", "control", "scale", "chatt", "1")
    celery("use promote PLACEHOLDER DEPLOYMENT", "control", "promote", "3fa9c1")
    assert celery("takes arguments: NODE", "control", "cordon", "n1", "n2").returncode == 2


@pytest.mark.usefixtures("workers")
def test_an_agent_lists_its_node_from_memory_and_another_worker_says_whom_to_ask(fleet: Fleet) -> None:
    fleet.deploy(0)
    answers = json.loads(celery("seen_seconds_ago", "inspect", "slots", "--json").stdout)
    assert [(slot["device"], slot["holder"], slot["health"]) for slot in answers[AGENT]["slots"]] == [
        (f"cpu-{index}", "", "ok") for index in range(4)
    ]
    assert answers[CONTROL] == {
        "none": "no agent runs in this worker: use -d agent@NODE, or `celery -A hearth fleet slots`"
    }
    (pool,) = inspect("pools")[AGENT]["pools"]
    assert (pool["pool"], pool["nodes"], pool["slots"]) == ("local", 1, 4)
    assert inspect("replicas")[AGENT]["replicas"] == []
    with database_refusing_connections():
        remembered = until(lambda: aged(inspect("slots")[AGENT]), seconds=60)
        assert len(remembered["slots"]) == 4


@pytest.mark.usefixtures("workers")
def test_placeholders_are_shown_with_the_time_measured_for_each_model(fleet: Fleet) -> None:
    deployment = fleet.deploy(0)
    replica = Replica.objects.create(deployment=deployment, revision=fleet.revision, state="stopped")
    StartTime.objects.create(
        replica=replica, revision=fleet.revision, pool=fleet.pool, level="cold", seconds=26.4, process_seconds=26.0
    )
    Pool.objects.update(placeholders_per_node=1, placeholder_level="h0")
    reconciler.tick()
    (shown,) = until(lambda: inspect("placeholders")[AGENT].get("placeholders", []), seconds=60)
    assert shown["id"] == str(Placeholder.objects.get().id) and shown["level"] == "h0"
    assert shown["promotes"] == [{"deployment": "chat", "seconds": 26.4, "words": "up in 26 s"}]


@pytest.mark.usefixtures("workers")
def test_a_database_that_is_busy_or_away_is_answered_with_an_error_and_changes_nothing(fleet: Fleet) -> None:
    with transaction.atomic():
        reconciler.lock(wait=True)
        assert_refused("cordon", node=NODE)
    with database_refusing_connections():
        assert_refused("cordon", node=NODE)
    assert not Node.objects.get(name=NODE).cordoned and not AuditEntry.objects.filter(action="node.cordoned").exists()
    say("cordon", node=NODE)
    assert Node.objects.get(name=NODE).cordoned


def aged(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer once its content is older than an agent's round."""
    return answer if answer.get("seen_seconds_ago", 0) > 1.5 else {}


def assert_refused(verb: str, **arguments: object) -> None:
    answers = until(lambda: found if all((found := ask(verb, **arguments)).values()) else {}, seconds=60)
    for answer in answers.values():
        assert "database" in answer["error"]
