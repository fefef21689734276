"""Agents that are killed, wiped or suspended: engines keep running, each once, and unknown processes are killed."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import cast

import pytest
from django.conf import settings

from catalogue.models import Model, ModelRevision
from hearth import secrets
from tenants.audit import SYSTEM
from tenants.ids import ReplicaId
from tests.workers.agent_processes import (
    NODE,
    agent_thread,
    celery_agent,
    end_everything,
    identity_of,
    in_state,
    records,
    settled,
    until,
    warm,
)
from tests.workers.conftest import Fleet
from workers import processes
from workers.agent.processes.paths import OWNER_VARIABLE
from workers.agent.processes.process_records import ProcessRecords, ZygoteRecord
from workers.fleet import deployments
from workers.models import Deployment, Node, Placeholder, Pool, Replica, SlotLease
from workers.processes import ProcessIdentity
from workers.scheduler import reconciler
from workers.serving import engine_keys

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


@pytest.fixture
def data_dir(data_dir: Path) -> Path:
    """The same, whose agents know each other's engine keys."""
    secrets.write_new(data_dir, secrets.as_json(settings.SECRETS))
    return data_dir


def want(fleet: Fleet, name: str, replicas: int, *engine_args: str) -> Deployment:
    """Deploy a model of that name, whose engines get these arguments."""
    model = Model.objects.create(name=name, owner=fleet.revision.model.owner, visibility=Model.Visibility.PUBLIC)
    revision = ModelRevision.objects.create(
        model=model,
        source="/models/tiny",
        digest="0" * 64,
        engine="simulated",
        context_length_tokens=2048,
        engine_args=list(engine_args),
    )
    return deployments.create(SYSTEM, name=name, revision=revision, pools=(fleet.pool,), replicas=replicas)


def of(deployment: Deployment, state: str) -> Replica | None:
    """Return the deployment's replica in the state."""
    return Replica.objects.filter(deployment=deployment, state=state, pid__isnull=False).first()


def leases() -> dict[object, object]:
    """Return the holder of each slot, and its lease."""
    return dict(SlotLease.objects.filter(released_at=None).values_list("slot_id", "id"))


@contextmanager
def open_stream(row: Replica, tokens: int) -> Iterator[http.client.HTTPResponse]:
    """Start a stream with this number of tokens and yield it once its first bytes have arrived."""
    link = http.client.HTTPConnection(row.host, row.port or 0, timeout=60)
    key = engine_keys.derive(cast(ReplicaId, row.id), row.engine_key)
    body = {"model": row.deployment.name, "prompt": "Tell", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with closing(link):
        link.request("POST", "/v1/completions", json.dumps(body), headers)
        response = link.getresponse()
        first = response.readline()
        assert first.startswith(b"data: "), first + response.read()
        yield response


def kill(agent: subprocess.Popen[bytes]) -> None:
    """End an agent as the kernel would."""
    agent.kill()
    agent.wait()


@pytest.mark.long
def test_an_agent_killed_with_engines_in_every_state_is_followed_by_one_that_adopts_them(
    fleet: Fleet, data_dir: Path
) -> None:
    Pool.objects.update(placeholders_per_node=1)
    ready, leaving = want(fleet, "ready", 1), want(fleet, "leaving", 1, "--decode-tokens-per-second", "10")
    with ExitStack() as stack:
        first = stack.enter_context(celery_agent(data_dir))
        settled(in_state("ready", 2))
        (placeholder,) = settled(warm("h2"))
        Pool.objects.update(placeholders_per_node=2)  # so that the start does not use the existing one
        Placeholder.objects.update(engine="vllm")
        starting = want(fleet, "starting", 1, "--startup-seconds", "8")
        settled(lambda: of(starting, "starting"))
        stream = stack.enter_context(open_stream(Replica.objects.get(deployment=leaving), 80))
        deployments.scale(SYSTEM, "leaving", 0)
        settled(lambda: of(leaving, "draining"))
        before = {row.id: (row.pid, row.generation) for row in Replica.objects.all()}
        held = leases()
        kill(first)
        second = stack.enter_context(celery_agent(data_dir))
        until(lambda: Node.objects.get().agent_pid == second.pid)
        until(lambda: of(starting, "ready"))
        assert stream.read().endswith(b"data: [DONE]\n\n"), "a drain goes on where the agent before left it"
        until(lambda: Replica.objects.filter(deployment=leaving, state="stopped").exists())
    after = {row.id: (row.pid or before[row.id][0], row.generation) for row in Replica.objects.all()}
    assert after == before
    assert of(ready, "ready") is not None
    assert Placeholder.objects.get(id=placeholder.id).pid == placeholder.pid
    assert processes.is_running(identity_of(placeholder))
    assert leases().items() <= held.items(), "nobody took a slot anew"
    running = {record.pid for record in records(data_dir)}
    assert running == {row.pid for row in Replica.objects.filter(state="ready")}


def test_an_agent_killed_in_the_middle_of_a_promotion_is_followed_by_one_that_finishes_it(
    fleet: Fleet, data_dir: Path
) -> None:
    Pool.objects.update(placeholders_per_node=1)
    deployment = want(fleet, "chat", 1)
    Deployment.objects.update(min_replicas=0, desired_replicas=0)
    with celery_agent(data_dir) as first:
        (zygote,) = settled(warm("h2"))
        os.kill(identity_of(zygote).pid, signal.SIGSTOP)  # it gets the promotion, and does not answer
        Pool.objects.update(placeholders_per_node=0)
        Deployment.objects.update(desired_replicas=1)
        settled(lambda: records(data_dir))
        kill(first)
    os.kill(identity_of(zygote).pid, signal.SIGCONT)
    assert of(deployment, "starting") is not None
    held = leases()
    with celery_agent(data_dir):
        replica = until(lambda: of(deployment, "ready"))
    assert replica is not None and identity_of(replica) == identity_of(zygote)
    assert (replica.generation, replica.start_level) == (1, "h2")
    assert leases() == held
    assert [record.pid for record in records(data_dir)] == [zygote.pid]
    assert not list(ProcessRecords(data_dir / "engines", NODE).zygotes())


@pytest.mark.long
def test_an_agent_killed_right_after_a_promotion_leaves_an_engine_and_no_zygote(fleet: Fleet, data_dir: Path) -> None:
    Pool.objects.update(placeholders_per_node=1)
    deployment = want(fleet, "chat", 1)
    Deployment.objects.update(min_replicas=0, desired_replicas=0)
    with agent_thread(data_dir):
        (zygote,) = settled(warm("h2"))
        Pool.objects.update(placeholders_per_node=0)
        Deployment.objects.update(desired_replicas=1)
        settled(lambda: of(deployment, "ready"))
    (engine,) = records(data_dir)
    registry = ProcessRecords(data_dir / "engines", NODE)
    registry.write(
        ZygoteRecord(
            placeholder_id=zygote.id,
            node=NODE,
            fence=zygote.fence,
            pid=engine.pid,
            start_ticks=engine.start_ticks,
            boot_id=engine.boot_id,
            devices=engine.devices,
        )
    )
    Replica.objects.update(state="starting", startup_seconds=None)
    with agent_thread(data_dir) as agent:
        replica = until(lambda: of(deployment, "ready"))
        until(lambda: (agent.counters.adopted, agent.counters.orphans_killed) == (1, 0))
    assert replica is not None and identity_of(replica) == engine.process
    assert not list(registry.zygotes())


def test_a_wiped_registry_costs_nothing_that_a_row_knows_and_everything_else_its_life(
    fleet: Fleet, data_dir: Path
) -> None:
    Pool.objects.update(placeholders_per_node=1)
    deployment = want(fleet, "chat", 1)
    with agent_thread(data_dir):
        settled(in_state("ready"))
        (zygote,) = settled(warm("h2"))
    replica = of(deployment, "ready")
    assert replica is not None
    shutil.rmtree(data_dir / "engines")
    marked = stray(data_dir / "elsewhere.log", {OWNER_VARIABLE: f"{NODE} {data_dir / 'engines'}"})
    headless = stray(data_dir / "logs" / "engine-deadbeef.log", {})
    os.kill(headless.pid, signal.SIGKILL)  # its child has no mark and no leader, as vLLM's engine core
    until(lambda: processes.collect(headless) is not None)
    foreign = stray(data_dir / "logs" / "engine-cafecafe.log", {OWNER_VARIABLE: "n2 elsewhere"})
    assert len(processes.session_members(headless)) == 1
    with agent_thread(data_dir) as agent:
        until(lambda: Node.objects.get().epoch == 2)
        until(lambda: not processes.session_members(marked) and not processes.session_members(headless))
        late = stray(data_dir / "logs" / "zygote-deadbeef.log", {})
        until(lambda: not processes.session_members(late))
        until(lambda: (agent.counters.adopted, agent.counters.orphans_killed) == (2, 3))
    assert identity_of(Replica.objects.get()) == identity_of(replica)
    assert (Replica.objects.get().state, Placeholder.objects.get().state) == ("ready", "warm")
    assert identity_of(Placeholder.objects.get()) == identity_of(zygote)
    assert len(processes.session_members(foreign)) == 2, "another agent's are left alone"
    assert processes.kill_session(foreign, timeout_seconds=10)
    assert [record.pid for record in records(data_dir)] == [replica.pid]


def test_a_suspended_agent_that_wakes_up_after_another_took_its_node_touches_nothing(
    fleet: Fleet, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The second agent has its own data directory, as in a container, so the lock does not stop it."""
    Pool.objects.update(placeholders_per_node=1)
    deployment = want(fleet, "chat", 1)
    elsewhere = tmp_path_factory.mktemp("b")
    try:
        with celery_agent(data_dir) as zombie:
            settled(in_state("ready"))
            (placeholder,) = settled(warm("h2"))
            os.kill(zombie.pid, signal.SIGSTOP)
            with agent_thread(elsewhere):
                until(lambda: Node.objects.get().epoch == 2)
                before = until(lambda: of(deployment, "ready"))
                assert before is not None
                deployments.scale(SYSTEM, "chat", 0)
                Pool.objects.update(placeholders_per_node=0)
                held = [placeholder.id]
            reconciler.tick()  # new work of the node does not concern the zombie
            os.kill(zombie.pid, signal.SIGCONT)
            until(lambda: b"another agent took over" in (data_dir / "agent.out").read_bytes())
            assert Node.objects.get().epoch == 2
            assert Replica.objects.get().state == "ready"
            assert list(Placeholder.objects.values_list("id", "state")) == [(held[0], "evicting")]
            assert processes.is_running(identity_of(before)) and processes.is_running(identity_of(placeholder))
        assert processes.is_running(identity_of(before)) and processes.is_running(identity_of(placeholder))
    finally:
        end_everything(elsewhere)


def stray(log_path: Path, marks: dict[str, str]) -> ProcessIdentity:
    """Start two processes with this mark in a session of their own, and return the first once both run."""
    environment = {name: value for name, value in os.environ.items() if name != OWNER_VARIABLE} | marks
    code = "import os, time; os.fork(); print('up', flush=True); time.sleep(300)"
    leader = processes.launch([sys.executable, "-c", code], log_path=log_path, environment=environment)
    until(lambda: not processes.is_running(leader) or (log_path.exists() and log_path.read_text().count("up") == 2))
    return leader
