"""Processes of one host share what routing knows: what one sends, another sees; what one dies with, nobody misses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from routing.errors import NotShared
from routing.router import Boot, Router
from routing.shared.file import SharedFile
from routing.shared.state import MAX_PROCESSES, MAX_REPLICAS, size
from tests.routing.prompts import ask, replicas, user
from tests.routing.test_router import DOCUMENT, Clock, answer, serve

PREFIXES, SESSIONS = 1 << 12, 1 << 8
#: Joins, sends a document to a replica without an answer, says so, and waits to be killed.
OTHER = """
import sys, time
from pathlib import Path
from routing.router import Boot, Router
from routing.shared.file import SharedFile
from tests.routing.prompts import ask, replicas, user
from tests.routing.test_router import DOCUMENT
file = SharedFile.open(Path(sys.argv[1]), 1 << 12, 1 << 8)
router = Router(file.state)
router.follow({each: Boot() for each in replicas(2)})
router.choose(ask(user(DOCUMENT * 10), session="s"), replicas(2)[1:])
print("sent", flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "routing"


@pytest.fixture
def clock() -> Clock:
    """The time of all processes."""
    return Clock()


@pytest.fixture
def processes(path: Path, clock: Clock) -> Iterator[list[Router]]:
    """Three processes' routers, in this process."""
    with ExitStack() as stack:
        files = [SharedFile.open(path, PREFIXES, SESSIONS) for _ in range(3)]
        for file in files:
            stack.callback(file.close)
        yield [Router(file.state, clock=clock) for file in files]


def test_a_prompt_is_warm_where_another_process_sent_it(processes: list[Router]) -> None:
    one, other, third = processes
    sent = serve(one, ask(user(DOCUMENT)), replicas(4))
    found = serve(other, ask(user(DOCUMENT), user("and?")), replicas(4))
    assert (found.replica_id, found.reason) == (sent.replica_id, "prefix")
    third.follow({each: Boot(generation=1) for each in replicas(4)})
    assert serve(third, ask(user(DOCUMENT)), replicas(4)).warm_tokens == 0


def test_a_session_has_one_home(processes: list[Router]) -> None:
    """The third process meets it only after the replica that it would have chosen by itself has come."""
    chosen = {serve(each, ask(user("a"), session="s"), replicas(2 + number * 3)).replica_id
              for number, each in enumerate(processes)}  # fmt: skip
    assert len(chosen) == 1


def test_work_that_another_process_sent_is_waited_for_and_runs_down(processes: list[Router], clock: Clock) -> None:
    one, other, _ = processes
    (only,) = replicas(1)
    for router in (one, other):
        serve(router, ask(user("a")), [only])
    clock.now += 2
    first = one.choose(ask(user("b" * 48_000)), [only])  # two seconds of work
    second = other.choose(ask(user("c" * 48_000)), [only])
    clock.now += 1
    waits = [each.costs(ask(user("d")), [only], clock.now)[0].backlog for each in processes]
    assert waits == pytest.approx([waits[0]] * 3)
    assert waits[0] == pytest.approx(first.prefill + second.prefill - 1, rel=0.01)
    answer(other, second, computed_tokens=12_000)  # what was sent before it is done too
    clock.now += 0.01
    assert [each.costs(ask(user("d")), [only], clock.now)[0].backlog for each in processes] == [0, 0, 0]


def test_a_replica_that_other_processes_filled_has_no_room(processes: list[Router], clock: Clock) -> None:
    one, other, third = processes
    (only,) = replicas(1)
    for router in processes:
        serve(router, ask(user("a")), [only])
    sent = [(router, router.choose(ask(user("b"), streamed=False), [only])) for router in (one, other)]
    clock.now += 0.01
    assert [router.has_room(only, 2) for router in processes] == [False, False, False]
    assert third.has_room(only, 3)
    for router, choice in sent:
        router.finish(choice, answered=False)
    long = one.choose(ask(user("c" * 48_000)), [only])
    clock.now += 0.01
    assert [router.has_room(only, 3) for router in processes] == [False, False, False]
    answer(one, long, computed_tokens=12_000)
    clock.now += 0.01
    assert [router.has_room(only, 3) for router in processes] == [True, True, True]


def test_speeds_are_learned_together(processes: list[Router], clock: Clock) -> None:
    one, other, third = processes
    slow, quick = replicas(2)
    for number in range(40):
        router = (one, other)[number % 2]
        for replica, seconds in ((slow, 1.0), (quick, 0.05)):
            choice = router.choose(ask(user(f"{number} " * 1000)), [replica])
            clock.now += seconds
            answer(router, choice, computed_tokens=choice.prefix.tokens)
    prefill = [each.prefill for each in third.costs(ask(user("e" * 4000)), [slow, quick], clock.now)]
    assert prefill[0] > 4 * prefill[1]


def test_a_cache_is_as_full_as_all_processes_filled_it(processes: list[Router], clock: Clock) -> None:
    (only,) = replicas(1)
    for router in processes:
        router.follow({only: Boot(cache_tokens=20_000)})
    serve(processes[0], ask(user("first" * 400)), [only])
    for number in range(60):
        clock.now += 1
        serve(processes[number % 3], ask(user(f"{number:4} " * 400)), [only])
    warm = [processes[0].costs(ask(user(text * 400)), [only], clock.now)[0].warm_tokens for text in ("first", "  59 ")]
    assert warm == [0, 501]


def test_a_killed_process_leaves_no_load_and_its_number(path: Path) -> None:
    file = SharedFile.open(path, PREFIXES, SESSIONS)
    router = Router(file.state)
    router.follow({each: Boot() for each in replicas(2)})
    command = [sys.executable, "-c", OTHER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"sent\n"
        assert file.count() == 2
        file.state.look(time.monotonic())
        idle, busy = router.costs(ask(user("a")), replicas(2), time.monotonic())
        assert busy.backlog > 1 > idle.backlog
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert file.count() == 1
        file.state.look(time.monotonic())
        again = SharedFile.open(path, PREFIXES, SESSIONS)
        assert again.process == 1
        routers = [Router(each.state) for each in (file, again)]
        for each in routers:
            each.follow(dict.fromkeys(replicas(2), Boot()))
            costs = each.costs(ask(user(DOCUMENT)), replicas(2), time.monotonic() + 1)
            assert [cost.backlog for cost in costs] == [0, 0]
        again.close()
        file.close()


def test_the_last_one_removes_the_file(path: Path) -> None:
    one, other = (SharedFile.open(path, PREFIXES, SESSIONS) for _ in range(2))
    one.close()
    assert path.exists()
    other.close()
    assert not path.exists()


def test_a_file_of_another_kind_or_with_open_rights_is_refused(path: Path, tmp_path: Path) -> None:
    path.touch(0o644)
    with pytest.raises(NotShared, match="not a private file"):
        SharedFile.open(path, PREFIXES, SESSIONS)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic link"):
        SharedFile.open(tmp_path / "link", PREFIXES, SESSIONS)


def test_more_processes_than_there_is_room_for_go_without(path: Path) -> None:
    files = [SharedFile.open(path, PREFIXES, SESSIONS) for _ in range(MAX_PROCESSES)]
    with pytest.raises(NotShared, match="16 processes"):
        SharedFile.open(path, PREFIXES, SESSIONS)
    files[3].close()
    late = SharedFile.open(path, PREFIXES, SESSIONS)
    assert late.process == 3
    for file in (*files[:3], *files[4:], late):
        file.close()


def test_a_process_that_is_stopped_while_it_excludes_the_others_stops_nobody(
    processes: list[Router], path: Path
) -> None:
    stopped = SharedFile.open(path, PREFIXES, SESSIONS)
    with stopped.exclusive() as alone:
        assert alone
        with pytest.raises(NotShared, match="locked"):
            SharedFile.open(path, PREFIXES, SESSIONS)
        assert serve(processes[0], ask(user(DOCUMENT)), replicas(2)).reason == "load"
        assert serve(processes[0], ask(user(DOCUMENT)), replicas(2)).reason == "prefix"
    stopped.close()


def test_replicas_beyond_the_room_are_known_to_each_process_alone(processes: list[Router], clock: Clock) -> None:
    one, other, _ = processes
    fleet = replicas(MAX_REPLICAS + 1)
    for router in (one, other):
        router.follow(dict.fromkeys(fleet, Boot()))
    last = fleet[-1:]
    for seconds, waits in ((0, False), (61, True)):  # then the others are gone, and their room is reused
        clock.now += seconds
        choice = one.choose(ask(user(DOCUMENT * 10)), last)
        second = other.choose(ask(user("a")), last)
        assert (other.costs(ask(user("a")), last, clock.now)[0].backlog > 1) == waits
        one.finish(choice, answered=False)
        other.finish(second, answered=False)
        for router in (one, other):
            router.follow({})
            router.follow(dict.fromkeys(last, Boot()))


def test_a_replica_whose_room_was_reused_meanwhile_gets_another(processes: list[Router], clock: Clock) -> None:
    """A process that was stopped for more than a minute."""
    one, other, _ = processes
    fleet = replicas(MAX_REPLICAS + 1)
    serve(one, ask(user(DOCUMENT)), fleet[:1])
    clock.now += 61
    other.follow(dict.fromkeys(fleet[1:], Boot()))
    serve(one, ask(user("a")), fleet[:1])
    assert serve(one, ask(user("a")), fleet[:1]).warm_tokens > 0
    assert all(other.costs(ask(user("a")), [each], clock.now)[0].warm_tokens == 0 for each in fleet[1:])


def test_the_size_of_the_file_is_reserved(path: Path) -> None:
    file = SharedFile.open(path, PREFIXES, SESSIONS)
    assert path.stat().st_size == size(PREFIXES, SESSIONS) <= path.stat().st_blocks * 512
    file.close()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_processes_that_start_together_share(path: Path) -> None:
    """Reserving the memory takes longer than any later exclusion."""
    start = "import sys; from pathlib import Path; from routing.shared.file import SharedFile\n"
    start += (
        "file = SharedFile.open(Path(sys.argv[1]), 1 << 22, 1 << 17); print(file.process, flush=True); sys.stdin.read()"
    )
    with ExitStack() as stack:
        begun = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", start, str(path)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), text=True,
                )
            )
            for _ in range(3)
        ]  # fmt: skip
        numbers = {int(each.stdout.readline()) for each in begun if each.stdout is not None}
    assert numbers == {0, 1, 2}


def test_a_number_that_is_used_again_has_no_request_of_the_process_before(path: Path) -> None:
    one, other = (SharedFile.open(path, PREFIXES, SESSIONS) for _ in range(2))
    here, there = (Router(each.state) for each in (one, other))
    for router in (here, there):
        router.state.look(time.monotonic())
        router.follow(dict.fromkeys(replicas(1), Boot()))
    for number in range(20):
        there.choose(ask(user(f"{number}" * 100)), replicas(1))
    other.close()
    again = SharedFile.open(path, PREFIXES, SESSIONS)
    assert again.process == other.process
    Router(again.state).follow(dict.fromkeys(replicas(1), Boot()))
    here.state.look(time.monotonic())
    (cost,) = here.costs(ask(user("a")), replicas(1), time.monotonic() + 1)
    assert (cost.backlog, cost.decode) == (0, 0)
    again.close()
    one.close()
