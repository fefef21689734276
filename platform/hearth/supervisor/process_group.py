"""Keep role processes alive, and end them in order: what `hearth up` and `hearth node` have in common.

A keeper holds no state that the next one needs: kill -9 of it leaves roles and engines running, which the next start
finds by their recorded pids.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType

from hearth import process_records
from hearth.instance.instance import Instance
from hearth.instance.progress import Progress
from hearth.instance.roles import ENGINES_STOP_STAGE, Role
from hearth.instance.roles import processes as processes_of
from hearth.supervisor import child_process, cleanup, lock
from hearth.supervisor.child_process import Child
from workers.processes import ProcessIdentity, identify, is_running

TICK_SECONDS = 0.2
#: An idle engine stops in 2 s; one that answers gets 30 s from its own --shutdown-timeout.
ENGINES_GRACE_SECONDS = 40.0
SUPERVISOR_RECORD = "supervisor.json"


class Interrupted(Exception):
    """Somebody asked for the stop while it was starting."""


class StartFailed(Exception):
    """A role or an engine cannot start. Carries what and where to look."""


@dataclass(slots=True)
class StopRequest:
    """Counts SIGINT and SIGTERM: the first asks for a stop, the second for haste."""

    count: int = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def requested(self) -> bool:
        return self.count > 0

    def forced(self) -> bool:
        return self.count > 1


class ProcessGroup:
    """The roles of one data directory, looked after by this process."""

    def __init__(self, instance: Instance, progress: Progress) -> None:
        self._instance = instance
        self._progress = progress
        self._children: list[Child] = []
        self.stop = StopRequest()

    @property
    def has_children(self) -> bool:
        return bool(self._children)

    def handle_signals(self) -> None:
        """Take SIGINT and SIGTERM as requests to stop."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)

    def write_record(self) -> None:
        """Write down who supervises the data directory. Call it with its lock held."""
        me = identify(os.getpid())
        assert me is not None
        process_records.write_record(self._instance.data_dir / SUPERVISOR_RECORD, me)

    def remove_record(self) -> None:
        """Undo :meth:`record`."""
        (self._instance.data_dir / SUPERVISOR_RECORD).unlink(missing_ok=True)

    def start(self, roles: Iterable[Role]) -> None:
        """Start the roles, in order. Raises OSError."""
        for role in roles:
            for name, instance in processes_of(role, self._instance):
                child = Child(
                    name=name,
                    command=role.command(instance),
                    environment=instance.environment(role.name),
                    log_path=instance.log_path(name),
                    record_path=instance.records_dir / f"{name}.json",
                    grace_seconds=role.grace_seconds,
                    stop_stage=role.stop_stage,
                )
                self._children.append(child)
                child.start()
        self._progress.log(f"Started {', '.join(child.name for child in self._children)}")

    def raise_if_stopping(self) -> None:
        """Raise Interrupted once a stop was asked for."""
        if self.stop.requested():
            raise Interrupted

    def tick(self) -> None:
        """Look after the roles once, then rest a moment."""
        for child in self._children:
            line = child.poll()
            if line is not None:
                self._progress.log(line)
        time.sleep(TICK_SECONDS)

    def end(self, request_engine_stop: Callable[[], int]) -> None:
        """Stop the roles stage by stage, and the engines in theirs; a second signal kills what is left of each.

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
                self._progress.log(f"Killed, because it would not end: {', '.join(killed)}")
        cleanup.end_engines(self._instance, grace_seconds=0)

    def _stop_engines(self, request_stop: Callable[[], int]) -> None:
        """Let the agent stop the engines, which lets them finish what they answer; kill what outlives the grace."""
        deadline = time.monotonic() + ENGINES_GRACE_SECONDS
        if not self.stop.forced():
            try:
                asked = request_stop()
            except Exception as error:  # a database that is gone must not keep the rest from stopping
                self._progress.log(f"Could not ask the replicas to stop: {error}")
                asked = 0
            if asked:
                self._progress.log(f"Asked {asked} replicas to stop")
            while any(self._instance.engines_dir.glob("*.json")) and time.monotonic() < deadline:
                if self.stop.forced():
                    break
                time.sleep(TICK_SECONDS)
        ended = cleanup.end_engines(self._instance, grace_seconds=0)
        if ended:
            self._progress.log(f"Killed engines {', '.join(ended)}")


def supervisor_process(instance: Instance) -> ProcessIdentity | None:
    """Return the process that holds the data directory, of `hearth up` or `hearth node`; None when there is none."""
    found = process_records.read_record(instance.data_dir / SUPERVISOR_RECORD)
    if found is None or not is_running(found) or not lock.is_held(instance.lock_path):
        return None
    return found
