"""A whole instance, controlled from outside by the `hearth` command."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hearth import process_records
from hearth.instance import instance as instances
from hearth.paths import agent_sockets_dir, gateway_sockets_dir, sockets_dir
from hearth.supervisor import lock
from tests.ports import INSTANCE_PORTS, free_ports
from workers.processes import ProcessIdentity, find_by_environment, is_running

NOT_OURS = ("DATABASE_URL", "DATABASE_OWNER_URL", "REDIS_URL", "HEARTH_ROLE", "DJANGO_SETTINGS_MODULE")


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance that is controlled by the command alone. ``settings`` are environment variables of its own."""

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        return inherited | {
            "HEARTH_DATA_DIR": str(self.folder),
            "HEARTH_PORT": str(self.port),
            **self.settings,
        }

    @property
    def up_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "up.json").read_text())
        return found

    def run(self, *arguments: str, timeout_seconds: float = 400) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hearth.cli", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def up(self, *options: str) -> dict[str, Any]:
        """Start it unless it runs, and return the content of up.json."""
        if not self._is_up():
            done = self.run("up", "--detach", "--engine", "simulated", *options)
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return self.up_json

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "--json").stdout)
        return found

    def _is_up(self) -> bool:
        """Return whether a supervisor runs and has written where to go, which it does when all is ready."""
        found = process_records.read_record(self.folder / "supervisor.json")
        return found is not None and is_running(found) and (self.folder / "up.json").exists()

    def supervisor(self) -> ProcessIdentity:
        found = process_records.read_record(self.folder / "supervisor.json")
        assert found is not None
        return found

    def engines(self) -> list[ProcessIdentity]:
        found = [process_records.read_record(path) for path in sorted((self.folder / "engines").glob("*.json"))]
        return [process for process in found if process is not None]

    def leftovers(self) -> list[str]:
        """Return what an instance must not leave behind: processes, ports, lock, sockets."""
        left = [
            f"process {process.pid}"
            for process, folder in find_by_environment("HEARTH_DATA_DIR").items()
            if folder == str(self.folder) and process.pid != os.getpid()
        ]
        for port in range(self.port, self.port + INSTANCE_PORTS):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    left.append(f"port {port}")
        if lock.is_held(self.folder / "lock"):
            left.append("lock")
        if any(named(self.folder).exists() for named in (sockets_dir, agent_sockets_dir, gateway_sockets_dir)):
            left.append("sockets")
        return left


def unstarted(data_dir: Path, port: int) -> instances.Instance:
    """Return an instance with embedded servers. Nothing is started or created."""
    return instances.Instance(
        data_dir=data_dir,
        host="127.0.0.1",
        port=port,
        metrics_host="127.0.0.1",
        metrics_port=port + 2,
        node="here",
        database_url="",
        database_owner_url="",
        redis_url="",
    )


@contextmanager
def instance_of_its_own(prefix: str, **settings: str) -> Iterator[Instance]:
    """Yield an instance in a temporary folder, on free ports, and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    folder.chmod(0o711)
    found = Instance(folder, free_ports(INSTANCE_PORTS), settings)
    try:
        yield found
    finally:
        found.run("down")
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition: Callable[[], bool], *, timeout_seconds: float = 60.0) -> None:
    """Wait until the condition holds; fail after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)
