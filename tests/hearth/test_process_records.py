"""Processes, their records, and what a killed supervisor leaves behind, with real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hearth import process_records
from hearth.instance.instance import Instance
from hearth.supervisor import child_process, cleanup, lock
from hearth.supervisor.child_process import Child
from tests.hearth.instances import unstarted
from workers.processes import ProcessIdentity, identify, is_running, session_members
from workers.processes import launch as launch_process

#: Starts a grandchild, prints its pid, and waits; on SIGTERM it ends and leaves the grandchild.
PARENT = """
import signal, subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(grandchild.pid, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""

Launch = Callable[[str], ProcessIdentity]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    started: list[ProcessIdentity] = []

    def start(program: str) -> ProcessIdentity:
        log = tmp_path / f"{len(started)}.log"
        process = launch_process([sys.executable, "-c", program], log_path=log, environment=os.environ)
        started.append(process)
        deadline = time.monotonic() + 10
        while not log.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        process_records.end_session(process, grace_seconds=0)


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    found = unstarted(tmp_path / "data", port=18741)
    found.make_folders()
    return found


def test_a_process_leads_its_own_session(launch: Launch) -> None:
    process = launch(PARENT)
    assert os.getsid(process.pid) == process.pid
    assert process in session_members(process)
    assert len(session_members(process)) == 2


def test_ending_a_session_ends_what_its_leader_leaves(launch: Launch) -> None:
    process = launch(PARENT)
    process_records.end_session(process, grace_seconds=0.5)
    assert session_members(process) == []


def test_what_outlives_a_dead_leader_is_still_found(launch: Launch) -> None:
    process = launch(PARENT)
    os.kill(process.pid, signal.SIGKILL)
    assert process_records.wait_until_gone(process, timeout_seconds=5)
    assert len(session_members(process)) == 1
    process_records.end_session(process, grace_seconds=0)
    assert session_members(process) == []


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(launch: Launch) -> None:
    process = launch(STUBBORN)
    process_records.end_session(process, grace_seconds=0.1)
    assert not is_running(process)


def test_a_reused_pid_is_a_stranger(launch: Launch) -> None:
    process = launch(STUBBORN)
    former = ProcessIdentity(pid=process.pid, start_ticks=process.start_ticks - 1)
    assert not is_running(former)
    assert session_members(former) == []
    process_records.end_session(former, grace_seconds=0)
    assert is_running(process)


def test_a_record_survives_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    process = identify(os.getpid())
    assert process is not None
    process_records.write_record(tmp_path / "a.json", process)
    assert process_records.read_record(tmp_path / "a.json") == process
    (tmp_path / "a.json").write_text("{")
    assert process_records.read_record(tmp_path / "a.json") is None


def test_a_start_clears_roles_and_engines_of_a_killed_instance(instance: Instance, launch: Launch) -> None:
    role, engine = launch(PARENT), launch(STUBBORN)
    process_records.write_record(instance.records_dir / "gateway.json", role)
    process_records.write_record(instance.engines_dir / "replica-1.json", engine)
    instance.up_path.write_text("{}")
    assert cleanup.clear(instance) == ["gateway", "replica-1"]
    assert session_members(role) == []
    assert not is_running(engine)
    assert not instance.up_path.exists()
    assert cleanup.clear(instance) == []


def test_a_record_of_a_reused_pid_ends_nothing(instance: Instance, launch: Launch) -> None:
    stranger = launch(STUBBORN)
    process_records.write_record(
        instance.records_dir / "gateway.json", replace(stranger, start_ticks=stranger.start_ticks - 1)
    )
    assert cleanup.clear(instance) == []
    assert is_running(stranger)


def test_the_lock_ends_with_its_holder(instance: Instance, launch: Launch) -> None:
    holder = launch(
        "import time; from pathlib import Path; from hearth.supervisor import lock\n"
        f"with lock.hold(Path({str(instance.lock_path)!r})): print('held', flush=True); time.sleep(600)"
    )
    assert lock.is_held(instance.lock_path)
    with pytest.raises(lock.AlreadyRunning), lock.hold(instance.lock_path):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    assert process_records.wait_until_gone(holder, timeout_seconds=5)
    assert not lock.is_held(instance.lock_path)


@pytest.fixture
def child(instance: Instance) -> Iterator[Child]:
    found = Child(
        name="sleeper",
        command=[sys.executable, "-c", "import time; time.sleep(600)"],
        environment=dict(os.environ),
        log_path=instance.log_path("sleeper"),
        record_path=instance.records_dir / "sleeper.json",
        grace_seconds=5,
        stop_stage=1,
    )
    yield found
    child_process.end_all([found], forced=lambda: True)


def test_a_role_that_dies_is_started_again_after_a_growing_delay(child: Child) -> None:
    child.start()
    lines = [_kill_and_wait(child) for _ in range(3)]
    assert [line.split(" (")[0] for line in lines] == [
        f"sleeper ended with signal 9; restarting it in {delay} s" for delay in ("0.5", "1", "2")
    ]
    record = child_process.read_record(child.record_path)
    assert record is not None
    assert record.restarts == 2


def test_the_delay_is_short_again_once_a_role_was_ready(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "READY_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(child_process, "READY_AFTER_SECONDS", 0.0)
    child.start()
    for _ in range(3):
        line = _kill_and_wait(child)
    assert "restarting it in 2 s" in line
    child.is_ready = lambda: True
    while child.process is None:
        child.poll()
        time.sleep(0.01)
    assert child.poll() is None
    assert "restarting it in 0.5 s" in _kill_and_wait(child)


def test_a_role_that_is_ready_for_a_moment_only_waits_longer_each_time(child: Child) -> None:
    child.is_ready = lambda: True
    child.start()
    lines = [_kill_and_wait(child) for _ in range(3)]
    assert "restarting it in 2 s" in lines[-1]


def test_a_role_that_cannot_be_recorded_is_not_started(child: Child) -> None:
    del child.environment["HEARTH_DATA_DIR"]  # its fingerprint needs it
    with pytest.raises(KeyError):
        child.start()
    assert child.process is None


def test_a_role_that_will_not_end_is_killed_and_named(child: Child) -> None:
    child.command = [sys.executable, "-c", STUBBORN]
    child.grace_seconds = 0.1
    child.start()
    while not child.log_path.read_text():
        time.sleep(0.01)
    process = child.process
    assert process is not None
    assert child_process.end_all([child], forced=lambda: False) == ["sleeper"]
    assert not is_running(process)
    assert not child.record_path.exists()


def _kill_and_wait(child: Child) -> str:
    """Kill the child and return the line of its supervisor about it, once it is running again or its restart is due."""
    while child.process is None:
        child.poll()
        time.sleep(0.01)
    os.kill(child.process.pid, signal.SIGKILL)
    while (line := child.poll()) is None:
        time.sleep(0.01)
    return line
