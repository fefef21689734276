"""Replace one running role process by a new one, so that requests go on.

A gateway shares its port: the new process listens before the old one stops, which then finishes its requests. Any other
role owns something that only one process may have (the log's folder, the node, a port), so the old one ends first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from hearth import process_records
from hearth.supervisor.child_process import Child, ChildRecord
from workers.processes import ProcessIdentity, is_running, session_members

#: A start takes 2 to 5 s, and several times as long on a busy machine.
READY_SECONDS = 60.0


def replace(child: Child, old: ChildRecord, wait: Callable[[], None]) -> str:
    """Start ``child`` in place of the process of ``old``; return a line to print.

    ``wait`` sleeps for a moment and raises to give up. If a process that shares its port does not get as far as to
    listen, the old one stays and the child adopts it.
    """
    if child.shared_port is not None:
        if not _start_beside(child, old, child.shared_port, wait):
            return f"{child.name} of this version does not start, so the old one stays (log: {child.log_path})"
    else:
        _end(child, old.process, wait)
        child.start()
    if not _wait_until(child.is_ready, wait):
        return f"Replaced {child.name}, which is not ready yet (log: {child.log_path})"
    return f"Replaced {child.name}"


def _start_beside(child: Child, old: ChildRecord, port: int, wait: Callable[[], None]) -> bool:
    """Start the child, and end the old process once the new one listens; return whether it did."""
    aside = _aside(child)  # recorded, so that a start after a crash here ends it
    aside.write_text(child.record_path.read_text())
    child.start()
    new = child.process
    assert new is not None
    if not _wait_until(lambda: _listens(new, port) or not is_running(new), wait) or not is_running(new):
        process_records.end_session(new, grace_seconds=0)
        aside.replace(child.record_path)
        child.adopt(old)
        return False
    _end(child, old.process, wait)
    aside.unlink(missing_ok=True)
    return True


def _aside(child: Child) -> Path:
    return child.record_path.with_name(f"{child.name}-old.json")


def _end(child: Child, process: ProcessIdentity, wait: Callable[[], None]) -> None:
    """Let the process finish its work for its grace period, then kill what is left of it."""
    process_records.request_stop(process)
    _wait_until(lambda: not is_running(process), wait, seconds=child.grace_seconds)
    process_records.end_session(process, grace_seconds=0)


def _wait_until(condition: Callable[[], bool], wait: Callable[[], None], *, seconds: float = READY_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        wait()
    return True


def _listens(leader: ProcessIdentity, port: int) -> bool:
    """Return whether a process of the session accepts connections on the port."""
    for member in session_members(leader):
        try:
            connections = psutil.Process(member.pid).net_connections(kind="tcp")
        except psutil.Error:
            continue
        if any(each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port for each in connections):
            return True
    return False
