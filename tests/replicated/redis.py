"""A real Redis primary, its replica and three Sentinels, on loopback ports and with passwords."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis, RedisError

from hearth.embedded.redis import binary, installed
from tests.ports import free_ports
from workers.processes import ProcessIdentity, kill_session, launch

PASSWORD = "only-for-this-test"
SENTINEL_PASSWORD = "only-for-these-sentinels"
NAME = "hearth"
#: How long the primary is silent before the Sentinels replace it.
DOWN_AFTER_MS = 1000
PATIENCE_SECONDS = 60.0
SENTINELS = 3


@dataclass(slots=True)
class SentinelSet:
    """Two servers and the Sentinels that watch them. The processes are named by their port."""

    folder: Path
    servers: tuple[int, int]
    sentinels: tuple[int, ...]
    _processes: dict[int, ProcessIdentity] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Return the address of whichever server is the primary."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        return f"redis+sentinel://:{PASSWORD}@{hosts}/{NAME}/0?sentinel_password={SENTINEL_PASSWORD}"

    @property
    def url_of_first(self) -> str:
        """Return the address of the server that begins as the primary."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.servers[0]}/0"

    def server(self, port: int) -> Redis:
        """Return a client of one server."""
        return Redis(port=port, password=PASSWORD, decode_responses=True, socket_timeout=5)

    def primary(self) -> int:
        """Return the port of the primary, as most of the Sentinels know it."""
        named = [self._named(port) for port in self.sentinels]
        return max(set(named), key=named.count)

    def kill(self, port: int) -> None:
        """Kill a server or a Sentinel."""
        kill_session(self._processes.pop(port), timeout_seconds=PATIENCE_SECONDS)

    def signal(self, port: int, number: signal.Signals) -> None:
        """Pause a process, or let it go on."""
        os.kill(self._processes[port].pid, number)

    def start_server(self, port: int, replica_of: int | None = None) -> None:
        """Start a server; behind another one, return when it has its data."""
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "requirepass": PASSWORD,
            "masterauth": PASSWORD,
            "appendonly": "no",
            "save": "",
            "maxmemory": "268435456",
            "maxmemory-policy": "noeviction",
            "repl-diskless-sync": "yes",
            "repl-diskless-sync-delay": "0",
            "dbfilename": f"{port}.rdb",
            "dir": str(self.folder),
            **({} if replica_of is None else {"replicaof": f"127.0.0.1 {replica_of}"}),
        }
        self._launch(port, [part for name, value in settings.items() for part in (f"--{name}", *value.split(" "))])
        wait_for(lambda: self._is_ready(port, replica=replica_of is not None))

    def start_sentinel(self, port: int) -> None:
        """Start a Sentinel that watches the first server."""
        file = self.folder / f"sentinel-{port}.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.folder}\nrequirepass {SENTINEL_PASSWORD}\n"
            f"sentinel monitor {NAME} 127.0.0.1 {self.servers[0]} 2\nsentinel auth-pass {NAME} {PASSWORD}\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}\nsentinel failover-timeout {NAME} 5000\n"
        )
        self._launch(port, [str(file), "--sentinel"])

    def replace_missing(self) -> None:
        """Start what is dead again, as a replica; return when the Sentinels would fail over once more."""
        for port in self.servers:
            if port not in self._processes:
                self.start_server(port, self.primary())
        self.wait_until_watched()

    def wait_until_watched(self) -> None:
        """Return when every Sentinel knows the replica and the other Sentinels."""
        wait_for(lambda: all(self._watches(port) for port in self.sentinels))

    def close(self) -> None:
        """Kill everything."""
        for port in tuple(self._processes):
            self.kill(port)

    def _launch(self, port: int, arguments: list[str]) -> None:
        found = installed()
        command = [str(binary() if found is None else found.path), *arguments]
        self._processes[port] = launch(command, log_path=self.folder / f"{port}.log", environment=os.environ)

    def _is_ready(self, port: int, *, replica: bool) -> bool:
        try:
            with self.server(port) as client:
                found = client.info("replication")
        except RedisError:
            return False
        return not replica or found.get("master_link_status") == "up"

    def has_replica(self, port: int) -> bool:
        """Return whether the server says that a replica has its data and follows it."""
        with self.server(port) as client:
            found = client.info("replication")
        return any(found[key]["state"] == "online" for key in found if re.fullmatch(r"slave\d+", key))

    def _named(self, sentinel: int) -> int:
        with self._sentinel(sentinel) as client:
            return int(client.sentinel_get_master_addr_by_name(NAME)[1])

    def _watches(self, sentinel: int) -> bool:
        try:
            with self._sentinel(sentinel) as client:
                found = client.sentinel_master(NAME)
                replicas = client.sentinel_slaves(NAME)
        except RedisError:
            return False
        alive = [each for each in replicas if each["master-link-status"] == "ok" and not each["is_sdown"]]
        return found["num-other-sentinels"] == SENTINELS - 1 and len(alive) == 1

    def _sentinel(self, port: int) -> Redis:
        return Redis(port=port, password=SENTINEL_PASSWORD, decode_responses=True, socket_timeout=5)


@contextmanager
def running() -> Iterator[SentinelSet]:
    """Run all five during the block."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-sentinels-"))
    first = free_ports(2 + SENTINELS)
    found = SentinelSet(
        folder=folder, servers=(first, first + 1), sentinels=tuple(range(first + 2, first + 2 + SENTINELS))
    )
    try:
        found.start_server(first)
        found.start_server(first + 1, first)
        for port in found.sentinels:
            found.start_sentinel(port)
        found.wait_until_watched()
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def pair() -> Iterator[SentinelSet]:
    """Run a primary and its replica during the block, and no Sentinels."""
    folder = Path(tempfile.mkdtemp(prefix="hearth-replica-"))
    first = free_ports(2)
    found = SentinelSet(folder=folder, servers=(first, first + 1), sentinels=())
    try:
        found.start_server(first)
        found.start_server(first + 1, first)
        # The replica knows first that it follows. Hearth asks the primary.
        wait_for(lambda: found.has_replica(first))
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)
