"""Agents as real processes and threads, for tests with real engines."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

from django.db import connection

from tests import servers
from workers import node_role, processes
from workers.agent.agent import Agent
from workers.agent.processes.process_records import EngineRecord, ProcessRecords
from workers.agent.timeouts import Timeouts
from workers.devices.cpu import CpuShares
from workers.devices.provider import DeviceProvider
from workers.models import Placeholder, Replica
from workers.processes import ProcessIdentity
from workers.scheduler import reconciler
from workers.serving.canary import Canary, CanaryResult, CanarySink

T = TypeVar("T")
NODE = servers.NODE
#: Slots of each node in the tests' fleets.
SLOTS = 4
QUICK = Timeouts(
    round_seconds=0.2,
    eager_probe_seconds=0.05,
    probe_seconds=0.2,
    probe_timeout_seconds=0.5,
    quiet_seconds=1.0,
    canary_timeout_seconds=1.0,
    observe_seconds=0.2,
    unchanged_seconds=0.2,
    backoff_first_seconds=0.1,
    drain_least_seconds=0.2,
    slot_free_seconds=1.0,
    promotion_timeout_seconds=1.0,
    zygote_ping_seconds=0.5,
    devices_seconds=0.2,
    sweep_seconds=0.5,
    readings_seconds=0.2,
    store_readings_seconds=0.2,
    engine_shutdown_seconds=1.0,
    kill_after_seconds=3.0,
    fetch_backoff_first_seconds=0.1,
)


@dataclass
class KeptCanaries:
    """A sink that keeps the canaries."""

    begun: list[Canary] = field(default_factory=list)
    ended: list[CanaryResult] = field(default_factory=list)

    def begin(self, canary: Canary) -> None:
        self.begun.append(canary)

    def end(self, canary: Canary, result: CanaryResult) -> None:
        self.ended.append(result)

    def close(self) -> None:
        pass


@contextmanager
def agent_thread(
    data_dir: Path,
    sink: CanarySink | None = None,
    timeouts: Timeouts = QUICK,
    *,
    node: str = NODE,
    devices: DeviceProvider | None = None,
) -> Iterator[Agent]:
    """Run an agent in this process; leaving the block only detaches it."""
    kept = sink or KeptCanaries()
    agent = Agent(node, data_dir, lambda: kept, devices or CpuShares(SLOTS), sockets=data_dir / "s", timeouts=timeouts)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()


def celery_agent(data_dir: Path, *, as_node: bool = True) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run a real ``celery worker`` as the node's agent against the test database, with the rights of a node or all."""
    options = ("-Q", f"node.{NODE}", "--hearth-node", NODE, "--without-heartbeat")
    return celery_worker(data_dir, "agent", *options, urls=node_urls() if as_node else {})


@contextmanager
def celery_worker(
    data_dir: Path, name: str, *options: str, urls: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a real ``celery worker`` against the test database and Redis; leaving the block ends it with SIGTERM.

    ``urls``: addresses of the servers that differ from those of this process.
    """
    command = [sys.executable, "-m", "celery", "-A", "hearth", "worker", "-n", f"{name}@{NODE}", "-l", "INFO"]
    command += ["-P", "threads", "-c", "2", "--without-gossip", "--without-mingle", *options]
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "HEARTH_DATA_DIR": str(data_dir),
        "HEARTH_SLOTS": str(SLOTS),
        **(urls or {}),
    }
    with (data_dir / f"{name}.out").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def database_url() -> str:
    """Return the address of the test database that this process uses."""
    settings = connection.settings_dict
    user, password = quote(settings["USER"]), quote(settings["PASSWORD"])
    return f"postgresql://{user}:{password}@/{settings['NAME']}?host={quote(settings['HOST'], safe='/')}" + (
        f"&port={settings['PORT']}" if settings["PORT"] else ""
    )


def node_urls() -> dict[str, str]:
    """Return the servers' addresses as a node has them; empty where servers of your own have no such roles."""
    database, redis = servers.node_database_url(), servers.node_redis_url()
    if database is None or redis is None:
        return {}
    node_role.grant()
    own = urlsplit(database)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    return {"DATABASE_URL": own, "REDIS_URL": redis}


@contextmanager
def database_refusing_connections() -> Iterator[None]:
    """End every other connection to the test database and refuse new ones, as if the server were unavailable."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = current_user"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")


def until(what: Callable[[], T], *, seconds: float = 60.0) -> T:
    """Return the first true value of ``what``; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"not within {seconds} s; replicas: {list(Replica.objects.values())}, "
                f"placeholders: {list(Placeholder.objects.values())}"
            )
        time.sleep(0.02)
    return value


def settled(what: Callable[[], T], *, seconds: float = 60.0) -> T:
    """Reconcile repeatedly, as beat does, until ``what`` returns a true value."""

    def ask() -> T:
        reconciler.tick()
        return what()

    return until(ask, seconds=seconds)


def warm(level: str, count: int = 1, node: str = NODE) -> Callable[[], list[Placeholder]]:
    """Return a condition for :func:`until`: the node's warm placeholders, once there are ``count`` of them."""

    def ask() -> list[Placeholder]:
        rows = list(Placeholder.objects.filter(state="warm", level=level, node__name=node).order_by("id"))
        return rows if len(rows) == count else []

    return ask


def in_state(state: str, count: int = 1) -> Callable[[], list[Replica]]:
    """Return a condition for :func:`until`: the replicas in a state, once there are ``count`` of them."""

    def ask() -> list[Replica]:
        rows = list(Replica.objects.filter(state=state).order_by("id"))
        return rows if len(rows) == count else []

    return ask


def records(data_dir: Path) -> list[EngineRecord]:
    """Return the engines in the node's process records."""
    return list(ProcessRecords(data_dir / "engines", NODE).engines())


def identity_of(row: Replica | Placeholder) -> ProcessIdentity:
    """Return the process that the row names."""
    assert row.pid is not None and row.pid_start_ticks is not None
    return ProcessIdentity(pid=row.pid, start_ticks=row.pid_start_ticks)


def end_everything(data_dir: Path) -> None:
    """Kill what a test left running."""
    for record in ProcessRecords(data_dir / "engines", NODE).all_nodes():
        processes.kill_session(record.process, timeout_seconds=5)
    shutil.rmtree(data_dir / "s", ignore_errors=True)
    servers.remove_sockets(data_dir)
