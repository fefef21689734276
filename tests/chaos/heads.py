"""Two heads on a replicated PostgreSQL and a Redis behind Sentinels, and the faults that only they have."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import redis

from hearth import process_records, secrets
from tenants import redis_address
from tests.chaos.faults import Fault, Strike
from tests.chaos.world import REPLICAS, World, until
from tests.hearth.instances import NOT_OURS, unstarted
from tests.hearth.instances import Instance as Started
from tests.journey.instance import Engine, Instance
from tests.ports import INSTANCE_PORTS, free_ports
from tests.replicated import postgres as replicated_postgres
from tests.replicated import redis as replicated_redis
from tests.replicated.postgres import PostgresPair
from tests.replicated.redis import SentinelSet
from workers.processes import ProcessIdentity, find_by_environment, kill_session

HEARTH = (sys.executable, "-m", "hearth.cli")
#: Slots of each head: all replicas of one head find room on the other, but for those that it has itself.
SLOTS = 3
START_SECONDS = 180


@dataclass(slots=True)
class Heads(World):
    """The first machine runs `hearth up`, the second one `hearth node --head`. Everything of World is the first's."""

    pair: PostgresPair = field(kw_only=True)
    sentinels: SentinelSet = field(kw_only=True)
    second_folder: Path = field(kw_only=True)
    second_environment: dict[str, str] = field(kw_only=True)
    _second: subprocess.Popen[bytes] | None = None

    def api_bases(self) -> tuple[str, ...]:
        """Return the addresses of both gateways."""
        return (self.api.api_base, f"http://127.0.0.1:{self.second_environment['HEARTH_PORT']}/v1")

    def folders(self) -> tuple[Path, Path]:
        """Return the data directories of both heads."""
        return self.folder, self.second_folder

    def engines(self) -> list[Engine]:
        """Return the engines of both machines."""
        second = Instance(self.second_folder, self.second_environment, HEARTH, self.api.up)
        return [*self.api.engines(), *second.engines()]

    def engine_pids(self, head: int) -> set[int]:
        """Return the living engines and placeholders of one machine."""
        return {process.pid for process in _engines(self.folders()[head])}

    def start(self, head: int) -> None:
        """Start a head, or what is missing of it."""
        if head == 0:
            self.up()
            return
        with (self.second_folder / "node.log").open("ab") as log:
            command = [*HEARTH, "node", "--head", "--engine", "simulated"]
            self._second = subprocess.Popen(
                command, env=self.second_environment, stdout=log, stderr=log, start_new_session=True
            )
        started = self._second
        assert until((self.second_folder / "node.json").exists, START_SECONDS), started.poll()

    def join(self) -> None:
        """Give the second machine the secrets of the first, and start it."""
        exported = subprocess.run(
            [*HEARTH, "secrets", "export", "--all", "-"], env=self.environment, capture_output=True, check=True
        )
        subprocess.run(
            [*HEARTH, "secrets", "import", "-"], env=self.second_environment, input=exported.stdout, check=True
        )
        self.start(1)

    def kill(self, head: int, *, engines: bool) -> None:
        """Kill every process of a head at once, its engines only if asked."""
        folder = self.folders()[head]
        if engines:
            for engine in _engines(folder):
                kill_session(engine, timeout_seconds=10)
        for _ in range(3):  # the supervisor may start a role while it dies
            for process in _processes(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        if engines:
            for engine in _engines(folder):  # what the agent started meanwhile
                kill_session(engine, timeout_seconds=10)
        (folder / "node.json").unlink(missing_ok=True)
        if head == 1 and self._second is not None:
            self._second.wait()

    def ready(self) -> bool:
        """Return whether both heads serve every model, and every replica is ready."""
        try:
            fleet = self.api.operator("/fleet")
            statuses = [
                Instance(self.folder, self.environment, HEARTH, {**self.api.up, "api_base": base})
                .call(f"/models/{name}", self.keys[0])
                .status
                for base in self.api_bases()
                for name in REPLICAS
            ]
        except OSError:
            return False
        if fleet.status != 200 or set(statuses) != {200}:
            return False
        ready = {
            each["name"]: sum(row["state"] == "ready" for row in each["replicas"])
            for each in fleet.json()["deployments"]
        }
        return all(ready.get(name) == count for name, count in REPLICAS.items())

    def database(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return a connection to whichever server is the primary."""
        return psycopg.connect(self.pair.app_url)

    def redis(self) -> redis.Redis:
        """Return a client of whichever server is the primary."""
        return redis_address.client(self.sentinels.url, socket_timeout=10)

    def resident_mib(self) -> dict[str, float]:
        """Return nothing: memory is compared where nothing is restarted on purpose."""
        return {}

    def strays(self) -> list[str]:
        """Return nothing: each head ends what it left at its next start."""
        return []

    def close(self) -> None:
        """Stop both heads."""
        if self._second is not None and self._second.poll() is None:
            subprocess.run([*HEARTH, "down"], env=self.second_environment, check=False, capture_output=True)
            self._second.wait()


def _processes(folder: Path) -> list[ProcessIdentity]:
    every = find_by_environment("HEARTH_DATA_DIR").items()
    return [process for process, data in every if data == str(folder) and process.pid != os.getpid()]


def _engines(folder: Path) -> list[ProcessIdentity]:
    found = [process_records.read_record(path) for path in sorted((folder / "engines").glob("*.json"))]
    return [process for process in found if process is not None]


@contextmanager
def running() -> Iterator[Heads]:
    """Run both heads and their servers for as long as the block lasts."""
    with contextlib.ExitStack() as undo:
        first, second = (_folder(undo) for _ in range(2))
        passwords = secrets.load_or_create(first).database_passwords
        pair = undo.enter_context(replicated_postgres.running(passwords))
        sentinels = undo.enter_context(replicated_redis.running())
        pair.synchronous("*")
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        common = inherited | {
            "DATABASE_URL": pair.app_url,
            "REDIS_URL": sentinels.url,
            "HEARTH_SLOTS": str(SLOTS),
            "HEARTH_ENGINE_TIMEOUT_SECONDS": "10",
        }
        ports = [free_ports(INSTANCE_PORTS) for _ in range(2)]
        world = Heads(
            folder=first,
            environment=common
            | {"DATABASE_OWNER_URL": pair.owner_url, "HEARTH_DATA_DIR": str(first), "HEARTH_PORT": str(ports[0])}
            | {"HEARTH_NODE": "first"},
            instance=unstarted(first, ports[0]),
            pair=pair,
            sentinels=sentinels,
            second_folder=second,
            second_environment=common
            | {"HEARTH_DATA_DIR": str(second), "HEARTH_PORT": str(ports[1])}
            | {"HEARTH_NODE": "second", "HEARTH_NODE_ADDRESS": "127.0.0.2"},
        )
        undo.callback(world.hearth, "down")
        undo.callback(world.close)
        world.up()
        world.join()
        world.fill()
        assert world.wait_until_ready(), world.api.hearth("status").stdout
        yield world


def leftovers(world: Heads) -> list[str]:
    """Return what both stopped heads have left behind: processes, ports, lock, sockets."""
    ports = (int(world.environment["HEARTH_PORT"]), int(world.second_environment["HEARTH_PORT"]))
    both = zip(world.folders(), ports, strict=True)
    return [each for folder, port in both for each in Started(folder, port).leftovers()]


def _folder(undo: contextlib.ExitStack) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="hearth-head-"))
    folder.chmod(0o711)
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _as_heads(world: World) -> Heads:
    assert isinstance(world, Heads), "this fault needs two heads"
    return world


def _fail_postgres_over(world: World, _: Random) -> None:
    """Kill the primary, promote its standby, and make a new standby."""
    pair = _as_heads(world).pair
    pair.fail_over()
    pair.rebuild_standby()
    pair.synchronous("*")


def _fail_redis_over(world: World, _: Random) -> None:
    """Kill the primary, let the Sentinels replace it, and start it again as a replica."""
    sentinels = _as_heads(world).sentinels
    before = sentinels.primary()
    sentinels.kill(before)
    replicated_redis.wait_for(lambda: sentinels.primary() != before)
    sentinels.replace_missing()


def _kill_head(head: int, *, engines: bool) -> Strike:
    def strike(world: World, random: Random) -> None:
        heads = _as_heads(world)
        before = heads.engine_pids(head)
        heads.kill(head, engines=engines)
        if engines:
            time.sleep(random.uniform(1, 10))
        heads.start(head)
        if not engines:
            assert before & heads.engine_pids(head), "the head has adopted none of its engines"

    return strike


FAULTS: tuple[Fault, ...] = (
    Fault("fail PostgreSQL over", _fail_postgres_over, 2),
    Fault("fail Redis over", _fail_redis_over, 2),
    *(
        Fault(f"kill the {name} head{' and its engines' if engines else ''}", _kill_head(head, engines=engines))
        for head, name in enumerate(("first", "second"))
        for engines in (False, True)
    ),
)
BY_KIND = {fault.kind: fault for fault in FAULTS}


def drawn(seed: int, count: int) -> Iterator[tuple[Fault, Random]]:
    """Return the faults of a seed, each with the numbers that it draws from."""
    random = Random(f"heads {seed}")
    for number in range(count):
        yield random.choices(FAULTS, [each.weight for each in FAULTS])[0], Random(f"head {seed} {number}")
