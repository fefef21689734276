"""One zygote for tests, started by its driver as the agent starts it."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.engines.replica import WHOLE_HASHES, Replica, events_arguments, spec_for, wait_until_healthy
from workers import processes
from workers.engines import zygote_client
from workers.engines.choice import driver_for
from workers.engines.driver import EngineCommand, EngineSpec
from workers.engines.errors import ZygoteError
from workers.processes import ProcessIdentity

WARM_BUDGET_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Waiting:
    """A warm zygote. ``spec`` is that of the engine it can become, whose sockets and log are in ``folder``."""

    kind: str
    spec: EngineSpec
    process: "subprocess.Popen[bytes]"
    folder: Path

    @property
    def socket_path(self) -> Path:
        return self.folder / "zygote.sock"

    @property
    def leader(self) -> ProcessIdentity:
        """Return the process, which leads its session."""
        found = processes.identify(self.process.pid)
        assert found is not None, self.log()
        return found

    @property
    def command(self) -> EngineCommand:
        """Return the command of a plain start of the engine."""
        return driver_for(self.kind).command(self.spec)

    def log(self) -> str:
        """Return what the zygote wrote before its promotion."""
        return (self.folder / "zygote.log").read_text(errors="replace")

    def status(self) -> zygote_client.ZygoteStatus:
        return zygote_client.ping(self.socket_path, 10)

    def promote(self) -> Replica:
        """Promote it and return the engine once it is healthy."""
        pid = zygote_client.become(self.socket_path, self.command, self.spec.log_path, 10)
        assert pid == self.process.pid
        replica = Replica(self.kind, self.spec, self.process)
        wait_until_healthy(replica, driver_for(self.kind).startup_budget_seconds)
        return replica


@contextlib.contextmanager
def waiting(kind: str, **changes: Any) -> Iterator[Waiting]:
    """Start a zygote, wait until it is warm, and kill its session at the end, whatever it is by then."""
    folder = Path(tempfile.mkdtemp(prefix="zygote-"))
    try:
        spec = spec_for(folder, **changes)
        spec = replace(spec, engine_args=(*spec.engine_args, *events_arguments(folder)))
        # It is not known yet which replica it will be.
        expected = replace(spec, replica_id="nobody", served_name="another", port=9, development_routes=False)
        command = driver_for(kind).zygote(expected, folder / "zygote.sock")
        assert command is not None
        with (folder / "zygote.log").open("wb") as log:
            process = subprocess.Popen(
                command.argv,
                env=command.environment(os.environ) | WHOLE_HASHES,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = processes.identify(process.pid)
        assert started is not None
        zygote = Waiting(kind, spec, process, folder)
        try:
            wait_until_warm(zygote)
            yield zygote
        finally:
            assert processes.kill_session(started, timeout_seconds=30)
            process.wait(30)
    finally:
        shutil.rmtree(folder)


def wait_until_warm(zygote: Waiting) -> zygote_client.ZygoteStatus:
    """Return its first answer; fail when it ends or takes too long."""
    deadline = time.monotonic() + WARM_BUDGET_SECONDS
    while time.monotonic() < deadline:
        assert zygote.process.poll() is None, zygote.log()
        with contextlib.suppress(ZygoteError):
            return zygote.status()
        time.sleep(0.05)
    raise AssertionError(f"not warm after {WARM_BUDGET_SECONDS} s: {zygote.log()}")
