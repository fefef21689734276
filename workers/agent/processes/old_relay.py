"""End the node's KV relay of the version before, which no agent of this version starts.

It would run as long as the node has an engine or an agent. Engines outlive an upgrade, so it would never end. It has no
mark of the agent; its lock and its command line identify it. This is for one release.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path

from workers import processes
from workers.agent.processes.paths import AgentPaths
from workers.processes import ProcessIdentity

log = logging.getLogger(__name__)

KILL_TIMEOUT_SECONDS = 2.0


def end(paths: AgentPaths) -> None:
    """Kill the relay if it runs, and remove its lock, socket and logs. Leaves all of them if it cannot be killed."""
    lock = paths.sockets / f"relay-{paths.node[:40]}.lock"
    try:
        if _is_locked(lock):
            for relay in _holders(paths, lock):
                if processes.kill_session(relay, timeout_seconds=KILL_TIMEOUT_SECONDS):
                    log.info("node %s: ended the KV relay %s of the version before", paths.node, relay.pid)
            if _is_locked(lock):
                log.warning("node %s: %s is locked by another process than its KV relay", paths.node, lock)
                return
        logs = [each for each in paths.logs.iterdir() if each.name.startswith(f"relay-{paths.node}.log")]
        for path in (*logs, lock.with_suffix(""), lock):
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("node %s: the KV relay of the version before cannot be ended: %s", paths.node, error)


def _holders(paths: AgentPaths, lock: Path) -> list[ProcessIdentity]:
    """Return the relays of this node and its folder of sockets that have the lock's file open."""
    return [
        process
        for process in processes.find_by_open_file(lock)
        if _is_relay(processes.command_of(process), paths.node, str(paths.sockets))
    ]


def _is_relay(command: list[str], node: str, sockets: str) -> bool:
    options = command[3:]
    named = dict(zip(options[::2], options[1::2], strict=False))
    return command[1:3] == ["-m", "workers.kv_relay"] and (named.get("--node"), named.get("--sockets")) == (
        node,
        sockets,
    )


def _is_locked(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False
