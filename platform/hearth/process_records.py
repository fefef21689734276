"""Stop processes with a grace period, and record them on disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

from workers.processes import POLL_SECONDS, ProcessIdentity, is_running, kill_session, session_members, signal_session

#: For a process stuck in the kernel, which no signal reaches.
KILL_TIMEOUT_SECONDS = 5.0


def request_stop(leader: ProcessIdentity) -> None:
    """Send SIGTERM to the leader, which stops its children in its own order; if it is dead, to its whole session."""
    if not is_running(leader):
        signal_session(leader, signal.SIGTERM)
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader.pid, signal.SIGTERM)


def end_session(leader: ProcessIdentity, *, grace_seconds: float) -> None:
    """End a whole session: SIGTERM, and after ``grace_seconds`` SIGKILL to the rest (0: at once). Idempotent."""
    if grace_seconds > 0:
        request_stop(leader)
        deadline = time.monotonic() + grace_seconds
        while session_members(leader) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    kill_session(leader, timeout_seconds=KILL_TIMEOUT_SECONDS)


def wait_until_gone(process: ProcessIdentity, *, timeout_seconds: float) -> bool:
    """Wait until the process has ended; return whether it did within the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while is_running(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def write_record(path: Path, process: ProcessIdentity) -> None:
    """Record a process in ``path``, atomically, so that a later start finds the processes that a killed one left."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(asdict(process)))
    temporary.replace(path)


def read_record(path: Path) -> ProcessIdentity | None:
    """Return the recorded process, alive or not; None without a readable record. Other keys are ignored."""
    try:
        record = json.loads(path.read_text())
        return ProcessIdentity(pid=int(record["pid"]), start_ticks=int(record["start_ticks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
