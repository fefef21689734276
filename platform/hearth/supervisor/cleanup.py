"""End the roles and engines that a killed instance left behind, by recorded pid and start time.

A start ends only the roles that it cannot keep. Embedded servers are not ended here: a start adopts those that run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hearth import process_records
from hearth.instance import running
from hearth.instance.instance import Instance
from hearth.paths import agent_sockets_dir, gateway_sockets_dir, routing_memory
from workers.processes import POLL_SECONDS, ProcessIdentity, session_members

#: A gateway without its supervisor still serves: let it finish short requests.
GRACE_SECONDS = 3.0


def clear(instance: Instance) -> list[str]:
    """End every recorded process that still runs, with its whole session; return the names. Idempotent.

    The caller holds the lock of the instance. A record whose pid now belongs to another process is ignored.
    """
    ended = clear_roles(instance) + _end_recorded(instance.engines_dir, grace_seconds=GRACE_SECONDS)
    instance.up_path.unlink(missing_ok=True)
    instance.node_path.unlink(missing_ok=True)
    running.remove(instance)
    return ended


def clear_roles(instance: Instance, *, kept: Collection[str] = ()) -> list[str]:
    """End the recorded roles except ``kept``; agents adopt the engines. Returns the names. Idempotent."""
    return _end_recorded(instance.records_dir, grace_seconds=GRACE_SECONDS, kept=kept)


def clear_role(instance: Instance, name: str) -> None:
    """End one recorded role. Idempotent."""
    others = {path.stem for path in instance.records_dir.glob("*.json")} - {name}
    clear_roles(instance, kept=others)


def has_engines(instance: Instance) -> bool:
    """Return whether an engine or a placeholder of an earlier agent still runs."""
    return any(
        (leader := process_records.read_record(path)) is not None and session_members(leader)
        for path in instance.engines_dir.glob("*.json")
    )


def end_engines(instance: Instance, *, grace_seconds: float) -> list[str]:
    """End every engine in the agent's registry with its process group; return their names. Idempotent."""
    return _end_recorded(instance.engines_dir, grace_seconds=grace_seconds)


def remove_sockets(instance: Instance) -> None:
    """Remove the folders of the sockets and the gateways' shared memory. Call it only when nothing uses them."""
    data_dir = instance.data_dir
    for folder in instance.sockets_dir, agent_sockets_dir(data_dir), gateway_sockets_dir(data_dir):
        shutil.rmtree(folder, ignore_errors=True)
    memory = routing_memory(data_dir)
    for path in memory.parent.glob(f"{memory.name}-*"):
        with suppress(OSError):  # another user may have made it
            path.unlink()


def _end_recorded(folder: Path, *, grace_seconds: float, kept: Collection[str] = ()) -> list[str]:
    """End all recorded processes together, so that the grace period passes once."""
    running: dict[str, ProcessIdentity] = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem in kept:
            continue
        leader = process_records.read_record(path)
        if leader is not None and session_members(leader):
            running[path.stem] = leader
        path.unlink(missing_ok=True)
    if grace_seconds > 0:
        for leader in running.values():
            process_records.request_stop(leader)
        deadline = time.monotonic() + grace_seconds
        while any(map(session_members, running.values())) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    for leader in running.values():
        process_records.end_session(leader, grace_seconds=0)
    return list(running)
