"""Real processes: found by session, never confused, killed completely, and the wake event that is set at their end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from workers import processes
from workers.agent.wakeup import WakeEvent
from workers.processes import ProcessIdentity

#: Starts a child that ignores SIGTERM, in a process group of its own but the same session, then waits.
PARENT = """
import os, signal, time
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


def start(tmp_path: Path, code: str) -> ProcessIdentity:
    return processes.launch(
        [sys.executable, "-c", code], log_path=tmp_path / "log", environment=os.environ | {"HEARTH_TEST_MARK": "x"}
    )


def wait_for_two(leader: ProcessIdentity, log: Path) -> None:
    deadline = time.monotonic() + 10
    while not log.exists() or log.read_text().count("up") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(processes.session_members(leader)) == 2


def test_a_session_is_killed_whole_even_after_its_leader_died(tmp_path: Path) -> None:
    leader = start(tmp_path, PARENT)
    wait_for_two(leader, tmp_path / "log")
    os.kill(leader.pid, signal.SIGKILL)
    assert processes.kill_session(leader, timeout_seconds=5)
    assert processes.session_members(leader) == []
    assert not processes.is_running(leader)


def test_a_pid_with_another_start_time_is_a_stranger(tmp_path: Path) -> None:
    leader = start(tmp_path, "import time; time.sleep(60)")
    stranger = ProcessIdentity(pid=leader.pid, start_ticks=leader.start_ticks - 1)
    assert not processes.is_running(stranger)
    assert processes.kill_session(stranger, timeout_seconds=0)
    assert processes.is_running(leader)
    assert processes.kill_session(leader, timeout_seconds=5)


def test_processes_are_found_by_what_their_environment_held_at_the_start(tmp_path: Path) -> None:
    leader = start(tmp_path, "import time; time.sleep(60)")
    found = processes.find_by_environment("HEARTH_TEST_MARK")
    assert found.get(leader) == "x"
    assert 0 <= processes.age_seconds(leader) < 30
    processes.kill_session(leader, timeout_seconds=5)


def test_an_exit_status_is_collected_once(tmp_path: Path) -> None:
    leader = start(tmp_path, "raise SystemExit(3)")
    deadline = time.monotonic() + 10
    while (status := processes.collect(leader)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert status == 3
    assert processes.collect(leader) is None


def test_the_bell_rings_when_a_process_ends_and_when_somebody_rings_it(tmp_path: Path) -> None:
    wake_event = WakeEvent()
    leader = start(tmp_path, "import time; time.sleep(60)")
    wake_event.watch(leader)
    began = time.monotonic()
    wake_event.wait(0.05)
    assert time.monotonic() - began >= 0.05
    processes.kill_session(leader, timeout_seconds=5)
    wake_event.wait(30)
    threading.Timer(0.05, wake_event.set).start()
    wake_event.wait(30)
    wake_event.watch(leader)  # has ended already: set at once
    wake_event.wait(30)
    assert time.monotonic() - began < 20
    wake_event.close()
