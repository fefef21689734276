"""Store the logs of all writers of a host in PostgreSQL, exactly once.

Positions are stored in the transaction of the rows they cover, so the process may be killed at any point. While
PostgreSQL is unavailable, the drain retries with growing pauses and the logs grow. Files that need an operator stay in
the directory: damaged segments as ``*.damaged``, rows that the database rejects as lines of ``refused.jsonl``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Protocol
from uuid import UUID

import msgspec
from django.db import DataError, Error, IntegrityError, connection
from django.utils import timezone

from billing import metrics
from billing.drain import batch
from billing.drain.batch import Position
from billing.drain.lag import WalBacklog, measure
from billing.drain.log_tail import LogTail
from billing.errors import WalDirectoryBusy
from billing.ledger.usage_rows import UsageRow
from billing.models import WalOffset
from billing.wal.reader import is_alive
from billing.wal.records import Start
from billing.wal.segments import Segment, segments
from tenants.request_log import logs_requests, requests_log

logger = logging.getLogger(__name__)

#: Most rows in one transaction: enough to make its fixed cost negligible and to let many rows share a roll-up, few
#: enough to hold locks for only a quarter of a second.
BATCH_ROWS = 5000
POLL_SECONDS = 0.1
#: How often the database learns that everything is stored, which the closing of a month waits for.
CAUGHT_UP_SECONDS = 15.0
FIRST_RETRY_SECONDS = 0.1
#: Hard budgets are unknown until the drain has connected again.
LAST_RETRY_SECONDS = 1.0
LOCK_FILE = "drain.lock"
REFUSED_FILE = "refused.jsonl"


class AfterBatch(Protocol):
    """Called after each batch."""

    def __call__(self, *, caught_up: bool) -> None: ...


class Drain:
    """The owner of a log directory: one process, for its lifetime."""

    def __init__(self, directory: Path, node: str) -> None:
        """Take the directory's lock. Raises WalDirectoryBusy."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._node = node
        self._tails: dict[UUID, LogTail] = {}
        #: Rows read and not yet stored; None when all are stored.
        self._rows: list[UsageRow] | None = None
        self._stopping = False
        #: time.monotonic() when the database was last sent that all is stored.
        self._caught_up_sent_at: float | None = None
        #: time.monotonic() at the start of the last round of :meth:`run`; None before the first.
        self.last_round_at: float | None = None
        self._lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise WalDirectoryBusy(directory) from None

    def owns_directory(self) -> bool:
        """Return whether the lock held is still the directory's: it may have been removed or replaced."""
        try:
            return os.path.samestat(os.fstat(self._lock), (self._directory / LOCK_FILE).stat())
        except OSError:
            return False

    def backlog(self) -> WalBacklog:
        """Measure what this drain has not stored, without a database query. Thread-safe."""
        stored = {tail.writer_id: tail.stored for tail in list(self._tails.values())}
        return measure(stored, segments(self._directory))

    def close(self) -> None:
        """Release the directory's lock."""
        os.close(self._lock)

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Make :meth:`run` store what was written and return. Sets a flag, so it is safe in a signal handler."""
        self._stopping = True

    def open_starts(self) -> list[Start]:
        """Return the STARTs read so far whose requests are not stored."""
        return [start for tail in self._tails.values() for start in tail.open_starts()]

    def run(self, after_batch: AfterBatch = lambda *, caught_up: None) -> None:
        """Drain until stopped. Once stopped, do not wait for an unavailable database.

        ``after_batch`` is called after each batch; ``caught_up``: the logs were read to their end. It may raise
        django.db.Error.
        """
        pause = FIRST_RETRY_SECONDS
        while True:
            stopping = self._stopping
            self.last_round_at = time.monotonic()
            try:
                more = self.step()
                after_batch(caught_up=not more)
            except Error as error:
                self._forget()
                connection.close()
                if stopping:
                    logger.error("stopped with usage left in the log: %s", error)
                    return
                logger.error("cannot store usage, retrying in %.1f s: %s", pause, error)
                self._sleep(pause)
                pause = min(2 * pause, LAST_RETRY_SECONDS)
                continue
            pause = FIRST_RETRY_SECONDS
            if not more:
                if stopping:
                    return
                time.sleep(POLL_SECONDS)

    def _forget(self) -> None:
        """Read the positions from the database again, and the logs from there.

        A standby that was promoted may lack the last batches. Their position is of the same transaction, so they are
        stored once more as far as their segments are still here.
        """
        self._tails = {}
        self._rows = None

    def step(self) -> bool:
        """Read and store one batch and remove finished segments; return whether more is ready.

        Raises django.db.Error; the next call then retries the same batch.
        """
        read_at = None  # unknown for rows whose batch is tried again
        if self._rows is None:
            read_at = timezone.now()
            self._rows = self._read()
        moved = {tail.writer_id: tail.at for tail in self._tails.values() if tail.at > tail.stored}
        if moved or self._rows:
            self._store(self._rows, moved)
        more = len(self._rows) >= self._share()
        self._rows = None
        for tail in self._tails.values():
            tail.stored = max(tail.stored, tail.at)
        self._clean()
        if read_at is not None and not more:
            self._note_caught_up(read_at)
        return more

    def _note_caught_up(self, moment: datetime) -> None:
        """Write to the database, every CAUGHT_UP_SECONDS, that all from before this moment is stored."""
        now = time.monotonic()
        if self._caught_up_sent_at is None or now - self._caught_up_sent_at >= CAUGHT_UP_SECONDS:
            WalOffset.objects.filter(writer_id__in=self._tails).update(caught_up_at=moment)
            self._caught_up_sent_at = now

    def _read(self) -> list[UsageRow]:
        """Return the next rows of all writers, each an equal share of a batch."""
        alive = {writer_id: is_alive(own[0].lock_path) for writer_id, own in self._segments()}
        # Listed again: it now includes everything written by a writer that died since the first listing.
        present = {writer_id: own for writer_id, own in self._segments() if writer_id in alive}
        self._follow(writer_id for writer_id in present if writer_id not in self._tails)
        share = self._share()
        return [
            row
            for writer_id, own in present.items()
            for row in self._tails[writer_id].read(own, alive=alive[writer_id], limit=share)
        ]

    def _share(self) -> int:
        return -(-BATCH_ROWS // max(1, len(self._tails)))

    def _follow(self, writer_ids: Iterable[UUID]) -> None:
        new = list(writer_ids)
        if not new:
            return
        stored = {
            offset.writer_id: Position(offset.segment, offset.offset)
            for offset in WalOffset.objects.filter(writer_id__in=new)
        }
        for writer_id in new:
            self._tails[writer_id] = LogTail(writer_id, stored.get(writer_id, Position(0, 0)))

    def _store(self, rows: Sequence[UsageRow], moved: dict[UUID, Position]) -> None:
        """Store a batch. While the database rejects it, halve it, and set the rejected row aside."""
        try:
            batch.store(rows, moved, node=self._node)
            metrics.DRAINED_RECORDS.inc(len(rows))
            if logs_requests():
                for row in rows:
                    requests_log.info("stored, %s", row.state, extra={"request_id": str(row.id)})
        except (DataError, IntegrityError) as error:
            if not rows:
                raise
            if len(rows) == 1:
                self._refuse(rows[0], error)
                batch.store([], moved, node=self._node)
                return
            half = len(rows) // 2
            self._store(rows[:half], {})
            self._store(rows[half:], moved)

    def _refuse(self, row: UsageRow, error: Error) -> None:
        """Write a rejected row to a file, so that it neither blocks others nor is lost."""
        logger.error("the database rejected the usage of %s: %s", row.id, error)
        metrics.REFUSED_RECORDS.inc()
        with (self._directory / REFUSED_FILE).open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _segments(self) -> list[tuple[UUID, list[Segment]]]:
        found = segments(self._directory)
        return [(writer_id, list(own)) for writer_id, own in groupby(found, key=lambda segment: segment.writer_id)]

    def _clean(self) -> None:
        """Remove stored segments without open requests, and the lock and position of a finished writer.

        The position is removed first: a segment left by a crash is then read again and adds nothing.
        """
        for writer_id, own in self._segments():
            tail = self._tails.get(writer_id)
            if tail is None:
                continue
            done = own[: next((place for place, one in enumerate(own) if tail.is_needed(one)), len(own))]
            if len(done) == len(own):
                WalOffset.objects.filter(writer_id=writer_id).delete()
            for segment in done:
                if segment.number in tail.damaged:
                    segment.path.rename(segment.path.with_suffix(".damaged"))
                else:
                    segment.path.unlink()
            if len(done) == len(own):
                own[0].lock_path.unlink(missing_ok=True)
                del self._tails[writer_id]

    def _sleep(self, seconds: float) -> None:
        """Sleep, but return within a tenth of a second of a stop."""
        until = time.monotonic() + seconds
        while not self._stopping and (rest := until - time.monotonic()) > 0:
            time.sleep(min(rest, POLL_SECONDS))
