"""A whole instance to break: its processes by name, its servers, and what an operator can see of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import redis

from hearth import process_records, secrets
from hearth.instance.instance import Instance as Unstarted
from tests.hearth.instances import NOT_OURS, unstarted
from tests.hearth.instances import Instance as Started
from tests.journey.instance import Engine, Instance
from tests.ports import INSTANCE_PORTS, free_ports
from workers.processes import ProcessIdentity, find_by_environment, is_running

#: Prices are primes, so that no two wrong sums look alike. Pico-dollars per token or request.
PRICE = {
    "prompt_pico": 150_001,
    "cached_prompt_pico": 15_013,
    "completion_pico": 600_011,
    "prediction_hit_pico": 7_000_003,
    "coalesced_pico": 9_000_011,
    "request_pico": 3_000_017,
}
TENANTS = ("chaos-a", "chaos-b", "chaos-c")
FAST, SLOW = "hearth-tiny", "chaos-slow"
GATEWAYS = 2
REPLICAS = {FAST: 2, SLOW: 2}
SERVERS = ("postgres", "redis")
ENGINE_KINDS = ("engine", "placeholder")
ROLES = ("gateway", "gateway-2", "portal", "drain", "agent", "control", "inference", "background", "beat")
LOG_BYTES = 64 * 1024**2
READY_SECONDS = 180


@dataclass(slots=True)
class World:
    """An instance with two gateways, three tenants with prices and a hard budget, two models of two replicas."""

    folder: Path
    environment: dict[str, str]
    #: Where its servers are.
    instance: Unstarted
    #: The usage log has a small file system of its own, which can be filled.
    small_disk: bool = False
    #: The file that moves the clock of every process; None: they have the real one.
    clock: Path | None = None
    keys: list[str] = field(default_factory=list)
    _api: Instance | None = None

    @property
    def log_folder(self) -> Path:
        return self.folder / "wal"

    @property
    def api(self) -> Instance:
        """Return the instance as a client and an operator see it."""
        assert self._api is not None
        return self._api

    def api_bases(self) -> tuple[str, ...]:
        """Return the addresses that clients may ask."""
        return (self.api.api_base,)

    def engines(self) -> list[Engine]:
        """Return the engines that have a registry file."""
        return self.api.engines()

    def hearth(self, *arguments: str, seconds: float = 240) -> None:
        """Run a `hearth` command. Raises AssertionError with its output when it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "hearth.cli", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"hearth {' '.join(arguments)}: {done.stdout}\n{done.stderr}"

    def up(self) -> None:
        """Start the instance, or what is missing of it."""
        self.hearth("up", "--detach", "--engine", "simulated", "--replicas", str(REPLICAS[FAST]))
        up = json.loads((self.folder / "up.json").read_text())
        if self._api is None:
            self._api = Instance(self.folder, self.environment, (sys.executable, "-m", "hearth.cli"), up)
        self._api.up = up

    def fill(self) -> None:
        """Make the tenants, their keys and prices, and the slow model. Once, before the first fault."""
        slow = ("--engine", "simulated", "--replicas", str(REPLICAS[SLOW]))
        self.hearth("deploy", SLOW, *slow, "--engine-args=--decode-tokens-per-second 60")
        for model in (FAST, SLOW):
            self._post("/prices", {"model": model, **PRICE, "confirm": True})
        for slug in TENANTS:
            self._post("/tenants", {"slug": slug, "name": slug})
            self.keys.append(str(self._post(f"/tenants/{slug}/keys", {"name": "chaos"})["secret"]))
        budget = {"period": "total", "limit_pico": 10**17, "action": "block"}
        made = self.api.operator(f"/tenants/{TENANTS[0]}/budgets", budget, method="PUT")
        assert made.status == 201, made

    def _post(self, path: str, body: Mapping[str, object]) -> Any:
        made = self.api.operator(path, body)
        assert made.status in (200, 201), made
        return made.json()

    def pids(self, name: str) -> list[int]:
        """Return the living processes of a role, server or kind of engine process: its main process first."""
        if name in ROLES:
            found = [process_records.read_record(self.folder / "run" / f"{name}.json")]
        elif name == "supervisor":
            found = [process_records.read_record(self.folder / "supervisor.json")]
        elif name == "redis":
            server = self.instance.redis()
            found = [server.process() if server else None]
        elif name == "postgres":
            cluster = self.instance.postgres(secrets.load(self.folder))
            found = [cluster.process() if cluster else None]
        else:
            entries = [json.loads(file.read_text()) for file in sorted((self.folder / "engines").glob("*.json"))]
            found = [
                ProcessIdentity(pid=each["pid"], start_ticks=each["start_ticks"])
                for each in entries
                if each["kind"] == name
            ]
        return [process.pid for process in found if process is not None and is_running(process)]

    def ours(self) -> list[ProcessIdentity]:
        """Return every process that was started with this data directory, but for commands that run now."""
        every = find_by_environment("HEARTH_DATA_DIR").items()
        return [process for process, folder in every if folder == str(self.folder) and process.pid != os.getpid()]

    def ready(self) -> bool:
        """Return whether every role runs and every replica is ready, as `hearth status` has it."""
        if not all(self.pids(name) for name in (*ROLES, "supervisor", *SERVERS)):
            return False
        if len(self.pids("engine")) != sum(REPLICAS.values()):
            return False
        try:
            fleet = self.api.operator("/fleet")
            models = [self.api.call(f"/models/{name}", self.keys[0]).status for name in REPLICAS]
        except OSError:
            return False
        if fleet.status != 200 or models != [200, 200]:
            return False
        ready = {
            each["name"]: sum(row["state"] == "ready" for row in each["replicas"])
            for each in fleet.json()["deployments"]
        }
        return all(ready.get(name) == count for name, count in REPLICAS.items())

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> bool:
        """Wait until all is up again; say whether it is within the time."""
        return until(self.ready, seconds)

    def database(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection to its database. Raises psycopg.OperationalError."""
        return psycopg.connect(self.instance.app_url(), connect_timeout=10)

    def redis(self) -> redis.Redis:
        """Return a client of its Redis."""
        server = self.instance.redis()
        assert server is not None
        return redis.Redis.from_url(server.url, socket_timeout=10)

    def resident_mib(self) -> dict[str, float]:
        """Return the resident memory of each role and server, MiB."""
        names = (*ROLES, *SERVERS)
        return {name: _resident_mib(pids[0]) for name in names if (pids := self.pids(name))}

    def strays(self) -> list[str]:
        """Return the command lines of processes that nothing of the instance accounts for."""
        known = {pid for name in (*ROLES, "supervisor", *SERVERS, *ENGINE_KINDS) for pid in self.pids(name)}
        return [command_line(pid) for pid in {process.pid for process in self.ours()} if not _line(pid) & known]


@contextmanager
def running(*, small_disk: bool = False, moving_clock: bool = False) -> Iterator[World]:
    """Run an instance for as long as the block lasts, on free ports, and remove it afterwards.

    ``small_disk`` needs the right to mount, ``moving_clock`` the package libfaketime.
    """
    folder = Path(tempfile.mkdtemp(prefix="hearth-chaos-"))
    folder.chmod(0o711)
    port = free_ports(INSTANCE_PORTS)
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS} | {
        "HEARTH_DATA_DIR": str(folder),
        "HEARTH_PORT": str(port),
        "HEARTH_GATEWAY_PROCESSES": str(GATEWAYS),
        "HEARTH_SLOTS": str(sum(REPLICAS.values()) + 1),
        "HEARTH_ENGINE_TIMEOUT_SECONDS": "10",
    }
    world = World(folder=folder, environment=environment, instance=unstarted(folder, port))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        if small_disk:
            undo.enter_context(_mounted(world.log_folder))
            world.small_disk = True
        if moving_clock:
            world.clock = folder / "clock"
            world.clock.write_text("+0")
            world.environment |= undo.enter_context(_faked_time(world.clock))
        undo.callback(world.hearth, "down")
        world.up()
        world.fill()
        assert world.wait_until_ready(), world.api.hearth("status").stdout
        yield world


def leftovers(world: World) -> list[str]:
    """Return what a stopped instance has left behind: processes, ports, lock, sockets."""
    return Started(world.folder, world.instance.port).leftovers()


def can_mount() -> bool:
    """Return whether this process may give the log a file system of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "none", folder], capture_output=True, check=False)
        if done.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return done.returncode == 0


@contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={LOG_BYTES},mode=0700", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def _faked_time(clock: Path) -> Iterator[dict[str, str]]:
    """Yield the environment of processes that take the time from ``clock``.

    libfaketime keeps a semaphore and a page that a process and its descendants share. Here all share those of one
    process that lives as long as the instance, and every user may: PostgreSQL and Redis are started by root and run as
    another, and what a killed process had left was in the way of the next one with its number.
    """
    package = find_spec("libfaketime")
    assert package is not None and package.origin is not None, "make install-dev installs libfaketime"
    settings = {
        "LD_PRELOAD": str(Path(package.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
        # Engines have the library, as any that is preloaded; without its settings their sleeps never end.
        "HEARTH_ENGINE_ENVIRONMENT": "FAKETIME*",
    }
    script = "import os, sys; print(os.environ['FAKETIME_SHARED'], flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        shared = holder.stdout.readline().strip()
        semaphore, page = (name.removeprefix("/") for name in shared.split(" "))
        for file in (f"sem.{semaphore}", page):
            Path("/dev/shm", file).chmod(0o666)
        try:
            yield settings | {"FAKETIME_SHARED": shared}
        finally:
            holder.stdin.close()


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds; say whether it does within the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def command_line(pid: int) -> str:
    """Return the arguments of a process, without any when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _line(pid: int) -> set[int]:
    """Return a process and those that it descends from. A process whose parent died belongs to its session's leader."""
    found: set[int] = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            break
        parent, session = int(fields[1]), int(fields[3])
        pid = parent if parent > 1 else session
    return found


def _resident_mib(pid: int) -> float:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
    return 0.0
