"""Read a write-ahead log that may be incomplete, damaged, or still being written. No Django here.

A live writer's file may end in an incomplete frame: reading stops before it and resumes there next time. After a dead
writer the incomplete frame was never acknowledged and is skipped. Invalid bytes followed by valid frames are damage:
they are reported, and reading continues at the next valid frame.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import msgspec

from billing.wal.records import Record, decode
from billing.wal.segments import FRAME, HEADER, MAX_PAYLOAD_BYTES, Segment, is_header

#: Bytes per read: several thousand records.
READ_BYTES = 1024 * 1024


class FoundRecord(msgspec.Struct, frozen=True):
    """A record and the offset after its frame."""

    record: Record
    end: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes from ``begin`` to before ``end`` contain no record; ``problem`` says why.

    ``torn``: an incomplete last frame of a killed process, which was never acknowledged.
    """

    begin: int
    end: int
    problem: str
    torn: bool = False


def is_alive(lock: Path) -> bool:
    """Return whether the writer that locks this file is alive. If not, everything it wrote can be read from now on."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read(segment: Segment, offset: int, *, final: bool) -> Iterator[FoundRecord | Damage]:
    """Yield the segment's records from ``offset`` (0 or an earlier ``end``) on, in order.

    ``final``: nothing more will be written; an incomplete last frame is then yielded as Damage to the file's end.
    Raises FileNotFoundError.
    """
    with segment.path.open("rb") as file:
        if offset < HEADER.size:
            start = file.read(HEADER.size)
            if len(start) < HEADER.size and not final:
                return
            if not is_header(start, segment):
                size = os.fstat(file.fileno()).st_size
                yield Damage(0, size, "no header of this format")
                return
            offset = HEADER.size
        file.seek(offset)
        yield from _frames(file.fileno(), offset, final=final)


def _frames(descriptor: int, offset: int, *, final: bool) -> Iterator[FoundRecord | Damage]:
    """Yield frames from ``offset`` on. ``data`` starts at file offset ``base``; ``at`` is a position in ``data``."""
    data, base, at = b"", offset, 0
    while True:
        while (frame := _frame(data, at)) is not None:
            payload, end = frame
            yield _decoded(payload, base + at, base + end)
            at = end
        # Twice as much each time, so that the search for the end of a long damage stays linear.
        more = os.pread(descriptor, max(READ_BYTES, len(data) - at), base + len(data))
        if more:
            data, base, at = data[at:] + more, base + at, 0
            continue
        if at == len(data):
            return
        following = _next_frame(data, at)
        if following is None:
            if final:
                yield Damage(base + at, base + len(data), "incomplete last record", torn=True)
            return
        yield Damage(base + at, base + following, "bytes that are not a frame")
        at = following


def _frame(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the payload at ``at`` and its end, or None without a complete frame with the right checksum."""
    if len(data) - at < FRAME.size:
        return None
    length, checksum = FRAME.unpack_from(data, at)
    end = at + FRAME.size + length
    if not 1 <= length <= MAX_PAYLOAD_BYTES or end > len(data):
        return None
    payload = data[at + FRAME.size : end]
    return (payload, end) if crc32(payload) == checksum else None


def _next_frame(data: bytes, at: int) -> int | None:
    """Return where the next valid frame begins after an invalid one at ``at``, or None.

    If the invalid frame's length leads to a valid frame, only its payload is damaged. A search inside the payload could
    mistake text from a client for a record.
    """
    if len(data) - at >= FRAME.size:
        behind = at + FRAME.size + int(FRAME.unpack_from(data, at)[0])
        if _frame(data, behind) is not None:
            return behind
    return next((position for position in range(at + 1, len(data)) if _frame(data, position) is not None), None)


def _decoded(payload: bytes, begin: int, end: int) -> FoundRecord | Damage:
    try:
        return FoundRecord(decode(payload), end)
    except msgspec.DecodeError as error:
        return Damage(begin, end, f"not a record: {error}")
