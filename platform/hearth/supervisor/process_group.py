"""Keep role processes alive, and end them in order, for `hearth up` and `hearth node`.

The supervisor has no state that the next one needs: after a kill -9, roles and engines continue, and the next start
finds them by their recorded pids. It keeps those that are alive and of its own version and settings.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType

from hearth import process_records, role_account
from hearth.instance.instance import Instance
from hearth.instance.progress import Progress
from hearth.instance.roles import ENGINES_STOP_STAGE, ROLES, Role, start_of
from hearth.instance.roles import processes as processes_of
from hearth.supervisor import build, child_process, cleanup, health_pages, lock, rolling
from hearth.supervisor.child_process import Child, ChildRecord
from workers import log_files
from workers.processes import ProcessIdentity, identify, is_running

TICK_SECONDS = 0.2
#: How often the logs' sizes are checked.
LOGS_SECONDS = 10.0
#: An idle engine stops in 2 s; a busy one may take the 30 s of its own --shutdown-timeout.
ENGINES_GRACE_SECONDS = 40.0
SUPERVISOR_RECORD = "supervisor.json"
#: Logs that are no child's.
OTHER_LOGS = ("postgres", "redis", "supervisor", "migrate")


class Interrupted(Exception):
    """A stop was requested during the start."""


class StartFailed(Exception):
    """A role or an engine cannot start. The message names it and its log."""


@dataclass(slots=True)
class StopRequest:
    """Counts SIGINT and SIGTERM: the first requests a stop, the second forces it."""

    count: int = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def requested(self) -> bool:
        return self.count > 0

    def forced(self) -> bool:
        return self.count > 1


class ProcessGroup:
    """The role processes of one data directory, supervised by this process.

    ``rolling``: processes that run with another version or other settings are replaced one by one, instead of ended at
    the start.
    """

    def __init__(self, instance: Instance, progress: Progress, *, rolling: bool = False) -> None:
        self._instance = instance
        self._progress = progress
        self._rolling = rolling
        self._children: list[Child] = []
        self._logs_checked = time.monotonic()
        self.stop = StopRequest()

    @property
    def has_children(self) -> bool:
        return bool(self._children)

    def handle_signals(self) -> None:
        """Handle SIGINT and SIGTERM as requests to stop."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)

    def write_record(self) -> None:
        """Record this process as the supervisor of the data directory. The caller holds the lock."""
        me = identify(os.getpid())
        assert me is not None
        process_records.write_record(self._instance.data_dir / SUPERVISOR_RECORD, me)

    def remove_record(self) -> None:
        """Remove the record of :meth:`write_record`."""
        (self._instance.data_dir / SUPERVISOR_RECORD).unlink(missing_ok=True)

    def clear(self, roles: Iterable[Role]) -> set[str]:
        """End what an earlier supervisor left, except processes of these roles that this one would start the same.

        Returns the names of those that it keeps; :meth:`start` adopts them.
        """
        children = [child for role in roles for child in self._children_of(role)]
        kept = {child.name for child in children if self._fit(child) is not None or self._to_replace(child) is not None}
        ended = cleanup.clear_roles(self._instance, kept=kept)
        if ended:
            self._progress.log(f"Ended processes of a killed supervisor: {', '.join(ended)}")
        return kept

    def start(self, roles: Iterable[Role]) -> None:
        """Start the roles, in order, and adopt those that :meth:`clear` kept. Raises OSError and Interrupted."""
        started, adopted = [], []
        for child in [child for role in roles for child in self._children_of(role)]:
            found, old = self._fit(child), self._to_replace(child)
            if found is None and old is not None:
                self._progress.log(rolling.replace(child, old, self._wait))
                self._children.append(child)
                continue
            self._children.append(child)
            if found is not None:
                child.adopt(found)
                adopted.append(child.name)
                continue
            cleanup.clear_role(self._instance, child.name)  # kept before, and died or is to run with other options
            child.start()
            started.append(child.name)
        if adopted:
            self._progress.log(f"Kept {', '.join(adopted)}, which went on without a supervisor")
        if started:
            self._progress.log(f"Started {', '.join(started)}")

    def _children_of(self, role: Role) -> Iterator[Child]:
        account = role_account.role_account()
        for name, instance in processes_of(role, self._instance):
            command, environment = start_of(role, instance, account)
            yield Child(
                name=name,
                command=command,
                environment=environment,
                log_path=instance.log_path(name),
                record_path=instance.records_dir / f"{name}.json",
                grace_seconds=role.grace_seconds,
                stop_stage=role.stop_stage,
                is_ready=partial(health_pages.is_ready, self._instance, name),
                shared_port=instance.port if role.overlaps else None,
            )

    def _fit(self, child: Child) -> ChildRecord | None:
        """Return the record of a process that may stay: it runs, is alive, and would be started the same today."""
        found = child_process.read_record(child.record_path)
        if found is None or not is_running(found.process):
            return None
        if found.fingerprint != build.fingerprint(child.command, child.environment):
            return None
        return found if health_pages.is_alive(self._instance, child.name) else None

    def _to_replace(self, child: Child) -> ChildRecord | None:
        """Return the record of a process that serves until another takes its place, in a rolling start."""
        found = child_process.read_record(child.record_path) if self._rolling else None
        if found is None or not is_running(found.process) or not health_pages.is_alive(self._instance, child.name):
            return None
        return found

    def _wait(self) -> None:
        self.tick()
        self.raise_if_stopping()

    def raise_if_stopping(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self.stop.requested():
            raise Interrupted

    def tick(self) -> None:
        """Poll every role once, then sleep TICK_SECONDS."""
        for child in self._children:
            line = child.poll()
            if line is not None:
                self._progress.log(line)
        self._rotate_logs()
        time.sleep(TICK_SECONDS)

    def _rotate_logs(self) -> None:
        """Bound the logs of roles, embedded servers and this process; the agent does it for its engines."""
        if time.monotonic() - self._logs_checked < LOGS_SECONDS:
            return
        self._logs_checked = time.monotonic()
        for name in (*(child.name for child in self._children), *OTHER_LOGS):
            try:
                log_files.rotate(self._instance.log_path(name))
            except OSError as error:  # a full disk must not end the supervisor
                self._progress.log_if_new(f"log of {name}", f"The log of {name} cannot be rotated: {error}")

    def end(self, request_engine_stop: Callable[[], int]) -> None:
        """Stop the roles and the engines stage by stage; a second signal kills what still runs.

        ``request_engine_stop`` requests that every engine here stops after its running requests, and returns how many
        engines there were.
        """
        for stage in sorted({child.stop_stage for child in self._children}):
            if stage == ENGINES_STOP_STAGE:
                self._stop_engines(request_engine_stop)
            killed = child_process.end_all(
                [child for child in self._children if child.stop_stage == stage], forced=self.stop.forced
            )
            if killed:
                self._progress.log(f"Killed after the grace period: {', '.join(killed)}")
        cleanup.end_engines(self._instance, grace_seconds=0)

    def _stop_engines(self, request_stop: Callable[[], int]) -> None:
        """Let the agent stop the engines after their running requests; kill those that outlive the grace period."""
        deadline = time.monotonic() + ENGINES_GRACE_SECONDS
        if not self.stop.forced():
            try:
                requested = request_stop()
            except Exception as error:  # without the database, everything else must still stop
                self._progress.log(f"Could not request a stop of the replicas: {error}")
                requested = 0
            if requested:
                self._progress.log(f"Requested a stop of {requested} replicas")
            while any(self._instance.engines_dir.glob("*.json")) and time.monotonic() < deadline:
                if self.stop.forced():
                    break
                time.sleep(TICK_SECONDS)
        ended = cleanup.end_engines(self._instance, grace_seconds=0)
        if ended:
            self._progress.log(f"Killed engines {', '.join(ended)}")


def outdated(instance: Instance) -> list[str]:
    """Return the names of role processes that run with another version, or other settings or secrets, than now."""
    children = [child for role in ROLES for child in ProcessGroup(instance, Progress())._children_of(role)]
    found = ((child, child_process.read_record(child.record_path)) for child in children)
    return [
        child.name
        for child, record in found
        if record is None or record.fingerprint != build.fingerprint(child.command, child.environment)
    ]


def supervisor_process(instance: Instance) -> ProcessIdentity | None:
    """Return the process of `hearth up` or `hearth node` on this data directory; None if there is none."""
    found = process_records.read_record(instance.data_dir / SUPERVISOR_RECORD)
    if found is None or not is_running(found) or not lock.is_held(instance.lock_path):
        return None
    return found
