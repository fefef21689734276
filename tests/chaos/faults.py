"""What can break, by kind. A fault is drawn from a seed, strikes, and undoes what it can undo itself."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import psycopg

from tests.chaos.world import ENGINE_KINDS, ROLES, SERVERS, World
from tests.journey.instance import Engine

Strike = Callable[[World, Random], None]
#: Longest pause of processes, seconds.
LONGEST_PAUSE_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. ``weight``: how often it is drawn, beside the others."""

    kind: str
    strike: Strike
    weight: int = 1
    needs_small_disk: bool = False
    needs_moving_clock: bool = False


def _kill(name: str) -> Strike:
    def strike(world: World, random: Random) -> None:
        pids = world.pids(name)
        if pids:
            _signal([random.choice(pids) if name in ENGINE_KINDS else pids[0]], signal.SIGKILL)

    return strike


def _pause(name: str) -> Strike:
    def strike(world: World, random: Random) -> None:
        pids = world.pids(name)
        seconds = random.uniform(1, LONGEST_PAUSE_SECONDS)
        if pids:
            first = random.choice(pids) if name in ENGINE_KINDS else pids[0]
            with _stopped(_family(first)):
                time.sleep(seconds)

    return strike


def _kill_half_the_roles(world: World, random: Random) -> None:
    _signal([pid for name in random.sample(ROLES, len(ROLES) // 2) for pid in world.pids(name)], signal.SIGKILL)


def _kill_the_supervisor(world: World, _: Random) -> None:
    """Kill it alone; the next `hearth up` takes over what runs."""
    _signal(world.pids("supervisor"), signal.SIGKILL)
    world.up()


def _kill_everything(world: World, _: Random) -> None:
    _signal(world.pids("supervisor") + [process.pid for process in world.ours()], signal.SIGKILL)
    _signal([pid for name in SERVERS for pid in world.pids(name)], signal.SIGKILL)
    world.up()


def _kill_a_backend(world: World, random: Random) -> None:
    backends = [pid for pid in _family(world.pids("postgres")[0])[1:] if b"hearth" in _title(pid)]
    if backends:
        _signal([random.choice(backends)], signal.SIGKILL)


def _reset_database_connections(world: World, _: Random) -> None:
    with contextlib.suppress(psycopg.Error), world.database() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = current_user"
            " AND pid <> pg_backend_pid()"
        )


def _reset_redis_connections(world: World, _: Random) -> None:
    world.redis().client_kill_filter(_type="normal", skipme=True)


def _slow_redis(world: World, random: Random) -> None:
    """Let every command wait again and again for longer than a gateway waits for one."""
    client = world.redis()
    end = time.monotonic() + random.uniform(2, 6)
    while time.monotonic() < end:
        client.client_pause(random.randrange(20, 200))
        time.sleep(0.25)


def _slow_database(world: World, random: Random) -> None:
    """Stop every process of it for a part of each second."""
    end = time.monotonic() + random.uniform(2, 6)
    while time.monotonic() < end:
        with _stopped(_family(world.pids("postgres")[0])):
            time.sleep(random.uniform(0.1, 0.8))
        time.sleep(0.2)


def _lose_redis(world: World, _: Random) -> None:
    world.redis().flushall()


def _engine_fault(**values: float) -> Strike:
    """Switch faults of one simulated engine on for some seconds."""

    def strike(world: World, random: Random) -> None:
        engine = random.choice(world.engines())
        _set_engine_faults(engine, {name.replace("_", "-"): value for name, value in values.items()})
        time.sleep(random.uniform(2, 6))
        _set_engine_faults(engine, {name.replace("_", "-"): None for name in values})

    return strike


def _set_engine_faults(engine: Engine, values: dict[str, float | None]) -> None:
    request = urllib.request.Request(
        f"http://{engine.host}:{engine.port}/_sim/faults",
        data=json.dumps(values).encode(),
        headers={"content-type": "application/json", "authorization": f"Bearer {engine.key}"},
    )
    with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):
        pass


def _fill_the_disk(world: World, random: Random) -> None:
    """Fill the file system of the usage log, and empty it again."""
    filler = world.log_folder / "filler"
    block = bytes(65536)
    try:
        with filler.open("wb", buffering=0) as file:
            end = time.monotonic() + random.uniform(2, 8)
            while time.monotonic() < end:
                try:
                    file.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    time.sleep(0.05)
    finally:
        filler.unlink(missing_ok=True)


def _step_the_clock(seconds: Sequence[float]) -> Strike:
    """Move the clock of every process, for good."""

    def strike(world: World, random: Random) -> None:
        assert world.clock is not None
        now = float(world.clock.read_text())
        world.clock.write_text(f"{now + random.choice(seconds):+f}")
        time.sleep(2)

    return strike


KILLS = [Fault(f"kill {name}", _kill(name), 3) for name in (*ROLES, *SERVERS, *ENGINE_KINDS)]
PAUSES = [
    Fault(f"pause {name}", _pause(name))
    for name in ("gateway", "drain", "agent", "control", "inference", "portal", *SERVERS, "engine")
]
FAULTS: tuple[Fault, ...] = (
    *KILLS,
    *PAUSES,
    Fault("kill half the roles", _kill_half_the_roles),
    Fault("kill the supervisor", _kill_the_supervisor),
    Fault("kill everything", _kill_everything, 2),
    Fault("kill a database backend", _kill_a_backend, 2),
    Fault("reset database connections", _reset_database_connections, 2),
    Fault("reset Redis connections", _reset_redis_connections, 2),
    Fault("slow Redis", _slow_redis, 2),
    Fault("slow database", _slow_database, 2),
    Fault("lose Redis' data", _lose_redis, 2),
    Fault("engine cuts responses", _engine_fault(cut_after_tokens=5), 2),
    Fault("engine answers 500", _engine_fault(error_rate=0.7), 2),
    Fault("engine slow", _engine_fault(latency=2.0)),
    Fault("engine hangs", _engine_fault(hang_after_tokens=3)),
    Fault("engine unhealthy", _engine_fault(unhealthy=1)),
    Fault("log's disk full", _fill_the_disk, 3, needs_small_disk=True),
    Fault("clock steps forward", _step_the_clock((0.5, 5, 60, 3600)), needs_moving_clock=True),
    Fault("clock steps back", _step_the_clock((-0.5, -5, -60)), needs_moving_clock=True),
)
BY_KIND = {fault.kind: fault for fault in FAULTS}


def drawn(seed: int, count: int, *, small_disk: bool, moving_clock: bool) -> Iterator[tuple[Fault, Random]]:
    """Return the faults of a seed, each with the numbers that it draws from."""
    possible = [
        fault
        for fault in FAULTS
        if (small_disk or not fault.needs_small_disk) and (moving_clock or not fault.needs_moving_clock)
    ]
    random = Random(f"faults {seed}")
    for number in range(count):
        fault = random.choices(possible, [each.weight for each in possible])[0]
        yield fault, Random(f"fault {seed} {number}")


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    try:
        _signal(pids, signal.SIGSTOP)
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _family(pid: int) -> list[int]:
    """Return a process and all that descend from it, without engines: those outlive their agent."""
    found = [pid]
    for path in (f"/proc/{pid}/task",):
        with contextlib.suppress(OSError):
            for task in os.listdir(path):
                with open(f"{path}/{task}/children") as children:
                    for child in children.read().split():
                        if os.getsid(int(child)) == os.getsid(pid):
                            found += _family(int(child))
    return found


def _title(pid: int) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""
