"""Identify, start, find and end processes without mistaking one for another. No Django here; Linux only.

A pid is reused; a pid with its start time (clock ticks since boot, field 22 of ``/proc/<pid>/stat``) is not, within
one boot. Every process started here leads its own session, so that processes which outlive it are still found: killing
only the process that was started leaves vLLM's engine core alive with its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.01
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: A caller of kill_session helps to free no more than this, which takes it half a second.
FREED_HERE_BYTES = 4 << 30
_libc = ctypes.CDLL(None)
#: The same number on every architecture; since Linux 5.15.
_PROCESS_MRELEASE = 448
#: Python ignores the first two and a shell may ignore the others, but programs expect the defaults.
DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process, for as long as the machine is up."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """What a process has used. ``resident_bytes`` counts pages that it shares with others."""

    process: ProcessIdentity
    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    state: str
    session: int
    start_ticks: int
    cpu_ticks: int
    resident_pages: int


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def launch(
    command: Sequence[str], *, log_path: Path, environment: Mapping[str, str], given: bytes = b""
) -> ProcessIdentity:
    """Start a program in its own session, with ``given`` as its input, and append both its outputs to ``log_path``.

    ``given`` must fit into a pipe, which holds 64 KiB. The program is a child of this process and stays a zombie after
    its end until :func:`collect`. Raises OSError if it cannot be run; a program that ends at once is not an error here.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(given)
        pid = os.posix_spawn(
            command[0],
            list(command),
            dict(environment),
            file_actions=(
                (os.POSIX_SPAWN_DUP2, reader, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log_path), flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ),
            setsid=True,
            setsigmask=(),
            setsigdef=DEFAULT_SIGNALS,
        )
    finally:
        os.close(reader)
    stat = _read_stat(pid)
    assert stat is not None, "a child keeps its entry until its parent collects it"
    return ProcessIdentity(pid=pid, start_ticks=stat.start_ticks)


def collect(process: ProcessIdentity) -> int | None:
    """Return a child's exit code, or minus the signal; None if it is running or not a child of this process.

    A child that is not collected stays a zombie and keeps its pid.
    """
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return None if pid == 0 else os.waitstatus_to_exitcode(status)


def identify(pid: int) -> ProcessIdentity | None:
    """Return the process that has ``pid`` now; None if it has ended or is a zombie."""
    stat = _read_stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    return ProcessIdentity(pid=pid, start_ticks=stat.start_ticks)


def is_running(process: ProcessIdentity) -> bool:
    """Return whether exactly this process is running; a zombie is not."""
    return identify(process.pid) == process


def boot_seconds() -> float:
    """Return the time since the machine was started, on the clock of start times."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def age_seconds(process: ProcessIdentity) -> float:
    """Return how long ago the process started, to a hundredth of a second."""
    return boot_seconds() - process.start_ticks / TICKS_PER_SECOND


def session_members(leader: ProcessIdentity) -> list[ProcessIdentity]:
    """Return the living processes of the session that ``leader`` leads or led, the leader among them.

    Empty if the leader's pid now belongs to another process: the kernel does not reuse the number of a session that
    has members, so the session has ended.
    """
    if not _leads(leader):
        return []
    return [
        ProcessIdentity(pid=pid, start_ticks=stat.start_ticks)
        for pid, stat in _all()
        if stat.session == leader.pid and stat.state not in "ZX" and stat.start_ticks >= leader.start_ticks
    ]


def usage_by_session(leaders: Collection[ProcessIdentity]) -> dict[ProcessIdentity, list[ProcessUsage]]:
    """Return what the living processes of each leader's session have used, in one pass over all processes.

    A leader whose pid now belongs to another process has none.
    """
    found: dict[ProcessIdentity, list[ProcessUsage]] = {leader: [] for leader in leaders if _leads(leader)}
    by_session = {leader.pid: leader for leader in found}
    for pid, stat in _all():
        leader = by_session.get(stat.session)
        if leader is not None and stat.state not in "ZX" and stat.start_ticks >= leader.start_ticks:
            found[leader].append(
                ProcessUsage(
                    process=ProcessIdentity(pid=pid, start_ticks=stat.start_ticks),
                    cpu_seconds=stat.cpu_ticks / TICKS_PER_SECOND,
                    resident_bytes=stat.resident_pages * PAGE_BYTES,
                )
            )
    return found


def send_signal(process: ProcessIdentity, number: signal.Signals) -> None:
    """Send a signal to exactly this process; does nothing if it has ended."""
    if is_running(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def signal_session(leader: ProcessIdentity, number: signal.Signals) -> None:
    """Send a signal to every living process of the session; does nothing if there is none."""
    for process in session_members(leader):
        send_signal(process, number)


def kill_group(leader: ProcessIdentity) -> None:
    """Kill the process group of the session's leader and return at once. Idempotent.

    Looks at no other process, which on a busy machine takes tens of milliseconds. A process of the session with a group
    of its own lives on until :func:`kill_session`.
    """
    if _leads(leader):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)


def kill_session(leader: ProcessIdentity, *, timeout_seconds: float) -> bool:
    """Kill the whole session and return True once all its processes have ended; False after the timeout.

    Repeats the signal, because a process may fork during the search. Idempotent.
    """
    deadline = time.monotonic() + timeout_seconds
    kill_group(leader)
    _wait_for_end(leader, timeout_seconds / 2)  # then look for members that have a group of their own
    while session_members(leader):
        if time.monotonic() >= deadline:
            return False
        signal_session(leader, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    collect(leader)
    return True


def session_of(process: ProcessIdentity) -> ProcessIdentity | None:
    """Return the leader of the process's session; None if the process has ended or its session is not visible.

    For a leader that has ended, return its number, which names the session while it has members, and start time 0.
    """
    stat = _read_stat(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks or stat.session == 0:  # 0: outside this namespace
        return None
    return identify(stat.session) or ProcessIdentity(pid=stat.session, start_ticks=0)


def variable(process: ProcessIdentity, name: str) -> str | None:
    """Return an environment variable that the process started with; None if it is not set or not readable."""
    prefix = name.encode() + b"="
    for entry in _environment(process.pid):
        if entry.startswith(prefix):
            return entry.removeprefix(prefix).decode(errors="replace")
    return None


def output_of(process: ProcessIdentity) -> Path | None:
    """Return the file that the process writes its output to; None if it has ended or belongs to another user."""
    try:
        return Path(os.readlink(f"/proc/{process.pid}/fd/1"))
    except OSError:
        return None


def find_by_output(folder: Path, prefixes: tuple[str, ...]) -> set[ProcessIdentity]:
    """Return the user's processes that write to a file in ``folder`` whose name starts with one of the prefixes."""
    found = set()
    for pid, stat in _all():
        process = ProcessIdentity(pid=pid, start_ticks=stat.start_ticks)
        output = output_of(process)
        if output is not None and output.parent == folder and output.name.startswith(prefixes):
            found.add(process)
    return found


def command_of(process: ProcessIdentity) -> list[str]:
    """Return the process's command line; empty if it has ended."""
    try:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in command.removesuffix(b"\0").split(b"\0")] if is_running(process) else []


def find_by_open_file(path: Path) -> set[ProcessIdentity]:
    """Return the user's processes that have the file open. Raises FileNotFoundError."""
    found, wanted = set(), path.stat()
    for pid, stat in _all():
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.path.samestat(descriptor.stat(), wanted):
                        found.add(ProcessIdentity(pid=pid, start_ticks=stat.start_ticks))
    return found


def find_by_environment(name: str) -> dict[ProcessIdentity, str]:
    """Return the processes of this user that started with the variable ``name`` set, and its value."""
    found = {}
    prefix = name.encode() + b"="
    for pid, stat in _all():
        for entry in _environment(pid):
            if entry.startswith(prefix):
                identity = ProcessIdentity(pid=pid, start_ticks=stat.start_ticks)
                found[identity] = entry.removeprefix(prefix).decode(errors="replace")
    return found


def _wait_for_end(process: ProcessIdentity, timeout_seconds: float) -> None:
    """Return once the killed process has ended, or after the timeout. Nothing is polled meanwhile."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:  # it has ended, and its number may be a thread's by now
        return
    try:
        stat = _read_stat(process.pid)
        if stat is None or stat.state in "ZX" or stat.start_ticks != process.start_ticks:
            return
        if stat.resident_pages * PAGE_BYTES <= FREED_HERE_BYTES:
            _free_memory(descriptor)
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        ended.poll(timeout_seconds * 1000)
    finally:
        os.close(descriptor)


def _free_memory(descriptor: int) -> None:
    """Free the memory of a killed process from here too, process_mrelease(2); does nothing where that is not allowed.

    A process that was killed frees it on its own turns on the processor, and on a busy machine waits for them.
    """
    _libc.syscall(ctypes.c_long(_PROCESS_MRELEASE), ctypes.c_int(descriptor), ctypes.c_uint(0))


def _leads(leader: ProcessIdentity) -> bool:
    """Return whether the number of the leader's session is still its own."""
    return identify(leader.pid) in {None, leader}


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _all() -> Iterator[tuple[int, _Stat]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and (stat := _read_stat(int(entry.name))) is not None:
            yield int(entry.name), stat


def _read_stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the command name, in parentheses, may itself hold spaces and parentheses
    fields = text.rpartition(")")[2].split()
    return _Stat(
        state=fields[0],
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        resident_pages=int(fields[21]),
    )
