"""Import an engine in advance, wait, and become it on request: ``python zygote.py --engine vllm --socket PATH -- …``

Run by its file's path in the engine's interpreter, which does not have Hearth's packages: only the standard library is
used until the engine is imported. The arguments after ``--`` are those of a plain start after ``python -m``; they
determine what is imported.

The process that waits becomes the one that serves, so pid, start time and session stay. It has one thread and no device
context, because its children are forked: a forked thread pool hangs, and a forked CUDA context is unusable. It loads no
weights, so it can become an engine of another model too; a class that it did not import costs that import then.

The protocol is lines of JSON over the socket, with one answer per line:
  {"verb": "ping"}  {"state": "warm" or "unfit", "pid", "seconds", "memory_bytes", "threads", "reason"}
  {"verb": "become", "argv": […], "env": {…}, "log_path": "…"}  {"ok": true, "pid"} or {"ok": false, "error"}
The log's open file may come with the line; then the path, which this process may have no right to, is not opened.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard

#: Variables that are read when modules are imported or the interpreter starts, so a promotion cannot change them.
IMPORT_TIME_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HF_HUB_OFFLINE",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTHONPATH",
    "TORCHDYNAMO_DISABLE",
)
LONGEST_PATH_BYTES = 107
LONGEST_LINE_BYTES = 2**20
MOST_CLIENTS = 64
MOST_DESCRIPTORS = 4


class Refused(Exception):
    """A request that is refused; the message is sent to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the zygote was started for. ``set_names`` are the variables that its driver set."""

    engine: Literal["vllm", "simulated"]
    module: str
    arguments: tuple[str, ...]
    set_names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """The engine that the zygote will become. ``log`` is an open file descriptor."""

    arguments: tuple[str, ...]
    env: dict[str, str]
    log: int


@dataclass(slots=True, eq=False)
class _Client:
    """One connection and the received part of its next line."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    #: The open log that came with a request.
    log: int | None = None

    def receive(self) -> bytes:
        """Return what the client sent and keep the last descriptor that came with it. Raises OSError."""
        chunk, descriptors, _, _ = socket.recv_fds(self.connection, 65536, MOST_DESCRIPTORS)
        for descriptor in descriptors:
            self.close_log()
            self.log = descriptor
        self.received += chunk
        return chunk

    def close_log(self) -> None:
        """Close the descriptor of the log, if there is one."""
        if self.log is not None:
            os.close(self.log)
            self.log = None

    def take_log(self, log_path: str) -> int:
        """Return the descriptor that came with the request, else open the path. Raises Refused."""
        if self.log is not None:
            log, self.log = self.log, None
            return log
        try:
            return os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Refused(f"the log cannot be opened: {error}") from error


class Zygote:
    """Waits on a unix socket that only its own user may open. One thread; no client can block it or end it."""

    def __init__(self, expected: Expected, warm_up_seconds: float) -> None:
        self._expected = expected
        self._warm_up_seconds = warm_up_seconds
        self._clients: list[_Client] = []
        self._selector = selectors.DefaultSelector()

    def wait(self, path: Path) -> Promotion:
        """Answer clients until a promotion is accepted; then remove the socket. Raises OSError if it cannot listen."""
        listener = _listen(path)
        self._selector.register(listener, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif (promotion := self._read(key.data)) is not None:
                        return promotion
        finally:
            path.unlink(missing_ok=True)
            for client in list(self._clients):
                self._drop(client)
            self._selector.close()
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            self._drop(self._clients[0])
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        client = _Client(connection)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.connection)
            client.connection.close()
            client.close_log()

    def _read(self, client: _Client) -> Promotion | None:
        """Read what a client sent and answer its complete lines; a client that sends too much is dropped."""
        if client not in self._clients:
            return None
        try:
            chunk = client.receive()
            while (end := client.received.find(b"\n")) >= 0:
                line = bytes(client.received[:end])
                del client.received[: end + 1]
                if (promotion := self._reply(client, line)) is not None:
                    return promotion
        except OSError:
            chunk = b""
        if not chunk or len(client.received) > LONGEST_LINE_BYTES:
            self._drop(client)
        return None

    def _reply(self, client: _Client, line: bytes) -> Promotion | None:
        """Answer one line. A promotion counts only once its answer is sent; raises OSError if it cannot be sent."""
        promotion = None
        try:
            request = _parse(line)
            if request.get("verb") == "ping":
                answer = self._status()
            elif request.get("verb") == "become":
                promotion = self._promotion(request, client)
                answer = {"ok": True, "pid": os.getpid()}
            else:
                raise Refused("the verbs are ping and become")
        except Refused as error:
            answer = {"ok": False, "error": str(error)}
        try:
            _send(client.connection, answer)
        except OSError:
            if promotion is not None:
                os.close(promotion.log)
            raise
        return promotion

    def _status(self) -> dict[str, Any]:
        reason = unfit_reason()
        return {
            "state": "unfit" if reason else "warm",
            "pid": os.getpid(),
            "seconds": round(self._warm_up_seconds, 3),
            "memory_bytes": _resident_bytes(),
            "threads": _threads(),
            "reason": reason,
        }

    def _promotion(self, request: dict[str, Any], client: _Client) -> Promotion:
        """Check the whole request before anything changes. Raises Refused."""
        if reason := unfit_reason():
            raise Refused(reason)
        argv, env, log_path = request.get("argv"), request.get("env"), request.get("log_path")
        if not (isinstance(argv, list) and all(_is_text(part) for part in argv)):
            raise Refused("argv must be a list of strings")
        if not (isinstance(env, dict) and all(_is_text(part) for pair in env.items() for part in pair)):
            raise Refused("env must map strings to strings")
        if any(not name or "=" in name for name in env):
            raise Refused("a variable's name is empty or contains an equals sign")
        if not (_is_text(log_path) and os.path.isabs(log_path)):
            raise Refused("log_path must be an absolute path")
        start = [sys.executable, "-m", self._expected.module]
        if argv[:3] != start:
            raise Refused(f"this zygote can only become {' '.join(start)}")
        for name in IMPORT_TIME_VARIABLES:
            was = os.environ.get(name) if name in env or name in self._expected.set_names else None
            if env.get(name) != was:
                raise Refused(f"{name} was {was!r} when the engine was imported; a promotion cannot change it")
        return Promotion(arguments=tuple(argv[3:]), env=env, log=client.take_log(log_path))


def unfit_reason() -> str:
    """Return why this process must not fork, or an empty text."""
    if (threads := _threads()) != 1:
        return f"the process has {threads} threads, and only a process with one thread may fork"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialised, and its context does not survive a fork"
    return ""


def warm_up(expected: Expected) -> None:
    """Import the engine and what it needs for the arguments that it will probably get."""
    if expected.engine == "simulated":
        _warm_simulated(expected.arguments)
    else:
        from workers.engines import zygote_vllm

        zygote_vllm.warm_up(expected.arguments)
    # The objects of now stay, so the collector need not visit them again, which would copy their pages in a child.
    gc.collect()
    gc.freeze()


def become(promotion: Promotion, expected: Expected) -> None:
    """Run the engine in this process as ``python -m`` would, until it ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(promotion.log, 1)
    os.dup2(promotion.log, 2)
    os.close(promotion.log)
    for name in expected.set_names:
        os.environ.pop(name, None)
    os.environ.update(promotion.env)
    if expected.engine == "vllm":
        from workers.engines import zygote_vllm

        zygote_vllm.fork_processes(promotion.arguments)
    sys.argv = [expected.module, *promotion.arguments]
    runpy.run_module(expected.module, run_name="__main__", alter_sys=True)


def _warm_simulated(arguments: Sequence[str]) -> None:
    importlib.import_module("workers.simulated.http.server")
    settings = importlib.import_module("workers.simulated.settings")
    imports = importlib.import_module("workers.simulated.import_delay")
    imports.take(settings.read(arguments).import_seconds)


def _listen(path: Path) -> socket.socket:
    """Bind the socket, replacing one whose process has ended."""
    if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
        raise OSError(f"{path} is longer than {LONGEST_PATH_BYTES} bytes")
    listener = socket.socket(socket.AF_UNIX)
    if _is_stale(path):
        path.unlink()
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(MOST_CLIENTS)
    listener.setblocking(False)
    return listener


def _is_stale(path: Path) -> bool:
    """Return whether the path is a socket whose process has ended; binding over anything else must fail."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _parse(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused("a request is one line of JSON") from error
    if not isinstance(request, dict):
        raise Refused("a request is a JSON object")
    return request


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    """Send one complete line; raises OSError if the client does not read it."""
    line = json.dumps(answer).encode() + b"\n"
    if connection.send(line) != len(line):
        raise OSError("the client does not read")


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether the system accepts the value as an argument, a variable or a path."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _arguments(argv: Sequence[str]) -> tuple[Expected, Path]:
    parser = argparse.ArgumentParser(prog="zygote.py", description="Import an engine, wait, and become it on request.")
    parser.add_argument("--engine", required=True, choices=["vllm", "simulated"])
    parser.add_argument("--socket", required=True, type=Path, help="unix socket to wait at")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME", help="variables that the driver has set")
    parser.add_argument("module", help="the module that a plain start runs with python -m")
    parser.add_argument("arguments", nargs="*", help="the arguments that it will probably get")
    given = parser.parse_args(argv)
    expected = Expected(
        engine=given.engine, module=given.module, arguments=tuple(given.arguments), set_names=tuple(given.set)
    )
    return expected, given.socket


def main(argv: Sequence[str]) -> None:
    """Warm up, wait, and become the engine; return when the engine has ended."""
    started = time.monotonic()
    expected, socket_path = _arguments(argv)
    warm_up(expected)
    promotion = Zygote(expected, time.monotonic() - started).wait(socket_path)
    become(promotion, expected)


if __name__ == "__main__":
    # This file's folder, which Python puts first in the path, contains a vllm.py that is not the engine.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    importlib.import_module("workers.engines.zygote_vllm")
    del sys.path[0]
    main(sys.argv[1:])
