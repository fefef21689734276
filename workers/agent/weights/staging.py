"""Keep the files of models that this node may soon need in its page cache, by a process of low priority."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Protocol

from workers.agent.weights.fetch_processes import ENVIRONMENT
from workers.agent.weights.staged_rows import StagedRow
from workers.weights.stage import Staged, parse_results

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "workers.weights.stage")


class Rows(Protocol):
    """What is to be staged, and where the results go."""

    def wanted(self) -> tuple[tuple[StagedRow, ...], float]:
        """Return the files to stage, most recently wanted first, and the share of the memory that they may take."""
        ...

    def note(self, row: StagedRow, found: Staged) -> None:
        """Write what became of the files."""
        ...


class Stager:
    """Runs one process after the other and writes what each found. One thread calls it; nothing here waits.

    The process needs no record on disk: it ends by itself once its agent is gone.
    """

    def __init__(self, rows: Rows, *, pause_seconds: float) -> None:
        self._rows = rows
        self._pause_seconds = pause_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._results: IO[bytes] | None = None
        self._staging: tuple[StagedRow, ...] = ()
        self._ended_at = float("-inf")

    def step(self) -> None:
        """Take the results of a process that has ended, or start the next one if it is time for that."""
        if self._process is not None:
            self._follow(self._process)
        elif time.monotonic() - self._ended_at >= self._pause_seconds:
            self._ended_at = time.monotonic()
            rows, share = self._rows.wanted()
            if rows:
                self._start(rows, share)

    def stop(self) -> None:
        """Kill the process, if one runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._take_results()
            self._process = None

    def _start(self, rows: Sequence[StagedRow], share: float) -> None:
        here = tuple(row for row in rows if row.folder)
        for row in rows:
            if not row.folder:
                self._rows.note(row, Staged(folder="", note="its files are not on this node"))
        if not here:
            return
        job = json.dumps({"folders": list(dict.fromkeys(row.folder for row in here)), "share": share})
        # Files, because a pipe holds 64 KiB: the process would wait for the agent, or the agent for it.
        self._results = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process has ended
        with tempfile.TemporaryFile() as given:
            given.write(job.encode())
            given.seek(0)
            self._process = subprocess.Popen(
                COMMAND, stdin=given, stdout=self._results, env=ENVIRONMENT, start_new_session=True
            )
        self._staging = here

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            return
        self._process, self._ended_at = None, time.monotonic()
        try:
            found = {each.folder: each for each in parse_results(self._take_results())}
        except (ValueError, TypeError):
            log.error("files cannot be staged: the process ended with status %s", process.returncode)
            return
        for row in self._staging:
            if (result := found.get(row.folder)) is not None:
                self._rows.note(row, result)

    def _take_results(self) -> bytes:
        """Return what the process has written, which has ended, and close the file."""
        assert self._results is not None
        with self._results as results:
            self._results = None
            results.seek(0)
            return results.read()
