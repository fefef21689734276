"""Engines outside any fleet, for checks and benchmarks: start one from nothing or promote one, ask it, and end it."""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workers import processes
from workers.engines import zygote_client
from workers.engines.choice import driver_for
from workers.engines.driver import TINY_MODEL, EngineSpec
from workers.engines.errors import OutOfTime, TrialFailed, ZygoteError
from workers.engines.zygote_client import ZygoteStatus
from workers.processes import ProcessIdentity

API_KEY = "key-of-a-trial"
HOST = "127.0.0.1"
NAME = "trial"
#: How often a start is asked whether it answers; what a figure may be too large by.
POLL_SECONDS = 0.005
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zygote:
    """A zygote that has said it is warm. ``own_bytes`` is memory that no other process shares."""

    process: ProcessIdentity
    socket_path: Path
    devices: tuple[str, ...]
    status: ZygoteStatus
    own_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How long a start took to its first token. ``memory_bytes``: of all its processes, shared pages counted once."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """An engine that has answered, as it was started, and its process."""

    spec: EngineSpec
    process: ProcessIdentity
    start: Start


class Trials:
    """Starts engines of one kind for one model. Every engine has a number, a port and a log in ``folder``.

    Nothing is waited for after ``deadline``, on the monotonic clock: OutOfTime.
    """

    def __init__(
        self,
        engine: str,
        folder: Path,
        *,
        model: str = str(TINY_MODEL),
        engine_args: Sequence[str] = (),
        longest_start_seconds: float = 300.0,
        deadline: float = math.inf,
    ) -> None:
        self._driver = driver_for(engine)
        self._folder = folder
        self._model = model
        self._engine_args = tuple(engine_args)
        self._longest_start_seconds = longest_start_seconds
        self._deadline = deadline
        self._started = 0

    @contextmanager
    def serving(self, devices: Sequence[str] = ()) -> Iterator[Serving]:
        """Start an engine from nothing and give it once it has answered; kill it afterwards. Raises TrialFailed."""
        spec = self._spec(devices)
        command = self._driver.command(spec)
        began = time.monotonic()
        process = processes.launch(command.argv, log_path=spec.log_path, environment=command.environment(os.environ))
        with _ended(process):
            seconds = self._first_token(spec, process) - began
            start = Start(seconds=seconds, memory_bytes=memory_bytes(processes.session_members(process)))
            yield Serving(spec=spec, process=process, start=start)

    def cold(self, devices: Sequence[str] = ()) -> Start:
        """Start an engine from nothing, wait for its answer, and kill it. Raises TrialFailed."""
        with self.serving(devices) as serving:
            return serving.start

    @contextmanager
    def zygote(self, devices: Sequence[str] = ()) -> Iterator[Zygote]:
        """Start a zygote and give it once it is warm; kill its session afterwards. Raises TrialFailed."""
        spec = self._spec(devices)
        socket_path = spec.log_path.with_suffix(".sock")
        command = self._driver.zygote(spec, socket_path)
        assert command is not None
        process = processes.launch(command.argv, log_path=spec.log_path, environment=command.environment(os.environ))
        with _ended(process):
            status = self._first_answer(process, socket_path, spec.log_path)
            own = int(psutil.Process(process.pid).memory_full_info().uss)
            yield Zygote(process=process, socket_path=socket_path, devices=tuple(devices), status=status, own_bytes=own)

    def promote(self, zygote: Zygote) -> Serving:
        """Let a zygote become an engine that its driver did not name when it was started. Raises TrialFailed."""
        spec = self._spec(zygote.devices)
        command = self._driver.command(spec)
        began = time.monotonic()
        try:
            zygote_client.become(zygote.socket_path, command, spec.log_path, 10)
        except ZygoteError as error:
            raise TrialFailed(f"A zygote did not become an engine: {error.reason}.") from error
        seconds = self._first_token(spec, zygote.process) - began
        start = Start(seconds=seconds, memory_bytes=memory_bytes(processes.session_members(zygote.process)))
        return Serving(spec=spec, process=zygote.process, start=start)

    def _spec(self, devices: Sequence[str]) -> EngineSpec:
        self._started += 1
        return EngineSpec(
            replica_id=f"trial-{self._started}",
            model_path=self._model,
            served_name=NAME,
            host=HOST,
            port=_free_port(),
            api_key=API_KEY,
            log_path=self._folder / f"engine-{self._started}.log",
            gpu_uuids=tuple(devices),
            engine_args=self._engine_args,
        )

    def _first_token(self, spec: EngineSpec, process: ProcessIdentity) -> float:
        """Return when the engine's first token arrived, on the monotonic clock."""
        deadline = min(time.monotonic() + self._longest_start_seconds, self._deadline)
        while time.monotonic() < deadline and processes.is_running(process):
            with suppress(OSError, http.client.HTTPException):
                for chunk in ask(spec, max_tokens=1):
                    if chunk["choices"]:
                        return time.monotonic()
            time.sleep(POLL_SECONDS)
        self._raise_if_out_of_time(process)
        raise TrialFailed("An engine did not start.", _end_of(spec.log_path))

    def _first_answer(self, process: ProcessIdentity, socket_path: Path, log_path: Path) -> ZygoteStatus:
        deadline = min(time.monotonic() + self._longest_start_seconds, self._deadline)
        while time.monotonic() < deadline and processes.is_running(process):
            with suppress(ZygoteError):
                status = zygote_client.ping(socket_path, 10)
                if status.state != "warm":
                    raise TrialFailed(f"A zygote may not be promoted: {status.reason}.")
                return status
            time.sleep(0.05)
        self._raise_if_out_of_time(process)
        raise TrialFailed("A zygote did not become warm.", _end_of(log_path))

    def _raise_if_out_of_time(self, process: ProcessIdentity) -> None:
        if time.monotonic() >= self._deadline and processes.is_running(process):
            raise OutOfTime("an engine had started")


def end(process: ProcessIdentity) -> float:
    """Kill a process's session and return the seconds until nothing of it lived. Raises TrialFailed."""
    began = time.monotonic()
    gone = processes.kill_session(process, timeout_seconds=END_SECONDS)
    seconds = time.monotonic() - began
    if not gone:
        raise TrialFailed("A process outlived SIGKILL.")
    return seconds


def ask(spec: EngineSpec, *, max_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of one streamed answer as they arrive. Raises OSError while nobody listens, or TrialFailed."""
    body = {"prompt": "Say something.", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    connection, response = _post(spec, body)
    try:
        for line in response:
            if line.startswith(b"data: {"):
                chunk = json.loads(line.removeprefix(b"data: "))
                if "choices" not in chunk:
                    raise TrialFailed("An engine broke off its answer.", line.decode(errors="replace"))
                yield chunk
    finally:
        connection.close()


def usage(spec: EngineSpec, prompt: str, *, salt: str) -> dict[str, Any]:
    """Return what an engine counted for a prompt under a cache salt. Raises OSError or TrialFailed."""
    connection, response = _post(spec, {"prompt": prompt, "max_tokens": 1, "cache_salt": salt})
    try:
        return dict(json.loads(response.read())["usage"])
    finally:
        connection.close()


def metrics(spec: EngineSpec) -> str:
    """Return an engine's page of Prometheus metrics. Raises OSError or TrialFailed."""
    connection, response = _request(spec, "GET", "/metrics")
    try:
        return response.read().decode(errors="replace")
    finally:
        connection.close()


def _post(spec: EngineSpec, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    return _request(spec, "POST", "/v1/completions", json.dumps({"model": spec.served_name, **body}))


def _request(
    spec: EngineSpec, method: str, path: str, body: str | None = None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    headers = {"Authorization": f"Bearer {spec.api_key}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(spec.host, spec.port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise TrialFailed(f"An engine answered {response.status}.", response.read().decode(errors="replace"))
    except BaseException:
        connection.close()
        raise
    return connection, response


def memory_bytes(members: Iterable[ProcessIdentity]) -> int:
    """Return the memory of processes, shared pages counted once; one that has ended since has none."""
    total = 0
    for member in members:
        with suppress(psutil.NoSuchProcess):
            total += int(psutil.Process(member.pid).memory_full_info().pss)
    return total


@contextmanager
def _ended(process: ProcessIdentity) -> Iterator[None]:
    try:
        yield
    finally:
        processes.kill_session(process, timeout_seconds=END_SECONDS)


def _end_of(log_path: Path) -> str:
    return log_path.read_text(errors="replace")[-2000:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
