"""Run :mod:`workers.gpu_check.torch_process` in an interpreter that has PyTorch, and read what it says."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from workers import processes
from workers.engines import environment
from workers.engines.driver import SINGLE_THREADED
from workers.gpu_check import torch_process
from workers.gpu_check.findings import Failed
from workers.processes import ProcessIdentity

#: Enough for an import of PyTorch on a busy machine, and for the first use of a GPU.
ANSWER_SECONDS = 120.0


class TorchProcess:
    """The process, while it runs."""

    def __init__(self, process: subprocess.Popen[bytes], identity: ProcessIdentity) -> None:
        self._process = process
        self.identity = identity

    def line(self, event: str) -> dict[str, Any]:
        """Return its next line, which must be about ``event``. Raises Failed."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            raw = self._process.stdout.readline() if selector.select(ANSWER_SECONDS) else b""
        with suppress(ValueError):
            found = json.loads(raw)
            if found.get("event") == event:
                return dict(found)
        raise Failed(f"PyTorch did not get as far as {event!r}: {self._last_words()}")

    def say(self, line: str) -> None:
        """Send it a line. Raises Failed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise Failed(f"PyTorch's process has ended: {self._last_words()}") from None

    def _last_words(self) -> str:
        processes.signal_session(self.identity, signal.SIGKILL)
        assert self._process.stderr is not None
        text = self._process.stderr.read().decode(errors="replace").strip()
        return text.splitlines()[-1] if text else "it wrote nothing"


@contextmanager
def started(python: Path, *arguments: str) -> Iterator[TorchProcess]:
    """Start the process, with the one thread of a zygote, and kill it and its children afterwards. Raises Failed."""
    command = [str(python), str(Path(torch_process.__file__)), *arguments]
    pipe = subprocess.PIPE
    environment = os.environ | SINGLE_THREADED
    with subprocess.Popen(
        command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=environment
    ) as process:
        identity = processes.identify(process.pid)
        if identity is None:
            raise Failed(f"{python} does not run")
        try:
            yield TorchProcess(process, identity)
        finally:
            processes.kill_session(identity, timeout_seconds=ANSWER_SECONDS)


def find_python() -> Path | None:
    """Return an interpreter that has PyTorch: the engine's, else this one; None if neither has."""
    installed = environment.default()
    candidates = [installed.python] if installed is not None else []
    return next((each for each in [*candidates, Path(sys.executable)] if has_torch(each)), None)


def has_torch(python: Path) -> bool:
    """Return whether an interpreter has torch, without importing it."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([str(python), "-c", code], check=False, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
