"""Keep the files of models that this node may soon need in its page cache, by a process of low priority."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Sequence

from workers.agent.weights.fetch_processes import ENVIRONMENT
from workers.agent.weights.staged_rows import StagedRow, StagedRows
from workers.weights.stage import Staged, parse_results

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "workers.weights.stage")


class Stager:
    """Runs one process after the other and writes what each found. One thread calls it; nothing here waits.

    The process needs no record on disk: it ends by itself once its agent is gone.
    """

    def __init__(self, rows: StagedRows, *, pause_seconds: float) -> None:
        self._rows = rows
        self._pause_seconds = pause_seconds
        self._process: subprocess.Popen[bytes] | None = None
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
            self._process.communicate()
            self._process = None

    def _start(self, rows: Sequence[StagedRow], share: float) -> None:
        here = tuple(row for row in rows if row.folder)
        for row in rows:
            if not row.folder:
                self._rows.note(row, Staged(folder="", note="its files are not on this node"))
        if not here:
            return
        job = json.dumps({"folders": list(dict.fromkeys(row.folder for row in here)), "share": share})
        self._process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True
        )
        self._staging = here
        assert self._process.stdin is not None
        self._process.stdin.write(job.encode())  # a pipe holds far more than some folders
        self._process.stdin.close()

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            return
        self._process, self._ended_at = None, time.monotonic()
        assert process.stdout is not None
        text = process.stdout.read()
        process.stdout.close()
        try:
            found = {each.folder: each for each in parse_results(text)}
        except (ValueError, TypeError):
            log.error("files cannot be staged: the process ended with status %s", process.returncode)
            return
        for row in self._staging:
            if (result := found.get(row.folder)) is not None:
                self._rows.note(row, result)
