"""What the containers do, without containers: PostgreSQL is given its roles by the image's script, then every image's
own command runs beside the others with the environment that the compose file gives it, and its health check asks it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from hearth import secrets
from tests.docker import database_images as images
from tests.docker.database_images import PASSWORDS
from tests.docker.files import COMPOSE, command, environment, stages
from tests.journey.instance import Reply, request, wait_for
from tests.ports import INSTANCE_PORTS, free_ports
from workers.processes import ProcessIdentity, find_by_environment, kill_session

pytestmark = pytest.mark.long

STAGES = stages()
#: Image by compose service; the agent is the last to start, so that nothing routes before the others are there.
SERVICES = ("gateway", "portal", "drain", "control", "inference", "background", "beat", "agent-cpu")
SIMULATED = dict.fromkeys(("HEARTH_BOOTSTRAP_OPTIONS", "HEARTH_NODE_OPTIONS"), "--engine simulated")
VARIABLES = PASSWORDS | SIMULATED | {"HEARTH_NODE": "node-1", "HEARTH_DEMO": "1"}


@dataclass(slots=True)
class Parts:
    """A cluster in parts: the folder all share, and the processes by service."""

    folder: Path
    port: int
    urls: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def environment(self, service: str) -> dict[str, str]:
        """Return what the service's container would have, but for addresses and folders of this machine."""
        names = ("HEARTH_", "DATABASE_", "REDIS_", "DJANGO_")
        here = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        given = environment(COMPOSE, service, VARIABLES) | self.urls
        if "HEARTH_NODE_ADDRESS" in given:
            given["HEARTH_NODE_ADDRESS"] = "127.0.0.1"
        if "DATABASE_OWNER_URL" not in environment(COMPOSE, service, VARIABLES):
            del given["DATABASE_OWNER_URL"]
        return here | given | {"HEARTH_DATA_DIR": str(self.folder), "HEARTH_PORT": str(self.port)}

    def run(self, service: str, program: list[str]) -> subprocess.CompletedProcess[str]:
        """Run one command as in the service's container."""
        return subprocess.run(
            _found(program),
            env=self.environment(service),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, service: str) -> None:
        """Start the command of the service's image."""
        with (self.folder / f"{service}.log").open("wb") as log:
            self.processes[service] = subprocess.Popen(
                _found(command(COMPOSE, service, VARIABLES)),
                env=self.environment(service),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def health(self, service: str) -> int:
        """Return the exit status of the image's health check."""
        asks = STAGES[service].health
        assert asks
        return self.run(service, asks).returncode

    def wait_for_health(self, service: str) -> None:
        """Return once the health check passes."""
        wait_for(lambda: self.health(service) == 0, f"health of {service}", 60)

    def chat(self, content: str) -> Reply:
        """Ask as the tenant acme."""
        key = json.loads((self.folder / "demo-keys.json").read_text())["acme"]
        body = {"model": "hearth-tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8}
        return request(f"http://127.0.0.1:{self.port}/v1/chat/completions", key, body)

    def engines(self) -> list[int]:
        """Return the pids of the replicas' engines; the agent records its placeholders beside them."""
        found = []
        for path in (self.folder / "engines").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                found.append(json.loads(path.read_text()))
        return sorted(record["pid"] for record in found if record["kind"] == "engine")

    def logs(self) -> str:
        """Return the end of every log."""
        found = sorted([*self.folder.glob("*.log"), *self.folder.glob("logs/*.log")])
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in found)


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    """Bootstrap a cluster and start every role; end all processes of its folder afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-parts-"))
    folder.chmod(0o711)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        found = Parts(folder / "data", free_ports(INSTANCE_PORTS), images.start(folder / "servers", stack))
        found.folder.mkdir(mode=0o700)
        stack.callback(_end, found)
        for _ in range(2):
            done = found.run("bootstrap-cpu", command(COMPOSE, "bootstrap-cpu", VARIABLES))
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{found.logs()}"
        assert secrets.load(found.folder).admin_password not in done.stdout + done.stderr
        for service in SERVICES:
            found.start(service)
        yield found


def test_every_health_check_passes_and_a_request_is_answered_and_counted(parts: Parts) -> None:
    for service in SERVICES:
        parts.wait_for_health(service)

    answer = wait_for(lambda: found if (found := parts.chat("hello")).status == 200 else None, "an answer", 60)
    usage = f"http://127.0.0.1:{parts.port + 1}/api/v1/usage/{answer.headers['x-request-id']}"
    key = json.loads((parts.folder / "demo-keys.json").read_text())["acme"]
    wait_for(lambda: request(usage, key).status == 200, "the usage, through the drain's container", 60)


def test_a_machine_that_joins_gets_its_role_in_postgresql_without_a_superuser(parts: Parts) -> None:
    url = urlsplit(parts.environment("portal")["DATABASE_URL"])
    with psycopg.connect(url.geturl(), autocommit=True) as link:
        verifier = link.pgconn.encrypt_password(b"only-for-this-test", b"hearth_node_joined", b"scram-sha-256")
        link.execute("SELECT hearth_make_node_role('joined', %s)", [verifier.decode()])
        with psycopg.connect(url._replace(netloc="hearth_node_joined:only-for-this-test@").geturl()) as node:
            assert node.execute("SELECT count(*) FROM workers_node").fetchone() == (1,)
        link.execute("SELECT hearth_drop_node_role('joined')")
        assert link.execute("SELECT FROM pg_roles WHERE rolname = 'hearth_node_joined'").fetchone() is None


def test_an_agent_that_is_killed_in_its_container_takes_no_engine_with_it(parts: Parts) -> None:
    engines = wait_for(lambda: found if len(found := parts.engines()) == 2 else None, "both engines", 60)
    agent = json.loads((parts.folder / "run" / "agent.json").read_text())
    os.kill(agent["pid"], signal.SIGKILL)
    wait_for(
        lambda: json.loads((parts.folder / "run" / "agent.json").read_text())["pid"] != agent["pid"],
        "another agent",
        60,
    )
    parts.wait_for_health("agent-cpu")
    assert parts.chat("after").status == 200
    assert parts.engines() == engines


def test_a_role_with_other_secrets_is_refused_and_says_which(parts: Parts, tmp_path: Path) -> None:
    secrets.load_or_create(tmp_path)
    role = _found(["hearth", "role", "gateway"])
    surroundings = parts.environment("gateway") | {"HEARTH_DATA_DIR": str(tmp_path)}
    done = subprocess.run(role, env=surroundings, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "engine_key, django_secret_key, key_pepper, cache_salt, cache_mac, authority would be refused" in done.stderr
    assert "hearth secrets import" in done.stderr


def test_stopping_the_agents_container_stops_its_engines_in_order(parts: Parts) -> None:
    agent = parts.processes["agent-cpu"]
    agent.terminate()
    assert agent.wait(timeout=90) == 0
    assert list((parts.folder / "engines").glob("*.json")) == []
    assert "Stopped" in (parts.folder / "agent-cpu.log").read_text()


def _found(program: list[str]) -> list[str]:
    """Return the command with the program of this environment, as PATH in the image finds it."""
    return [str(Path(sys.executable).with_name(program[0])), *program[1:]]


def _end(parts: Parts) -> None:
    """Stop what containers would have stopped, the agent first, and kill what is left of any."""
    for service in reversed(SERVICES):
        if service in parts.processes:
            parts.processes[service].terminate()
            try:
                parts.processes[service].wait(timeout=90)
            except subprocess.TimeoutExpired:
                parts.processes[service].kill()
    for process in _living(parts.folder):
        kill_session(process, timeout_seconds=5)


def _living(folder: Path) -> list[ProcessIdentity]:
    found = find_by_environment("HEARTH_DATA_DIR")
    return [process for process, data in found.items() if data == str(folder) and process.pid != os.getpid()]
