"""Machines of a cluster on one: each has an address on a bridge and processes of its own, and none of another's.

Linux network and process namespaces stand in for them, so a machine can be lost with all its processes at once, and
its cable can be pulled. Files are shared, except that each machine has a data directory of its own. Needs root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psycopg

from hearth import secrets
from hearth.embedded.account import service_account
from hearth.embedded.postgres import LOCKS, MAX_CONNECTIONS, PostgresServer
from hearth.embedded.postgres import binary as postgres_binary
from hearth.secrets import DatabasePasswords
from hearth.service_urls import NODE_REDIS_USER
from tests.docker import database_images as images
from tests.docker.pods import HOST, Answer, Network, fetch
from tests.journey.instance import Engine, Instance, wait_for
from tests.servers import remove_sockets
from workers.processes import kill_session, launch

NOT_OURS = ("DATABASE_", "REDIS_", "HEARTH_", "DJANGO_")
HEARTH = (sys.executable, "-m", "hearth.cli")
#: Each machine has ports of its own.
PORT = 8080
PORTAL_PORT = PORT + 1
#: Ends as soon as the machine's first process is killed, which takes every other one with it; it reaps orphans.
FIRST_PROCESS = "ip link set lo up && echo up && { sleep infinity & wait; }"
NODE_PASSWORD = images.NODE_PASSWORD


@dataclass(slots=True)
class Machine:
    """One machine. Its address ends with ``number``."""

    network: Network
    number: int
    name: str
    folder: Path
    settings: dict[str, str]
    _holder: subprocess.Popen[str] | None = None
    _first: int = 0
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{HOST.rpartition('.')[0]}.{self.number}"

    @property
    def gateway(self) -> str:
        return f"http://{self.address}:{PORT}/v1"

    @property
    def management(self) -> str:
        return f"http://{self.address}:{PORTAL_PORT}/api/v1"

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
        own = {
            "HEARTH_DATA_DIR": str(self.folder),
            "HEARTH_NODE": self.name,
            "HEARTH_NODE_ADDRESS": self.address,
            "HEARTH_HOST": self.address,
            "HEARTH_PORT": str(PORT),
            "HEARTH_ALLOWED_HOSTS": self.address,
            "HEARTH_ENGINE_PORTS": "20000-20099",
        }
        return inherited | own | self.settings

    def switch_on(self) -> None:
        """Start it, with nothing but its first process, and connect it."""
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", FIRST_PROCESS]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        (self._first,) = map(int, children.split())
        self.network.ip(f"ip link del pod{self.number} 2>/dev/null || true")
        self.network.attach(self._first, self.number)

    def switch_off(self) -> None:
        """Kill every process of it at once. Idempotent."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
            self._holder = None
        while self._started:
            self._started.pop().wait()

    def cable(self, state: str) -> None:
        """Pull its cable, ``down``, or plug it in, ``up``: packets are lost, and no connection is ended."""
        self.network.ip(f"ip link set pod{self.number} {state}")

    def command(self, *arguments: str) -> list[str]:
        """Return the line that runs a command on it."""
        return ["nsenter", "--target", str(self._first), "--net", "--pid", "--mount", "--", *arguments]

    def run(self, *arguments: str, given: str = "") -> str:
        """Run the ``hearth`` command on it; return what it prints. Raises AssertionError if it fails."""
        done = subprocess.run(
            self.command(*HEARTH, *arguments),
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *arguments: str) -> None:
        """Start a ``hearth`` command on it that goes on, with its output in node.log; return once its roles begin."""
        ready = self.folder / "node.json"
        ready.unlink(missing_ok=True)
        with (self.folder / "node.log").open("ab") as log:
            command = self.command(*HEARTH, *arguments)
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        self._started.append(process)

        def is_ready() -> bool:
            assert process.poll() is None, self.said()
            return ready.exists()

        wait_for(is_ready, f"{self.name}: {self.said()}", 240)

    def said(self) -> str:
        """Return the end of its output."""
        return (self.folder / "node.log").read_text(errors="replace")[-3000:]

    def engines(self) -> dict[str, Engine]:
        """Return the engines in its agent's registry whose processes run, by replica."""
        found = Instance(self.folder, self.environment, HEARTH, {}).engines()
        running = subprocess.run(self.command("ps", "-e", "-o", "pid="), capture_output=True, text=True, check=True)
        pids = set(map(int, running.stdout.split()))
        return {each.replica_id: each for each in found if each.pid in pids}

    def fetch(self, url: str, key: str = "", body: object = None) -> Answer:
        """Return the answer of an address, as seen from this machine."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return fetch(self.command(), url, headers, body)


@dataclass(slots=True)
class Servers:
    """PostgreSQL and Redis, on a machine of their own whose cable stays."""

    passwords: DatabasePasswords
    redis: str
    sockets: Path = field(repr=False)

    @property
    def of_heads(self) -> dict[str, str]:
        """Return the settings with which heads find them, and that tell nodes where they are."""
        return {
            "DATABASE_URL": f"postgresql://hearth_app:{quote(self.passwords.app)}@{HOST}:5432/hearth",
            "REDIS_URL": self.redis,
            "HEARTH_NODE_DATABASE_URL": f"postgresql://{HOST}:5432/hearth",
            "HEARTH_NODE_REDIS_URL": re.sub("//:[^@]*@", f"//{NODE_REDIS_USER}:n@", self.redis),
        }

    @property
    def of_owner(self) -> dict[str, str]:
        """Return the setting with which the first head migrates."""
        return {"DATABASE_OWNER_URL": f"postgresql://hearth_owner:{quote(self.passwords.owner)}@{HOST}:5432/hearth"}

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to the database from outside of the network."""
        superuser = f"postgresql://hearth_super:{quote(self.passwords.superuser)}@/hearth"
        return psycopg.connect(f"{superuser}?host={quote(str(self.sockets), safe='')}", autocommit=True)


def servers(network: Network, stack: ExitStack) -> Servers:
    """Start PostgreSQL and Redis where the bridge is."""
    folder = new_folder(stack) / "servers"
    folder.mkdir(mode=0o711)
    made = secrets.load_or_create(folder).database_passwords
    sockets = new_folder(stack)
    data = folder / "postgres"
    first = PostgresServer(data_dir=data, sockets_dir=sockets, log_path=folder / "log", passwords=made, durable=False)
    try:
        first.start()
    finally:
        first.stop()
    with (data / "cluster" / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {HOST}/24 scram-sha-256\n")
    program = postgres_binary("postgres")
    account = service_account(must_enter=(folder, sockets, program.parent))
    settings = (
        f"listen_addresses={HOST}",
        f"unix_socket_directories={sockets}",
        f"max_connections={MAX_CONNECTIONS}",
        f"max_locks_per_transaction={LOCKS}",
        "fsync=off",
        "timezone=UTC",
    )
    options = [part for setting in settings for part in ("-c", setting)]
    server = launch(
        [
            "/usr/bin/env",
            *network.prefix,
            *account.command(postgres_binary("postgres"), "-D", data / "cluster", *options),
        ],
        log_path=folder / "postgres.log",
        environment=os.environ,
    )
    stack.callback(kill_session, server, timeout_seconds=30)
    found = Servers(made, images.redis(folder, stack, prefix=network.prefix, host=HOST), sockets)

    def accepts() -> bool:
        try:
            found.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    wait_for(accepts, "PostgreSQL", 60)
    return found


def new_folder(stack: ExitStack) -> Path:
    """Return a folder that other users may pass through, as long as the stack lasts."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-machine-"))
    folder.chmod(0o711)
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stack.callback(remove_sockets, folder)
    return folder


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. ``status`` is 0 without an answer."""

    gateway: str
    status: int
    request_id: str
    seconds: float
    error: str


class Client:
    """Asks gateways one thing after another, each on its own thread, from where the bridge is."""

    def __init__(self, network: Network, key: str, gateways: tuple[str, ...], output: Path) -> None:
        self._output = output
        with output.open("w") as lines:
            command = [*network.prefix, sys.executable, str(Path(__file__).with_name("client.py")), key, *gateways]
            self._process = subprocess.Popen(command, stdout=lines)

    def outcomes(self) -> list[Outcome]:
        """Return what became of each request that has ended."""
        lines = self._output.read_text().splitlines(keepends=True)
        return [Outcome(*json.loads(line)) for line in lines if line.endswith("\n")]

    def answered(self, gateway: str = "") -> list[str]:
        """Return the requests that were answered, by one gateway if one is given."""
        return [each.request_id for each in self.outcomes() if each.status == 200 and gateway in ("", each.gateway)]

    def wait_for_more(self, count: int = 20) -> None:
        """Return when so many more requests have been answered through each gateway that is asked."""
        enough = len(self.answered()) + count
        wait_for(lambda: len(self.answered()) >= enough, f"{count} more answers", 60)

    def stop(self) -> None:
        """Stop asking; a request that runs is left. Idempotent."""
        self._process.kill()
        self._process.wait()


@contextmanager
def asking(network: Network, key: str, *gateways: str) -> Iterator[Client]:
    """Ask gateways all the time during the block."""
    with tempfile.TemporaryDirectory() as folder:
        client = Client(network, key, gateways, Path(folder) / "outcomes")
        try:
            yield client
        finally:
            client.stop()
