"""Ping a zygote, and make it become an engine. Blocking; each call is one connection."""

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workers.engines.driver import EngineCommand
from workers.engines.errors import ZygoteError, ZygoteRefused

LONGEST_ANSWER_BYTES = 64 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteStatus:
    """The status of a zygote. ``seconds`` is how long its imports took, ``memory_bytes`` is resident memory.

    ``state`` is "unfit" if it must not become an engine; ``reason`` then says why, and is empty otherwise.
    """

    state: Literal["warm", "unfit"]
    pid: int
    seconds: float
    memory_bytes: int
    threads: int
    reason: str


def ping(socket_path: Path, timeout_seconds: float) -> ZygoteStatus:
    """Return the zygote's status. Raises ZygoteError while it still imports, if it has ended, and on a timeout."""
    answer = _ask(socket_path, {"verb": "ping"}, timeout_seconds)
    try:
        return ZygoteStatus(
            state="warm" if answer["state"] == "warm" else "unfit",
            pid=int(answer["pid"]),
            seconds=float(answer["seconds"]),
            memory_bytes=int(answer["memory_bytes"]),
            threads=int(answer["threads"]),
            reason=str(answer["reason"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ZygoteError(socket_path, f"it does not answer as a zygote does: {answer}") from error


def become(socket_path: Path, command: EngineCommand, log_path: Path, timeout_seconds: float) -> int:
    """Turn the zygote into the engine of ``command`` and return its pid, which does not change.

    Returns once the process has accepted, before the engine listens. The engine appends to ``log_path``, which it gets
    as an open file, because another account may run it. Raises
    ZygoteRefused if the zygote refused and still waits. After any other ZygoteError it may or may not have become the
    engine: kill its session before starting another process in its place.
    """
    request = {"verb": "become", "argv": command.argv, "env": dict(command.env), "log_path": str(log_path.absolute())}
    try:
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ZygoteRefused(socket_path, f"the log cannot be opened: {error}") from error
    try:
        answer = _ask(socket_path, request, timeout_seconds, log)
    finally:
        os.close(log)
    if answer.get("ok") is False:
        raise ZygoteRefused(socket_path, str(answer.get("error")))
    pid = answer.get("pid")
    if not isinstance(pid, int):
        raise ZygoteError(socket_path, f"it does not answer as a zygote does: {answer}")
    return pid


def _ask(socket_path: Path, request: dict[str, Any], timeout_seconds: float, *descriptors: int) -> dict[str, Any]:
    """Send one line, with open files, and return the answer; the timeout covers the whole exchange."""
    deadline = time.monotonic() + timeout_seconds
    received = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_seconds)
            connection.connect(str(socket_path))
            line = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(connection, [line], descriptors) if descriptors else 0
            if sent < len(line):  # even an empty send fails once the zygote has answered and closed
                connection.sendall(line[sent:])
            while not received.endswith(b"\n"):
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                chunk = connection.recv(65536)
                if not chunk or len(received) > LONGEST_ANSWER_BYTES:
                    raise ZygoteError(socket_path, "it closed the connection without an answer")
                received += chunk
        answer = json.loads(received)
    except (OSError, ValueError) as error:
        raise ZygoteError(socket_path, str(error) or type(error).__name__) from error
    if not isinstance(answer, dict):
        raise ZygoteError(socket_path, "it does not answer as a zygote does")
    return answer
