"""Where one node's agent keeps the files that outlive it: records, logs, sockets; and how it marks its processes."""

from __future__ import annotations

import contextlib
import errno
import random
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from workers import log_files, processes
from workers.agent.processes.engine_account import EngineAccount
from workers.agent.processes.process_records import ProcessRecords, Record
from workers.engines import engine_log

#: In the environment of every process that an agent starts: the agent, and the fence at the start. So a process whose
#: record is missing is found too.
OWNER_VARIABLE = "HEARTH_ENGINE_OF"
FENCE_VARIABLE = "HEARTH_ENGINE_FENCE"
#: Prefixes of the logs of those processes: they identify a process that has overwritten its environment.
LOG_PREFIXES = ("engine-", "zygote-", "weights-")
#: How long the log of a process that has ended is kept.
LOG_SECONDS = 14 * 86_400
#: How many such logs are kept at most, the newest.
MOST_LOGS = 50
#: A younger socket may be one that its engine is about to listen on.
SOCKET_SECONDS = 60
#: vLLM names its sockets by random UUIDs.
_RANDOM_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The data directory, a folder for sockets whose path is short, and the account that engines run as."""

    data: Path
    sockets: Path
    account: EngineAccount


class AgentPaths:
    """The files of one node's agent. ``address`` is where its engines listen."""

    def __init__(self, *, node: str, address: str, folders: Folders) -> None:
        self.node = node
        self.address = address
        self.registry = ProcessRecords(folders.data / "engines", node)
        self.logs = folders.data / "logs"
        self.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs = self.logs.resolve()  # as the kernel names the files that a process has open
        self.boot_id = processes.boot_id()
        self.data = folders.data
        self.sockets = folders.sockets
        self.account = folders.account
        #: Locked by the running agent.
        self.agent_lock = agent_lock(folders.data, node)

    @property
    def owner(self) -> str:
        """The mark of this agent's processes."""
        return f"{self.node} {self.registry.folder}"

    def engine_log(self, replica_id: UUID) -> Path:
        """Return the log of a replica's engines."""
        return self.logs / engine_log.name_of(replica_id)

    def zygote_log(self, placeholder_id: UUID) -> Path:
        """Return the log of a placeholder's zygotes."""
        return self.logs / f"zygote-{str(placeholder_id)[-8:]}.log"

    def weights_log(self, weights_id: UUID) -> Path:
        """Return the log of the process that fetches a model's files."""
        return self.logs / f"weights-{str(weights_id)[-8:]}.log"

    def zygote_socket(self, placeholder_id: UUID) -> Path:
        """Return where a placeholder's zygote listens. The folder may not exist yet; see :meth:`make_sockets`."""
        return self.sockets / f"z-{placeholder_id.hex[-12:]}"

    def make_sockets(self) -> None:
        """Create the folder of sockets, which only agent and engines enter. Raises OSError if another user can."""
        self.sockets.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        self.account.share(self.sockets)

    def drop_old_sockets(self) -> None:
        """Remove the sockets between an engine's own processes that nothing listens on: vLLM leaves them behind."""
        newest = time.time() - SOCKET_SECONDS
        with contextlib.suppress(FileNotFoundError):
            for path in self.sockets.iterdir():
                with contextlib.suppress(OSError):
                    if _RANDOM_NAME.fullmatch(path.name) and path.lstat().st_mtime < newest and _is_deserted(path):
                        path.unlink()

    def tend_logs(self) -> None:
        """Cut logs that are too large. Of those that no process has open, remove old ones and all but MOST_LOGS."""
        used = {processes.output_of(process) for process in processes.find_by_output(self.logs, LOG_PREFIXES)}
        with contextlib.suppress(OSError):  # an error here must not stop the agent
            for log in used:
                if log is not None:
                    log_files.rotate(log)
        oldest = time.time() - LOG_SECONDS
        ended = sorted(((_written_at(path), path) for path in self._own_logs() if path not in used), reverse=True)
        for place, (written_at, path) in enumerate(ended):
            if written_at < oldest or place >= MOST_LOGS:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _own_logs(self) -> list[Path]:
        """Return the logs of engines, zygotes and fetches, and their earlier parts."""
        return [path for path in self.logs.iterdir() if path.name.startswith(LOG_PREFIXES)]

    def kill(self, record: Record) -> None:
        """Kill a recorded process and its group, and return at once: :meth:`end` waits for its end."""
        if record.boot_id == self.boot_id:
            processes.kill_group(record.process)

    def end(self, record: Record, *, timeout_seconds: float) -> bool:
        """Kill a recorded process and its session, and remove the record; False if a process outlives the timeout."""
        if record.boot_id == self.boot_id and not processes.kill_session(
            record.process, timeout_seconds=timeout_seconds
        ):
            return False
        self.registry.forget(record.holder_id)
        return True


def _written_at(path: Path) -> float:
    """Return when a file was last written to, in seconds since the epoch; now if that is unknown."""
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def agent_lock(data: Path, node: str) -> Path:
    """Return the file that a node's agent keeps locked while it runs."""
    return data / f"agent-{node}.lock"


def _is_deserted(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def free_port(address: str, ports: range | None = None) -> int:
    """Return a TCP port that was free a moment ago, of ``ports`` if given. Raises OSError if none is.

    An engine that finds it in use ends and starts on another one.
    """
    for port in (0,) if ports is None else random.sample(ports, len(ports)):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE or ports is None:
                    raise
            else:
                return int(probe.getsockname()[1])
    assert ports is not None
    raise OSError(errno.EADDRINUSE, f"every port from {ports[0]} to {ports[-1]} (HEARTH_ENGINE_PORTS) is in use")
