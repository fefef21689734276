"""A further machine: it joins with the engine key alone, takes replicas, and is replaced when it dies.

Two data directories on this machine; the second uses the first one's servers, as another machine would over a network.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from redis import Redis

from hearth import process_records, secrets
from hearth.embedded.redis import SOCKET_NAME
from hearth.paths import sockets_dir
from hearth.service_urls import NODE_REDIS_RULES, NODE_REDIS_USER
from tests.journey.instance import Instance, wait_for
from tests.ports import INSTANCE_PORTS, free_ports
from tests.servers import remove_sockets
from workers.processes import ProcessIdentity, find_by_environment, kill_session, session_members

NOT_OURS = ("DATABASE_", "REDIS_", "HEARTH_", "DJANGO_")
HEARTH = str(Path(sys.executable).with_name("hearth"))
SECOND = {"HEARTH_NODE": "second", "HEARTH_NODE_ADDRESS": "127.0.0.2"}
#: Each machine has room for both replicas. No placeholders: a warm one would draw the second replica to its node.
OPTIONS = ("--engine", "simulated", "--replicas", "1", "--placeholders", "0")
SLOTS = {"HEARTH_SLOTS": "2"}
PASSWORD = "only-for-this-test"
NODE = ("node", "--engine", "simulated")


@dataclass(frozen=True, slots=True)
class Machine:
    """One data directory with the environment of its machine."""

    folder: Path
    environment: dict[str, str]
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run the ``hearth`` command there to its end."""
        return subprocess.run(
            [HEARTH, *arguments],
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start_node(self) -> subprocess.Popen[bytes]:
        """Start `hearth node` there; its output goes to node.log."""
        with (self.folder / "node.log").open("ab") as log:
            node = subprocess.Popen(
                [HEARTH, *NODE], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.nodes.append(node)
        return node

    def said(self) -> str:
        """Return the node's output so far."""
        return (self.folder / "node.log").read_text()

    def engines(self) -> list[ProcessIdentity]:
        """Return the engine processes in the agent's registry."""
        found = [process_records.read_record(path) for path in sorted((self.folder / "engines").glob("*.json"))]
        return [process for process in found if process is not None]

    def kill(self) -> None:
        """End every process there at once, engines too, as the loss of a machine does."""
        for engine in self.engines():
            kill_session(engine, timeout_seconds=5)
        for _ in range(5):  # the node starts anew what ends before it does
            for process in self._processes():
                kill_session(process, timeout_seconds=5)
        for engine in self.engines():  # what an agent started while it died
            kill_session(engine, timeout_seconds=5)
        for node in self.nodes:
            node.wait()

    def _processes(self) -> list[ProcessIdentity]:
        found = find_by_environment("HEARTH_DATA_DIR")
        return [each for each, data in found.items() if data == str(self.folder) and each.pid != os.getpid()]


@pytest.fixture(scope="module")
def first() -> Iterator[Instance]:
    """The first machine: an instance with embedded servers."""
    with _folder() as folder:
        machine = Machine(folder, _environment(folder) | {"HEARTH_NODE": "first"})
        try:
            up = machine.run("up", "--detach", *OPTIONS)
            assert up.returncode == 0, f"{up.stdout}\n{up.stderr}"
            found = json.loads((folder / "up.json").read_text())
            yield Instance(data_dir=folder, environment=machine.environment, command=[HEARTH], up=found)
        finally:
            machine.run("down")


@pytest.fixture
def second(first: Instance) -> Iterator[Machine]:
    """A second machine that knows the first one's servers and has no secrets yet."""
    with _folder() as folder:
        machine = Machine(folder, _environment(folder) | _servers_of(first.data_dir) | SECOND)
        try:
            yield machine
        finally:
            machine.kill()


@pytest.mark.long
def test_a_machine_without_the_clusters_servers_or_secrets_is_told_what_is_missing(second: Machine) -> None:
    for missing in (("DATABASE_URL",), ("REDIS_URL",)):
        without = {name: value for name, value in second.environment.items() if name not in missing}
        refused = replace(second, environment=without).run("node")
        assert refused.returncode == 1
        assert f"{missing[0]} must name the servers of the first machine" in refused.stderr
    refused = second.run("node")
    assert refused.returncode == 1
    assert "`hearth secrets export -` there, into `hearth secrets import -` here" in refused.stderr


@pytest.mark.long
def test_a_machine_with_other_secrets_is_refused_before_it_serves(second: Machine) -> None:
    secrets.load_or_create(second.folder)
    refused = second.run("node")
    assert refused.returncode == 1
    assert "are not this cluster's: engine_key would be refused" in refused.stderr
    assert not (second.folder / "run").exists() or list((second.folder / "run").iterdir()) == []


@pytest.mark.long
def test_a_database_or_redis_that_does_not_answer_is_named(first: Instance, second: Machine) -> None:
    _import_secrets(first, second)
    for name, url in (
        ("DATABASE_URL", "postgresql://hearth_app:x@127.0.0.1:9/hearth"),
        ("REDIS_URL", "redis://127.0.0.1:9/0"),
    ):
        refused = replace(second, environment=second.environment | {name: url}).run("node")
        assert refused.returncode == 1
        assert f"of {name} does not answer" in refused.stderr


@pytest.mark.long
def test_a_pool_of_another_kind_is_refused(first: Instance, second: Machine) -> None:
    _import_secrets(first, second)
    refused = second.run(*NODE, "--pool", "local-cpu", "--pool-kind", "gpu")
    assert refused.returncode == 1
    assert "The pool local-cpu exists, and its kind is cpu, not gpu." in refused.stderr


@pytest.mark.long
def test_a_second_node_serves_and_is_replaced_when_its_machine_is_lost(first: Instance, second: Machine) -> None:
    _import_secrets(first, second)
    second.start_node()
    wait_for(lambda: _free_slots(first, "second") == 2, "the node", 60)
    assert "Ready: node second of pool local-cpu" in second.said()
    status = json.loads(second.run("status", "--json").stdout)
    node = _node(first, "second")
    assert node is not None
    assert node["address"] == "127.0.0.2"
    assert (status["state"], status["pool"], status["replicas"]) == ("up", "local-cpu", [])
    assert [(role["name"], role["state"]) for role in status["roles"]] == [("drain", "running"), ("agent", "running")]

    _scale(first, 2)
    [replica] = wait_for(lambda: _second_ones(first), "a replica on the second node", 60)
    wait_for(lambda: _answered_by(first, replica), "an answer from the second node", 60)

    second.kill()
    wait_for(lambda: sorted(_ready(first).values()) == ["first", "first"], "its replacement", 90)
    assert first.chat("acme", "after the loss").status == 200


@pytest.mark.long
def test_a_killed_node_keeps_its_engines_and_a_stopped_one_hands_over(first: Instance, second: Machine) -> None:
    _import_secrets(first, second)
    _scale(first, 1)
    wait_for(lambda: len(_ready(first)) == 1, "one replica", 60)
    node = second.start_node()
    _wait_until_it_serves(first, second)
    _scale(first, 2)
    wait_for(lambda: _second_ones(first), "a replica on the second node", 60)
    [engine] = second.engines()

    node.kill()
    node.wait()
    again = second.start_node()
    wait_for(lambda: second.said().count("Ready: node second") == 2, "the node again", 60)
    assert "Kept drain, agent" in second.said()
    assert second.engines() == [engine]
    assert session_members(engine)

    assert second.run("down").stdout == "Stopped.\n"
    assert again.wait(timeout=90) == 0
    assert session_members(engine) == []
    assert _is_cordoned(first, "second")
    wait_for(lambda: sorted(_ready(first).values()) == ["first", "first"], "its replacement", 60)

    second.start_node()
    wait_for(lambda: not _is_cordoned(first, "second"), "its return", 60)


@pytest.mark.long
def test_the_first_machine_stops_without_the_engines_of_the_second(first: Instance, second: Machine) -> None:
    _import_secrets(first, second)
    _scale(first, 1)
    wait_for(lambda: len(_ready(first)) == 1, "one replica", 60)
    second.start_node()
    _wait_until_it_serves(first, second)
    _scale(first, 2)
    wait_for(lambda: _second_ones(first), "a replica on the second node", 60)
    engines = second.engines()

    assert first.hearth("down").stdout == "Stopped.\n"
    assert second.engines() == engines
    assert all(map(session_members, engines))

    again = first.hearth("up", "--detach", *OPTIONS)
    assert again.returncode == 0, again.stderr
    wait_for(lambda: not _is_cordoned(first, "first"), "its return", 60)
    assert set(engines) <= set(second.engines())  # which may have one more, started while the first node was away
    assert all(map(session_members, engines))


def _wait_until_it_serves(first: Instance, second: Machine) -> None:
    """Wait until the second node has registered and its slots are free; its row may be there from the test before."""
    wait_for(lambda: "Ready: node second" in second.said(), "the node", 60)
    wait_for(lambda: _free_slots(first, "second") == 2, "its slots", 60)


@contextmanager
def _folder() -> Iterator[Path]:
    """A data directory that embedded servers may pass through."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-machine-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        remove_sockets(folder)


def _environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    return inherited | SLOTS | {"HEARTH_DATA_DIR": str(folder), "HEARTH_PORT": str(free_ports(INSTANCE_PORTS))}


def _servers_of(data_dir: Path) -> dict[str, str]:
    """Return the addresses of an instance's embedded servers with the rights of a node, as an operator gives them."""
    made = secrets.load(data_dir).database_passwords
    sockets = sockets_dir(data_dir)
    server = f"/hearth?host={quote(str(sockets), safe='')}"
    with psycopg.connect(f"postgresql://hearth_super:{quote(made.superuser)}@{server}", autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = 'hearth_node_second'").fetchone() is None:
            connection.execute(f"CREATE ROLE hearth_node_second LOGIN PASSWORD '{PASSWORD}' IN ROLE hearth_node")
    socket = sockets / SOCKET_NAME
    with Redis.from_url(f"unix://{socket}?db=0") as client:
        client.execute_command("ACL", "SETUSER", NODE_REDIS_USER, "on", f">{PASSWORD}", *NODE_REDIS_RULES.split())
    return {
        "DATABASE_URL": f"postgresql://hearth_node_second:{PASSWORD}@{server}",
        "REDIS_URL": f"unix://{NODE_REDIS_USER}:{PASSWORD}@{socket}?db=0",
    }


def _import_secrets(first: Instance, second: Machine) -> None:
    exported = first.hearth("secrets", "export", "-").stdout
    assert json.loads(exported).keys() == {"engine_key", "engine_key_fallbacks"}
    taken = second.run("secrets", "import", "-", given=exported)
    assert taken.returncode == 0, taken.stderr


def _fleet(first: Instance) -> Any:
    answer = first.operator("/fleet")
    assert answer.status == 200, answer
    return answer.json()


def _scale(first: Instance, replicas: int) -> None:
    body = {"min_replicas": replicas, "max_replicas": replicas}
    answer = first.operator("/fleet/deployments/hearth-tiny/scale", body)
    assert answer.status == 200, answer


def _ready(first: Instance) -> dict[str, str]:
    """Return the node of each replica that is ready, by the replica's id."""
    [deployment] = _fleet(first)["deployments"]
    return {each["id"]: each["node"] for each in deployment["replicas"] if each["state"] == "ready"}


def _second_ones(first: Instance) -> list[str]:
    return [replica for replica, node in _ready(first).items() if node == "second"]


def _node(first: Instance, name: str) -> dict[str, Any] | None:
    nodes: list[dict[str, Any]] = [node for pool in _fleet(first)["pools"] for node in pool["nodes"]]
    return next((node for node in nodes if node["name"] == name), None)


def _free_slots(first: Instance, name: str) -> int:
    """Return how many slots of a node that lives are free."""
    found = _node(first, name)
    return int(found["free_slots"]) if found and found["alive"] and not found["cordoned"] else 0


def _is_cordoned(first: Instance, name: str) -> bool:
    found = _node(first, name)
    return bool(found and found["cordoned"])


def _answered_by(first: Instance, replica: str) -> bool:
    """Ask something new, and say whether that replica answered."""
    answer = first.chat("acme", f"question {uuid.uuid4()}")
    assert answer.status == 200, answer
    return first.replica_of("acme", answer.headers["x-request-id"]) == replica
