"""How far the drain is behind the log."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.conf import settings

from billing.drain.batch import Position
from billing.models import WalOffset
from billing.wal.reader import FoundRecord, read
from billing.wal.records import End, Record, Start
from billing.wal.segments import HEADER, Segment, segments


@dataclass(frozen=True, slots=True, kw_only=True)
class WalBacklog:
    """Bytes written and not stored, the age of the oldest such record, and the number of segments."""

    bytes: int
    records_lag_seconds: float
    segments: int


def backlog(directory: Path | None = None) -> WalBacklog:
    """Measure the log directory of this host (None: the instance's own). Raises django.db.Error."""
    directory = directory or Path(settings.WAL_DIR)
    found = segments(directory) if directory.exists() else []
    stored = {
        offset.writer_id: Position(offset.segment, offset.offset)
        for offset in WalOffset.objects.filter(writer_id__in={segment.writer_id for segment in found})
    }
    return measure(stored, found)


def measure(stored: Mapping[UUID, Position], found: Sequence[Segment]) -> WalBacklog:
    """Measure what these segments contain beyond each writer's stored position (unknown writer: the start)."""
    behind = [
        (segment, begin, size - begin)
        for segment in found
        if (size := _size(segment)) > (begin := _begin(segment, stored.get(segment.writer_id, Position(0, 0))))
    ]
    oldest_ns = min((_first_ns(segment, begin) for segment, begin, _ in behind), default=None)
    return WalBacklog(
        bytes=sum(size for _, _, size in behind),
        records_lag_seconds=0.0 if oldest_ns is None else max(0.0, (time.time_ns() - oldest_ns) / 1e9),
        segments=len(found),
    )


def _size(segment: Segment) -> int:
    """Return its size in bytes; 0 if the drain has just removed it."""
    try:
        return segment.path.stat().st_size
    except FileNotFoundError:
        return 0


def _begin(segment: Segment, stored: Position) -> int:
    """Return where the part not yet stored begins in the segment."""
    if segment.number < stored.number:
        return _size(segment)
    return max(stored.offset, HEADER.size) if segment.number == stored.number else HEADER.size


def _first_ns(segment: Segment, begin: int) -> int:
    """Return when the first record from ``begin`` on was written; the current time if none is complete."""
    try:
        for item in read(segment, begin, final=False):
            if isinstance(item, FoundRecord):
                return _written_ns(item.record)
    except FileNotFoundError:
        pass
    return time.time_ns()


def _written_ns(record: Record) -> int:
    match record:
        case Start():
            return record.started_at_ns
        case End():
            return record.finished_at_ns
        case _:
            return record.at_ns
