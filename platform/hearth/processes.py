"""Name, find and end processes without ever mistaking one for another.

A pid is reused; a pid with its start time (clock ticks since boot, field 22 of ``/proc/<pid>/stat``) is not.
Every process that Hearth starts leads a session of its own, so its session id is its pid, and what it leaves
behind when it dies can still be found. Linux only: everything here reads ``/proc``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

POLL_SECONDS = 0.02
#: Python ignores the first two and a shell may ignore the others; a program expects the defaults.
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process, for as long as the machine is up."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    state: str
    session: int
    start_ticks: int


def launch(command: Sequence[str], *, log_path: Path, environment: Mapping[str, str] | None = None) -> ProcessIdentity:
    """Start a program in a session of its own, both outputs appended to ``log_path``, no input.

    It is our child: when it ends it stays a zombie until :func:`exit_status` collects it. Raises OSError when the
    program cannot be run; a program that ends at once is no error here.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        list(command),
        dict(os.environ if environment is None else environment),
        file_actions=(
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_path), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ),
        setsid=True,
        setsigdef=DEFAULT_SIGNALS,
    )
    stat = _read_stat(pid)
    assert stat is not None, "a child keeps its entry until its parent collects it"
    return ProcessIdentity(pid=pid, start_ticks=stat.start_ticks)


def exit_status(child: ProcessIdentity) -> int | None:
    """Collect a child that ended: its exit code, or minus the signal that ended it. None while it runs.

    Raises ChildProcessError when it is no child of ours or was collected before.
    """
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    return None if pid == 0 else os.waitstatus_to_exitcode(status)


def forget(process: ProcessIdentity) -> None:
    """Collect a process that ended, if it was our child: a zombie keeps its pid, which others take for alive."""
    with contextlib.suppress(ChildProcessError):
        exit_status(process)


def identify(pid: int) -> ProcessIdentity | None:
    """Return who ``pid`` is now; None when it is gone or a zombie."""
    stat = _read_stat(pid)
    if stat is None or stat.state == "Z":
        return None
    return ProcessIdentity(pid=pid, start_ticks=stat.start_ticks)


def is_running(process: ProcessIdentity) -> bool:
    """Return True while exactly this process lives; a zombie does not."""
    return identify(process.pid) == process


def session_members(leader: ProcessIdentity) -> list[ProcessIdentity]:
    """Return the living processes of the session that ``leader`` leads or led, the leader among them.

    Empty when the leader's pid now belongs to a stranger. A member that started before the leader belongs to an
    older session of the same number and is left out.
    """
    now = identify(leader.pid)
    if now is not None and now != leader:
        return []
    members = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        stat = _read_stat(int(entry.name))
        if stat is None or stat.session != leader.pid or stat.state == "Z":
            continue
        if stat.start_ticks >= leader.start_ticks:
            members.append(ProcessIdentity(pid=int(entry.name), start_ticks=stat.start_ticks))
    return members


def request_end(leader: ProcessIdentity) -> None:
    """Send SIGTERM to the leader alone, which ends its children in its own order; to what it left if it is dead."""
    _signal([leader] if is_running(leader) else session_members(leader), signal.SIGTERM)


def end_session(leader: ProcessIdentity, *, grace_seconds: float) -> None:
    """End a whole session: SIGTERM, then SIGKILL for what is left after ``grace_seconds`` (0: at once).

    Returns when nothing of it lives, or after 5 more seconds for a process stuck in the kernel. Idempotent.
    """
    deadline = time.monotonic() + grace_seconds
    if grace_seconds > 0:
        request_end(leader)
        while session_members(leader) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + 5
    while (left := session_members(leader)) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def wait_until_gone(process: ProcessIdentity, *, timeout_seconds: float) -> bool:
    """Return True once the process is gone, False when it outlives the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while is_running(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def write_record(path: Path, process: ProcessIdentity) -> None:
    """Record a process in ``path``, atomically, so that a later start can find what a killed one left."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(process)))
    temporary.replace(path)


def read_record(path: Path) -> ProcessIdentity | None:
    """Return the recorded process, alive or not; None when there is no readable record."""
    try:
        record = json.loads(path.read_text())
        return ProcessIdentity(pid=int(record["pid"]), start_ticks=int(record["start_ticks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _signal(processes: list[ProcessIdentity], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the command name, in parentheses, may itself hold spaces and parentheses
    fields = text.rpartition(")")[2].split()
    return _Stat(state=fields[0], session=int(fields[3]), start_ticks=int(fields[19]))
