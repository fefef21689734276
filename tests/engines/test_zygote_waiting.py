"""A waiting zygote: its answers, what it refuses, and that no client can harm it."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engines.replica import spec_for
from tests.engines.zygotes import Waiting, wait_until_warm, waiting
from workers import processes
from workers.engines import zygote_client
from workers.engines.choice import driver_for
from workers.engines.driver import EngineCommand
from workers.engines.environment import EngineEnvironment, EngineKind
from workers.engines.errors import ZygoteError, ZygoteRefused
from workers.engines.vllm import VllmDriver


@pytest.fixture(name="zygote")
def _zygote() -> Iterator[Waiting]:
    with waiting("simulated") as zygote:
        yield zygote


@contextlib.contextmanager
def calling(zygote: Waiting) -> Iterator[socket.socket]:
    """Yield a connection for a client that may break the protocol."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(30)
        caller.connect(str(zygote.socket_path))
        yield caller


def become(zygote: Waiting, command: EngineCommand, log_path: Path | None = None) -> int:
    return zygote_client.become(zygote.socket_path, command, log_path or zygote.spec.log_path, 10)


def changed(command: EngineCommand, *argv: str, **env: str) -> EngineCommand:
    return EngineCommand(argv or command.argv, {**command.env, **env})


def test_it_says_how_it_is_as_often_as_it_is_asked(zygote: Waiting) -> None:
    first = zygote.status()
    assert (first.state, first.pid, first.threads, first.reason) == ("warm", zygote.process.pid, 1, "")
    assert first.memory_bytes > 2**20
    assert all(zygote.status().seconds == first.seconds for _ in range(50))
    with calling(zygote) as caller:
        caller.sendall(b'{"verb": "ping"}\n' * 3)
        with caller.makefile() as answers:
            assert [json.loads(answers.readline())["state"] for _ in range(3)] == ["warm"] * 3


def test_its_socket_is_its_users_own(zygote: Waiting) -> None:
    assert zygote.socket_path.stat().st_mode & 0o777 == 0o600


def test_the_time_of_imports_is_spent_before_the_promotion() -> None:
    with waiting("simulated", engine_args=("--import-seconds", "1.5")) as zygote:
        assert zygote.status().seconds >= 1.5
        zygote.promote()


def test_what_it_cannot_become_is_refused_and_it_waits_on(zygote: Waiting, tmp_path: Path) -> None:
    plain = zygote.command
    refusals: list[tuple[EngineCommand, Path, str]] = [
        (changed(plain, "/usr/bin/python", *plain.argv[1:]), zygote.spec.log_path, "can only become"),
        (changed(plain, *plain.argv[:2], "http.server"), zygote.spec.log_path, "can only become"),
        (changed(plain, PYTHONHASHSEED="9"), zygote.spec.log_path, "PYTHONHASHSEED was None"),
        (EngineCommand(plain.argv, {}), zygote.spec.log_path, "PYTHONPATH was"),
        (changed(plain, **{"A=B": "c"}), zygote.spec.log_path, "equals sign"),
        (changed(plain, *plain.argv, "nul\0"), zygote.spec.log_path, "argv must be"),
        (plain, tmp_path / "nowhere" / "log", "the log cannot be opened"),
    ]
    for command, log_path, reason in refusals:
        with pytest.raises(ZygoteRefused, match=reason):
            become(zygote, command, log_path)
    assert zygote.status().state == "warm"
    zygote.promote()


@pytest.mark.parametrize(
    "change",
    [{"argv": "python"}, {"argv": [1]}, {"env": []}, {"env": {"A": 1}}, {"env": {"A": "\ud800"}}, {"log_path": "log"}],
)
def test_a_malformed_request_is_refused(zygote: Waiting, change: dict[str, Any]) -> None:
    plain = zygote.command
    whole = {"verb": "become", "argv": plain.argv, "env": dict(plain.env), "log_path": str(zygote.spec.log_path)}
    with calling(zygote) as caller:
        caller.sendall(json.dumps(whole | change).encode() + b"\n")
        with caller.makefile() as answers:
            answer = json.loads(answers.readline())
    assert answer["ok"] is False
    assert zygote.status().state == "warm"


def test_a_process_with_a_second_thread_does_not_become_an_engine(tmp_path: Path) -> None:
    spec = spec_for(tmp_path)
    command = driver_for("simulated").zygote(spec, tmp_path / "zygote.sock")
    assert command is not None
    program = (
        "import sys, threading; from workers.engines import zygote\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "zygote.main(sys.argv[1:])"
    )
    with subprocess.Popen(
        [command.argv[0], "-c", program, *command.argv[2:]], env=command.environment(os.environ)
    ) as process:
        try:
            zygote = Waiting("simulated", spec, process, tmp_path)
            status = wait_until_warm(zygote)
            assert (status.state, status.threads) == ("unfit", 2)
            assert "2 threads" in status.reason
            with pytest.raises(ZygoteRefused, match="2 threads"):
                become(zygote, zygote.command)
        finally:
            process.kill()


def test_twenty_callers_who_send_rubbish_change_nothing(zygote: Waiting) -> None:
    dice = random.Random(20)
    rubbish = [
        *(dice.randbytes(5000) for _ in range(8)),
        *(b"[" * 100_000 + b"\n", b"null\n", b'{"verb": "dance"}\n', b'{"verb"', b"\n" * 1000, b'{"verb": ["ping"]}\n'),
        *(b"x" * 3_000_000, b'{"verb": "ping"}\n' * 50_000, b"", b"\xff\xfe\n", b"NaN\n", b'"become"\n'),
    ]
    assert len(rubbish) == 20

    def pester(sent: bytes) -> None:
        with contextlib.suppress(OSError), calling(zygote) as caller:
            caller.sendall(sent)
            caller.recv(100)

    threads = [threading.Thread(target=pester, args=(sent,)) for sent in rubbish]
    for thread in threads:
        thread.start()
    assert zygote.status().state == "warm"
    for thread, sent in zip(threads, rubbish, strict=True):
        if sent.endswith(b"\n"):
            thread.join(60)
            assert not thread.is_alive(), sent[:20]
    assert zygote.status().state == "warm"
    zygote.promote()
    for thread in threads:
        thread.join(60)


def test_more_callers_than_it_keeps_do_not_lock_anybody_out(zygote: Waiting) -> None:
    with contextlib.ExitStack() as connections:
        for _ in range(200):
            connections.enter_context(calling(zygote))
            assert zygote.status().state == "warm"


def test_it_becomes_nothing_when_whoever_asked_is_gone(zygote: Waiting) -> None:
    """Otherwise an unknown engine would serve."""
    plain = zygote.command
    request = {"verb": "become", "argv": plain.argv, "env": dict(plain.env), "log_path": str(zygote.spec.log_path)}
    os.kill(zygote.process.pid, signal.SIGSTOP)
    while _state(zygote.process.pid) != "T":
        time.sleep(0.01)
    with calling(zygote) as caller:
        caller.sendall(json.dumps(request).encode() + b"\n")
    os.kill(zygote.process.pid, signal.SIGCONT)
    assert zygote.status().state == "warm"
    zygote.promote()


def test_the_socket_of_a_dead_zygote_is_replaced(zygote: Waiting) -> None:
    assert processes.kill_session(zygote.leader, timeout_seconds=30)
    with pytest.raises(ZygoteError, match="refused"):
        zygote.status()
    with _second(zygote) as second:
        assert wait_until_warm(second).pid == second.process.pid


def test_a_zygote_takes_no_path_that_is_in_use(zygote: Waiting) -> None:
    with _second(zygote) as second:
        assert second.process.wait(30) == 1
    assert zygote.status().pid == zygote.process.pid
    occupied = zygote.folder / "file"
    occupied.write_text("kept")
    with _second(zygote, occupied) as second:
        assert second.process.wait(30) == 1
    assert occupied.read_text() == "kept"


def test_what_is_no_zygote_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZygoteError, match="No such file"):
        zygote_client.ping(tmp_path / "nobody", 1)
    with pytest.raises(ZygoteError, match="too long"):
        zygote_client.ping(tmp_path / ("x" * 200), 1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        with pytest.raises(ZygoteError, match="timed out"):
            zygote_client.ping(tmp_path / "silent", 0.2)


@pytest.mark.parametrize("answer", [b"", b"hello\n", b"[]\n", b'{"state": "warm"}\n', b'{"ok": true}\n'])
def test_an_answer_that_no_zygote_gives_is_an_error(tmp_path: Path, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(tmp_path / "socket"))
        stranger.listen()

        def serve() -> None:
            for _ in range(2):
                connection, _ = stranger.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ZygoteError) as pinged:
            zygote_client.ping(tmp_path / "socket", 10)
        with pytest.raises(ZygoteError) as told:
            zygote_client.become(tmp_path / "socket", EngineCommand(("python",)), tmp_path / "log", 10)
        thread.join(30)
    assert not isinstance(pinged.value, ZygoteRefused)
    assert not isinstance(told.value, ZygoteRefused)


def test_it_imports_with_the_environment_of_a_plain_start_less_the_replicas_own(tmp_path: Path) -> None:
    driver = VllmDriver(EngineEnvironment(Path("/somewhere"), EngineKind.VLLM_CPU, "0.32.0", "digest"))
    spec = replace(spec_for(tmp_path), hash_seed="3", cpu_threads=2)
    plain, command = driver.command(spec), driver.zygote(spec, tmp_path / "socket")
    own = {"VLLM_API_KEY", "HEARTH_REPLICA_ID"}
    inherited = {name: value for name, value in plain.env.items() if name not in own}
    assert dict(command.env) == inherited | {"OPENBLAS_NUM_THREADS": "1"}
    assert (command.env["OMP_NUM_THREADS"], command.env["PYTHONHASHSEED"]) == ("2", "3")
    assert command.argv[0] == plain.argv[0]
    assert command.argv[command.argv.index("--") + 1 :] == plain.argv[2:]
    on_gpu = VllmDriver(EngineEnvironment(Path("/somewhere"), EngineKind.VLLM, "0.32.0", "digest"))
    sliced = on_gpu.zygote(spec_for(tmp_path, gpu_uuids=("GPU-a",)), tmp_path / "socket")
    assert sliced.env["CUDA_VISIBLE_DEVICES"] == "GPU-a"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def _second(zygote: Waiting, path: Path | None = None) -> Iterator[Waiting]:
    """Start another zygote at the path of the first, or at ``path``."""
    command = driver_for("simulated").zygote(zygote.spec, path or zygote.socket_path)
    assert command is not None
    with subprocess.Popen(command.argv, env=command.environment(os.environ), stderr=subprocess.DEVNULL) as process:
        try:
            yield Waiting("simulated", zygote.spec, process, zygote.folder)
        finally:
            process.kill()
