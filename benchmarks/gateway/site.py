"""Where a run happens: its folder, its cores, its upstream; and the processes it starts."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.errors import NotRun
from benchmarks.machine import Cores
from hearth.process_records import end_session, write_record
from workers.processes import ProcessIdentity, collect, is_running, launch, session_members, signal_session

TASKSET = "/usr/bin/taskset"
#: Ends a program when the benchmark itself is killed and cannot.
SETPRIV = "/usr/bin/setpriv"
#: Files by which a later run finds what a killed one left: a worker outlives the server that setpriv ended.
RECORD_SUFFIX = ".process.json"
READY_TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.1
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One run's place. What ``cleanup`` holds is undone when the run ends, however it ends."""

    folder: Path
    cores: Cores
    cleanup: ExitStack
    upstream_port: int = 0

    @property
    def upstream_url(self) -> str:
        return f"http://127.0.0.1:{self.upstream_port}"

    def log_path(self, name: str) -> Path:
        """Return the file that both outputs of a process go to."""
        return self.folder / f"{name}.log"

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], *, cores: Sequence[int] = ()
    ) -> Running:
        """Start a program, on these cores if any are named; it ends with the run."""
        pinned = (TASKSET, "--cpu-list", ",".join(map(str, cores))) if cores else ()
        process = launch(
            [SETPRIV, "--pdeathsig", "KILL", *pinned, *command], log_path=self.log_path(name), environment=environment
        )
        write_record(self.folder / f"{name}{RECORD_SUFFIX}", process)
        running = Running(name=name, process=process, log_path=self.log_path(name))
        self.cleanup.callback(running.end)
        return running


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process of the run and its children."""

    name: str
    process: ProcessIdentity
    log_path: Path

    def end(self) -> None:
        """End all of it: SIGTERM, then SIGKILL after three seconds. Idempotent."""
        self.resume()
        end_session(self.process, grace_seconds=3)
        collect(self.process)

    def pause(self) -> None:
        """Stop all of it, so that it takes no processor time from the contender that is measured."""
        signal_session(self.process, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        signal_session(self.process, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the processor time that its living processes have used, to 10 ms."""
        times = [member.cpu_times() for member in self._members()]
        return sum(spent.user + spent.system for spent in times)

    def memory_bytes(self) -> int:
        """Return its resident memory, pages that its processes share counted once (PSS)."""
        return sum(member.memory_full_info().pss for member in self._members())

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until it is ready. Raises NotRun, with its last words, when it ends or takes too long."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            if not is_running(self.process):
                raise NotRun("it ended while starting", self._last_words())
            if ready():
                return
            time.sleep(POLL_SECONDS)
        raise NotRun(f"it was not ready after {READY_TIMEOUT_SECONDS:.0f} s", self._last_words())

    def _members(self) -> list[psutil.Process]:
        found = []
        for member in session_members(self.process):
            try:
                found.append(psutil.Process(member.pid))
            except psutil.NoSuchProcess:
                continue
        return found

    def _last_words(self) -> str:
        lines = _COLOUR.sub("", self.log_path.read_text(errors="replace")).strip().splitlines()
        return "\n".join(lines[-8:])


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
