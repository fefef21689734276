"""Start a supervisor that outlives this command, print its log until it is ready, and stop it from outside."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TextIO

from hearth import process_records, secrets
from hearth.instance.instance import Instance
from hearth.instance.start_options import StartOptions
from hearth.supervisor import cleanup, lock, up_file
from hearth.supervisor.process_group import SUPERVISOR_RECORD, supervisor_process
from hearth.supervisor.up_file import Summary
from workers.processes import ProcessIdentity, is_running, launch

POLL_SECONDS = 0.1
#: Longer than the sum of all grace periods of an orderly stop (``hearth.instance.roles``, ``hearth.supervisor.up``).
STOP_SECONDS = 150.0
FORCED_STOP_SECONDS = 30.0


def start(instance: Instance, options: StartOptions, *, rolling: bool = False) -> Summary | None:
    """Start the supervisor in a session of its own, print its log, and return once the instance is ready.

    Returns None when it gave up; its log is then on standard output. Ctrl-C here stops it. The folders must exist.
    ``rolling``: it replaces processes of another version or other settings one by one.
    """
    log_path = instance.log_path("supervisor")
    log_path.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "hearth.cli",
        "up",
        "--detached",
        *options.arguments(),
        *(["--rolling"] if rolling else []),
    ]
    supervisor = launch(command, log_path=log_path, environment=instance_environment(instance))
    with log_path.open() as log:
        try:
            _repeat(log, until=lambda: _is_ready(instance, supervisor) or not is_running(supervisor))
        except KeyboardInterrupt:
            process_records.request_stop(supervisor)
            _repeat(log, until=lambda: not is_running(supervisor))
    return up_file.read(instance.up_path) if _is_ready(instance, supervisor) else None


def restart(instance: Instance) -> Summary | None:
    """Replace the supervisor and the roles that are not of this version and these settings, one after another.

    The supervisor ends alone; roles, servers and engines go on, and the next one adopts or replaces them. Returns None
    when the new supervisor gave up.
    """
    supervisor = supervisor_process(instance)
    if supervisor is not None:
        os.kill(supervisor.pid, signal.SIGKILL)
        process_records.wait_until_gone(supervisor, timeout_seconds=FORCED_STOP_SECONDS)
    return start(instance, StartOptions(), rolling=True)


def stop(instance: Instance, *, fleet: bool = False) -> bool:
    """Stop the instance however it was started; return False when none ran. Idempotent.

    ``fleet``: stop the engines of all other machines too.

    First in order; after STOP_SECONDS a second SIGTERM makes the supervisor stop at once, and after that it is killed.
    Also stops what a killed supervisor left, embedded servers included.
    """
    supervisor = supervisor_process(instance)
    if supervisor is not None:
        if fleet:
            instance.stop_fleet_path.touch()
        for timeout_seconds in (STOP_SECONDS, FORCED_STOP_SECONDS):
            os.kill(supervisor.pid, signal.SIGTERM)
            if process_records.wait_until_gone(supervisor, timeout_seconds=timeout_seconds):
                break
        process_records.end_session(supervisor, grace_seconds=0)
    had_leftovers = _end_leftovers(instance)
    return supervisor is not None or had_leftovers


def instance_environment(instance: Instance) -> dict[str, str]:
    """Return the environment of this command, with the absolute path of the data directory."""
    return dict(os.environ) | {"HEARTH_DATA_DIR": str(instance.data_dir)}


def _end_leftovers(instance: Instance) -> bool:
    """Stop processes without a supervisor; return whether there were any."""
    if not instance.data_dir.is_dir():
        return False
    with lock.hold(instance.lock_path):
        found = bool(cleanup.clear(instance))
        try:
            postgres = instance.postgres(secrets.load(instance.data_dir))
        except FileNotFoundError:
            return found
        for server in (instance.redis(), postgres):
            if server is not None and server.process() is not None:
                found = True
                server.stop()
        cleanup.remove_sockets(instance)
        (instance.data_dir / SUPERVISOR_RECORD).unlink(missing_ok=True)
    return found


def _repeat(log: TextIO, *, until: Callable[[], bool]) -> None:
    """Print new lines of the log until ``until`` returns True, then the rest."""
    done = False
    while not done:
        done = until()
        for line in log:
            print(line, end="", flush=True)
        if not done:
            time.sleep(POLL_SECONDS)


def _is_ready(instance: Instance, supervisor: ProcessIdentity) -> bool:
    found = up_file.read(instance.up_path)
    return found is not None and found.pid == supervisor.pid
