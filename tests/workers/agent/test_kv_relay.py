"""The agent keeps the node's KV relay running: it starts one, finds a running one, and stores its counts."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

import pytest
from django.conf import settings

from hearth import secrets
from tests.workers.agent_processes import NODE, agent_thread, celery_agent, in_state, settled, until
from tests.workers.conftest import Fleet
from workers import processes
from workers.agent.processes.paths import agent_lock
from workers.kv_relay import relay
from workers.models import Replica
from workers.processes import ProcessIdentity
from workers.serving import engine_keys

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


@pytest.fixture
def data_dir(data_dir: Path) -> Path:
    """The same, whose agents know each other's engine keys."""
    secrets.write_new(data_dir, secrets.as_json(settings.SECRETS))
    return data_dir


def relays(data_dir: Path) -> set[ProcessIdentity]:
    """Return the relays that follow this data directory's engines."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"workers.kv_relay" in command and str(data_dir / "engines").encode() in command:
            found.add(processes.identify(int(entry.parent.name)))
    return {each for each in found if each is not None}


def ask(row: Replica) -> None:
    """Send the engine a prompt of three full blocks."""
    body = {"model": "tiny-chat", "prompt": list(range(300, 400)), "max_tokens": 1}
    asked = urllib.request.Request(
        f"http://{row.host}:{row.port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={
            "content-type": "application/json",
            "authorization": f"Bearer {engine_keys.derive(row.id, row.engine_key)}",  # type: ignore[arg-type]  # a replica's id
        },
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert answer.status == 200


def test_cached_blocks_are_counted_and_shown(fleet: Fleet, data_dir: Path) -> None:
    fleet.deploy(1)
    with agent_thread(data_dir):
        (row,) = settled(in_state("ready"))
        ask(row)
        until(lambda: (Replica.objects.get(id=row.id).cached_blocks or 0) >= 3)


def test_the_relay_outlives_its_agent_and_a_dead_one_is_replaced(fleet: Fleet, data_dir: Path) -> None:
    fleet.deploy(1)
    with celery_agent(data_dir) as agent:
        settled(in_state("ready"))
        (first,) = until(lambda: relays(data_dir))
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    assert relays(data_dir) == {first}
    with celery_agent(data_dir):
        (row,) = settled(in_state("ready"))
        processes.send_signal(first, signal.SIGKILL)
        (second,) = until(lambda: relays(data_dir) - {first})
        ask(row)
        until(lambda: (Replica.objects.get(id=row.id).cached_blocks or 0) >= 3)
    assert relays(data_dir) == {second}


def test_the_relay_ends_with_the_last_engine_and_agent(fleet: Fleet, data_dir: Path) -> None:
    deployment = fleet.deploy(1)
    with agent_thread(data_dir):
        settled(in_state("ready"))
        until(lambda: relays(data_dir))
        deployment.min_replicas = deployment.desired_replicas = deployment.max_replicas = 0
        deployment.save()
        settled(in_state("stopped"))
        assert relays(data_dir)
    until(lambda: not relays(data_dir))
    place = relay.RelayPaths(
        node=NODE, registry=data_dir / "engines", sockets=data_dir / "s", agent_lock=agent_lock(data_dir, NODE)
    )
    until(lambda: not relay.is_serving(place))  # what is seen of a process goes before its lock does
