"""Real engines to time: started from nothing or promoted, asked for a first token, and ended."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.errors import BenchError
from workers import processes
from workers.engines import zygote_client
from workers.engines.choice import driver_for
from workers.engines.driver import TINY_MODEL, EngineSpec
from workers.engines.errors import ZygoteError
from workers.engines.zygote_client import ZygoteStatus
from workers.processes import ProcessIdentity

ENGINE = "vllm"
API_KEY = "key-of-the-benchmark"
HOST = "127.0.0.1"
LONGEST_START_SECONDS = 300.0
#: How often a start is asked whether it answers; what a figure may be too large by.
POLL_SECONDS = 0.005
EVICTION_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zygote:
    """A zygote that has said it is warm. ``own_bytes`` is memory that no other process shares."""

    process: ProcessIdentity
    socket_path: Path
    status: ZygoteStatus
    own_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How long a start took to its first token. ``memory_bytes``: of all its processes, shared pages counted once."""

    seconds: float
    memory_bytes: int


class Bench:
    """The place of one run: every engine has a number, a port and a log in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = 0

    @contextmanager
    def serving(self) -> Iterator[tuple[EngineSpec, Start]]:
        """Start an engine from nothing and give it once it has answered; kill it afterwards."""
        spec = self._spec()
        command = driver_for(ENGINE).command(spec)
        began = time.monotonic()
        process = processes.launch(command.argv, log_path=spec.log_path, environment=command.environment(os.environ))
        with _ended(process):
            seconds = _first_token(spec, process) - began
            yield spec, Start(seconds=seconds, memory_bytes=_session_bytes(process))

    def cold(self) -> Start:
        """Start an engine from nothing, wait for its answer, and kill it."""
        with self.serving() as (_, start):
            return start

    @contextmanager
    def zygote(self) -> Iterator[Zygote]:
        """Start a zygote and give it once it is warm; kill its session afterwards."""
        spec = self._spec()
        socket_path = spec.log_path.with_suffix(".sock")
        command = driver_for(ENGINE).zygote(spec, socket_path)
        assert command is not None
        process = processes.launch(command.argv, log_path=spec.log_path, environment=command.environment(os.environ))
        with _ended(process):
            status = _first_answer(process, socket_path, spec.log_path)
            own = int(psutil.Process(process.pid).memory_full_info().uss)
            yield Zygote(process=process, socket_path=socket_path, status=status, own_bytes=own)

    def promote(self, zygote: Zygote) -> Start:
        """Let a zygote become an engine that its driver did not name when it was started, and wait for its answer."""
        spec = self._spec()
        command = driver_for(ENGINE).command(spec)
        began = time.monotonic()
        zygote_client.become(zygote.socket_path, command, spec.log_path, 10)
        seconds = _first_token(spec, zygote.process) - began
        return Start(seconds=seconds, memory_bytes=_session_bytes(zygote.process))

    def _spec(self) -> EngineSpec:
        self._started += 1
        return EngineSpec(
            replica_id=f"bench-{self._started}",
            model_path=str(TINY_MODEL),
            served_name="tiny",
            host=HOST,
            port=_free_port(),
            api_key=API_KEY,
            log_path=self._folder / f"engine-{self._started}.log",
        )


def evict(zygote: Zygote) -> float:
    """Kill a zygote's session and return the seconds until nothing of it lived. Raises BenchError."""
    began = time.monotonic()
    gone = processes.kill_session(zygote.process, timeout_seconds=EVICTION_TIMEOUT_SECONDS)
    seconds = time.monotonic() - began
    if not gone:
        raise BenchError("A zygote outlived SIGKILL.")
    return seconds


def ask(spec: EngineSpec, *, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of one streamed answer as they arrive. Raises OSError when nobody listens."""
    body = {"model": "tiny", "prompt": "Say something.", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(spec.host, spec.port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise BenchError(f"An engine answered {response.status}.", response.read().decode(errors="replace"))
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


def _first_token(spec: EngineSpec, process: ProcessIdentity) -> float:
    """Return when the engine's first token arrived, on the monotonic clock. Raises BenchError when it does not."""
    deadline = time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < deadline and processes.is_running(process):
        with suppress(OSError):
            for chunk in ask(spec, max_tokens=1):
                if chunk["choices"]:
                    return time.monotonic()
        time.sleep(POLL_SECONDS)
    raise BenchError("An engine did not start.", spec.log_path.read_text(errors="replace")[-2000:])


def _first_answer(process: ProcessIdentity, socket_path: Path, log_path: Path) -> ZygoteStatus:
    deadline = time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < deadline and processes.is_running(process):
        with suppress(ZygoteError):
            status = zygote_client.ping(socket_path, 10)
            if status.state != "warm":
                raise BenchError(f"A zygote may not be promoted: {status.reason}.")
            return status
        time.sleep(0.05)
    raise BenchError("A zygote did not become warm.", log_path.read_text(errors="replace")[-2000:])


@contextmanager
def _ended(process: ProcessIdentity) -> Iterator[None]:
    try:
        yield
    finally:
        processes.kill_session(process, timeout_seconds=EVICTION_TIMEOUT_SECONDS)


def _session_bytes(process: ProcessIdentity) -> int:
    members = [psutil.Process(member.pid) for member in processes.session_members(process)]
    return sum(int(member.memory_full_info().pss) for member in members)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
