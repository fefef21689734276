"""An agent that begins ends the KV relay of the version before, and no other process that holds its lock."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from django.conf import settings

from hearth import secrets
from tests.workers.agent_processes import NODE, agent_thread, until
from tests.workers.conftest import Fleet
from workers import processes
from workers.agent.agent import Agent
from workers.models import Node
from workers.processes import ProcessIdentity

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(60)]

#: Holds the lock and listens as the relay did, and ignores SIGTERM.
RELAY = """
import argparse, fcntl, os, pathlib, signal, socket, time
parser = argparse.ArgumentParser()
for name in ("--node", "--registry", "--sockets", "--agent-lock"):
    parser.add_argument(name)
options = parser.parse_args()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
stem = pathlib.Path(options.sockets) / ("relay-" + options.node[:40])
fcntl.flock(os.open(str(stem) + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX | fcntl.LOCK_NB)
server = socket.socket(socket.AF_UNIX)
server.bind(str(stem))
server.listen()
print("up", flush=True)
time.sleep(60)
"""


def start(data_dir: Path, module: str, node: str) -> ProcessIdentity:
    """Start it as the agent of the version before did, and return it once it holds its lock."""
    folder, log = data_dir / "old", data_dir / "logs" / f"relay-{node}.log"
    for each in (data_dir / "s", log.parent, folder / "workers"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "workers" / "__init__.py").touch()
    (folder / "workers" / f"{module}.py").write_text(RELAY)
    command = [sys.executable, "-m", f"workers.{module}", "--node", node, "--registry", str(data_dir / "engines")]
    command += ["--sockets", str(data_dir / "s"), "--agent-lock", str(data_dir / f"agent-{node}.lock")]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}  # not the checkout's workers
    process = processes.launch(command, log_path=log, environment=environment)
    until(lambda: log.read_text() == "up\n" or not processes.is_running(process))
    assert processes.is_running(process), log.read_text()
    return process


def left(data_dir: Path) -> list[str]:
    """Return the files of relays."""
    return sorted(path.name for folder in ("s", "logs") for path in (data_dir / folder).glob("relay-*"))


def swept(agent: Agent) -> bool:
    """Return whether the agent has begun its rounds."""
    return agent.round_at is not None and Node.objects.get().agent_pid == os.getpid()


@pytest.fixture
def data_dir(data_dir: Path) -> Path:
    """The same, with the secrets of an instance."""
    secrets.write_new(data_dir, secrets.as_json(settings.SECRETS))
    return data_dir


def test_the_relay_of_the_version_before_ends_with_its_files_and_that_of_another_node_stays(
    fleet: Fleet, data_dir: Path
) -> None:
    relay, other = start(data_dir, "kv_relay", NODE), start(data_dir, "kv_relay", "n-other")
    (data_dir / "logs" / f"relay-{NODE}.log.1").touch()
    with agent_thread(data_dir) as agent:
        until(lambda: swept(agent))
    assert not processes.is_running(relay)
    assert processes.is_running(other)
    assert left(data_dir) == ["relay-n-other", "relay-n-other.lock", "relay-n-other.log"]
    assert processes.kill_session(other, timeout_seconds=5)


def test_another_process_that_holds_the_lock_is_left_alone(fleet: Fleet, data_dir: Path) -> None:
    stranger = start(data_dir, "something_else", NODE)
    before = left(data_dir)
    with agent_thread(data_dir) as agent:
        until(lambda: swept(agent))
    assert processes.is_running(stranger)
    assert left(data_dir) == before
    assert processes.kill_session(stranger, timeout_seconds=5)


def test_the_files_of_a_relay_that_has_ended_are_removed(fleet: Fleet, data_dir: Path) -> None:
    relay = start(data_dir, "kv_relay", NODE)
    assert processes.kill_session(relay, timeout_seconds=5)
    with agent_thread(data_dir) as agent:
        until(lambda: swept(agent))
    assert left(data_dir) == []
