"""Move the files of one revision on this node one step: start the process that fetches them, follow it, try again.

    wanted ─► fetching ─► ready        fetching ─► failed ─► fetching, after a delay
       ▲                    │
       └────────────────────┘ its files are gone

The process outlives the agent; the next agent adopts it. A row that is gone ends its process, and the files stay.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from django.db.models.functions import Now

from workers import processes, tasks
from workers.agent.timeouts import Timeouts, fetch_backoff_seconds
from workers.agent.wakeup import WakeEvent
from workers.agent.weights.fetch_processes import Fetch, FetchProcesses
from workers.agent.weights.weights_rows import WeightsRow, WeightsRows
from workers.engines.errors import UnknownEngineKey
from workers.metrics import AgentCounters
from workers.weights.job import Report
from workers.weights.secrets import SecretUnreadable

log = logging.getLogger(__name__)

#: Processes of one node at the same time; each has several connections.
MOST_FETCHES = 2
#: Counting of attempts ends here; the delay reached its cap long before.
MOST_ATTEMPTS = 1000
#: Files and folders of one commit that are looked at.
MOST_ENTRIES = 100_000


class WeightsLifecycle:
    """The fetches of one node and the steps of their rows. One thread calls it."""

    def __init__(
        self,
        rows: WeightsRows,
        fetch_processes: FetchProcesses,
        wake_event: WakeEvent,
        timeouts: Timeouts,
        counters: AgentCounters,
    ) -> None:
        self._rows = rows
        self._processes = fetch_processes
        self._wake_event = wake_event
        self._timeouts = timeouts
        self._counters = counters
        self._fetches: dict[UUID, Fetch] = {}
        self._looked_at: dict[UUID, float] = {}

    @property
    def fetches(self) -> tuple[Fetch, ...]:
        """The processes of this node that the agent knows."""
        return tuple(self._fetches.values())

    def adopt(self) -> int:
        """Keep the processes that an earlier agent left; return how many."""
        for fetch in self._processes.adopt():
            self._keep(fetch)
        return len(self._fetches)

    def end_all_but(self, rows: Sequence[WeightsRow]) -> None:
        """End the processes of all other rows, which are not wanted any more."""
        known = {row.weights_id for row in rows}
        for weights_id in self._fetches.keys() - known:
            self._end(self._fetches[weights_id])
        self._looked_at = {key: at for key, at in self._looked_at.items() if key in known}

    def step(self, row: WeightsRow) -> None:
        """Make the row's next move, if there is one."""
        fetch = self._fetches.get(row.weights_id)
        if row.state == "fetching" and fetch is not None:
            self._follow(row, fetch)
        elif row.state == "ready":
            self._check(row)
        elif row.due or row.state == "fetching":
            self._begin(row)

    def _begin(self, row: WeightsRow) -> None:
        busy = {fetch.record.source for fetch in self._fetches.values()}
        if row.source in busy or len(busy) >= MOST_FETCHES:
            return
        try:
            token = self._rows.token(row)
        except (UnknownEngineKey, SecretUnreadable) as error:
            self._failed(row, f"its token cannot be read: {error}; import the cluster's secrets on this node")
            return
        if row.state != "fetching" and not self._rows.move(row, "fetching", error="", next_attempt_at=None):
            return
        self._wake_event.set()
        try:
            self._keep(self._processes.start(row, token))
        except OSError as error:
            self._failed(replace(row, state="fetching"), f"no process can be started: {error}")
            return
        log.info("weights of %s: fetching commit %s", row.source, row.commit)

    def _follow(self, row: WeightsRow, fetch: Fetch) -> None:
        running = fetch.running  # before the report, so that the last one is read
        now = time.monotonic()
        if running and now - fetch.noted_at < self._timeouts.observe_seconds:
            return
        fetch.noted_at = now
        report = self._processes.report(fetch)
        if report is not None:
            self._count(fetch, report)
        if running:
            if report is not None and (report.bytes_done, report.bytes_total) != (row.bytes_done, row.bytes_total):
                self._rows.note(row, bytes_done=report.bytes_done, bytes_total=report.bytes_total)
            return
        status = processes.collect(fetch.record.process)
        words = self._processes.last_log_line(fetch)
        if not self._end(fetch):
            return
        if report is None or report.state == "fetching":
            how = "its process is gone" if status is None else f"its process ended with status {status}"
            self._failed(row, how if report is not None or not words else f"{how}: {words}", report)
        elif report.state == "failed":
            self._failed(row, report.error, report)
        else:
            self._done(row, report)

    def _done(self, row: WeightsRow, report: Report) -> None:
        facts = {"bytes_done": report.bytes_done, "bytes_total": report.bytes_total, "folder": report.folder}
        if self._rows.move(row, "ready", attempts=0, error="", next_attempt_at=None, **facts):
            log.info("weights of %s: ready in %s", row.source, report.folder)
            self._looked_at[row.weights_id] = time.monotonic()
            tasks.wake_control()  # replicas may be placed here

    def _failed(self, row: WeightsRow, why: str, report: Report | None = None) -> None:
        self._counters.weights_failed += 1
        attempts = min(row.attempts + 1, MOST_ATTEMPTS)
        delay = fetch_backoff_seconds(self._timeouts, attempts, random.random())
        log.warning("weights of %s: %s; next attempt in %.0f s", row.source, why, delay)
        facts = {} if report is None else {"bytes_done": report.bytes_done, "bytes_total": report.bytes_total}
        next_attempt_at = Now() + dt.timedelta(seconds=delay)
        self._rows.move(row, "failed", error=why[:500], attempts=attempts, next_attempt_at=next_attempt_at, **facts)

    def _check(self, row: WeightsRow) -> None:
        """Fetch files again that somebody has removed from the cache."""
        now = time.monotonic()
        if now - self._looked_at.get(row.weights_id, 0.0) < self._timeouts.sweep_seconds:
            return
        self._looked_at[row.weights_id] = now
        if _bytes_in(Path(row.folder)) < (row.bytes_total or 0):
            log.warning("weights of %s: files are missing in %s", row.source, row.folder)
            self._rows.move(row, "wanted", folder="", error=f"files were missing in {row.folder}"[:500])

    def _count(self, fetch: Fetch, report: Report) -> None:
        if fetch.bytes_counted is not None:  # else the agent before has counted what there is
            self._counters.weights_bytes += max(0, report.bytes_fetched - fetch.bytes_counted)
        fetch.bytes_counted = report.bytes_fetched

    def _keep(self, fetch: Fetch) -> None:
        self._fetches[fetch.record.weights_id] = fetch
        self._wake_event.watch(fetch.record.process)

    def _end(self, fetch: Fetch) -> bool:
        if not self._processes.end(fetch):
            log.error("weights of %s: process %s survives SIGKILL", fetch.record.source, fetch.record.pid)
            return False
        self._fetches.pop(fetch.record.weights_id, None)
        return True


def _bytes_in(folder: Path) -> float:
    """Return the size of all files below a folder; infinite where that is unknown.

    Engines may write there, so links to folders are not entered, and the search ends after MOST_ENTRIES.
    """
    total = entries = 0
    folders = [os.fspath(folder)]
    try:
        while folders:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        return float("inf")
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += _size(entry)
    except FileNotFoundError:
        return 0
    except OSError:
        return float("inf")
    return total


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size if entry.is_file() else 0
    except FileNotFoundError:  # a link to content that is gone
        return 0
