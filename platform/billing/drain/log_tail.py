"""Follow one writer's log and turn it into usage rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from billing.drain.batch import Position
from billing.ledger import usage_rows
from billing.ledger.usage_rows import UsageRow
from billing.wal.reader import Damage, read
from billing.wal.records import End, Progress, Record, Start, Withdrawn
from billing.wal.segments import Segment

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Open:
    """A request without its END, and the segment that holds its START."""

    start: Start
    segment: int
    progress: Progress | None = None


class LogTail:
    """Reads from the first segment present, to find the requests that began before ``stored``.

    Rows come only from records after ``stored``, which the drain moves to ``at`` once they are committed.
    """

    def __init__(self, writer_id: UUID, stored: Position) -> None:
        self.writer_id = writer_id
        self.stored = stored
        self.at = Position(0, 0)
        #: The writer is dead and everything it wrote was read.
        self.finished = False
        self.damaged: set[int] = set()
        #: By the integer of the request's id, which hashes in a tenth of the time.
        self._open: dict[int, _Open] = {}

    def read(self, segments: Sequence[Segment], *, alive: bool, limit: int) -> list[UsageRow]:
        """Return up to ``limit`` further rows; at the end of a dead writer's log, also a row for each open request.

        ``segments`` are the writer's, in order, listed after ``alive`` was determined.
        """
        rows: list[UsageRow] = []
        for segment in segments:
            if segment.number < self.at.number:
                continue
            if segment.number > self.at.number:
                self.at = Position(segment.number, 0)
            final = not alive or segment is not segments[-1]
            for item in read(segment, self.at.offset, final=final):
                self.at = Position(segment.number, item.end)
                if isinstance(item, Damage):
                    self._report(segment, item)
                elif (row := self._take(item.record)) is not None:
                    rows.append(row)
                    if len(rows) >= limit:
                        return rows
        if not alive:
            rows += [row for left in self._open.values() if (row := self._broken_off(left)) is not None]
            self._open.clear()
            self.finished = True
        return rows

    def open_starts(self) -> list[Start]:
        """Return the STARTs of requests without an END in the log as read so far."""
        return [left.start for left in self._open.values()]

    def is_needed(self, segment: Segment) -> bool:
        """Return whether a segment contains unstored records or the START of an open request, or follows such a one."""
        if self.finished:
            return self.stored < self.at
        first_open = min((left.segment for left in self._open.values()), default=self.stored.number)
        return segment.number >= min(first_open, self.stored.number)

    def _take(self, record: Record) -> UsageRow | None:
        match record:
            case Start(request_id=request_id) if not _is_version_7(request_id.int):
                logger.error("log of %s: request id %s is not a UUIDv7, its usage is lost", self.writer_id, request_id)
            case Start(request_id=request_id):
                before = self._open.get(request_id.int)
                self._open[request_id.int] = _Open(record, self.at.number, before.progress if before else None)
            case Progress():
                if (left := self._open.get(record.request_id.int)) is not None:
                    left.progress = record
            case End():
                return self._end(record)
            case Withdrawn():
                left = self._open.pop(record.request_id.int, None)
                return self._attempt(left.start) if left is not None and self.at > self.stored else None
        return None

    def _broken_off(self, left: _Open) -> UsageRow | None:
        """Return the row of a request whose process died."""
        return self._attempt(left.start) if left.start.deferred else usage_rows.interrupted(left.start, left.progress)

    def _attempt(self, start: Start) -> UsageRow | None:
        """Return the row of an attempt at a request that runs again; None if no engine had it."""
        return usage_rows.attempt(start, self.writer_id) if start.replica_id is not None else None

    def _end(self, end: End) -> UsageRow | None:
        left = self._open.pop(end.request_id.int, None)
        if self.at <= self.stored:
            return None
        if left is None:
            logger.error("log of %s: END of %s without a START, its usage is lost", self.writer_id, end.request_id)
            return None
        return usage_rows.finished(left.start, end)

    def _report(self, segment: Segment, damage: Damage) -> None:
        if damage.torn:
            logger.warning("%s: %d bytes of an incomplete last record", segment.path, damage.end - damage.begin)
            return
        self.damaged.add(segment.number)
        logger.error("%s is damaged from byte %d to %d: %s", segment.path, damage.begin, damage.end, damage.problem)


def _is_version_7(number: int) -> bool:
    """Return whether the integer is a UUIDv7 (RFC 9562)."""
    return (number >> 76) & 0xF == 7 and (number >> 62) & 3 == 2
