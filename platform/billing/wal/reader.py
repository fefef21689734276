"""Read a write-ahead log that may be torn, damaged, or still being written. No Django here.

A live writer's file may end in half a frame: reading stops before it and goes on there next time. A dead writer's
never gets its other half: such a torn tail was never acknowledged and is skipped. Bytes that are no record although
readable frames follow them are damage: they are reported, and reading goes on at the next frame that checks out.
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

#: Read at a time; several thousand records.
READ_BYTES = 1024 * 1024


class FoundRecord(msgspec.Struct, frozen=True):
    """A record and the offset right behind its frame."""

    record: Record
    end: int


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``begin`` up to ``end`` hold no record; ``problem`` says what they are.

    ``torn`` is what a killed process leaves at the end of its file: nothing that was ever acknowledged.
    """

    begin: int
    end: int
    problem: str
    torn: bool = False


def is_alive(lock: Path) -> bool:
    """Say whether the writer behind this lock file lives. Ask before reading: what it wrote is then all there."""
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
    """Yield what the segment holds from ``offset`` (0 or a former ``end``) on, in order.

    ``final`` says that no more will be written to it: a torn tail is then yielded as Damage up to the file's end.
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
    """Yield frames from ``offset`` on. ``data`` begins at file offset ``base``; ``at`` is a position in ``data``."""
    data, base, at = b"", offset, 0
    while True:
        while (frame := _frame(data, at)) is not None:
            payload, end = frame
            yield _decoded(payload, base + at, base + end)
            at = end
        # Twice as much each time, so that looking for the end of a long damage stays linear.
        more = os.pread(descriptor, max(READ_BYTES, len(data) - at), base + len(data))
        if more:
            data, base, at = data[at:] + more, base + at, 0
            continue
        if at == len(data):
            return
        following = _next_frame(data, at)
        if following is None:
            if final:
                yield Damage(base + at, base + len(data), "torn tail", torn=True)
            return
        yield Damage(base + at, base + following, "bytes that are no frame")
        at = following


def _frame(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the payload at ``at`` and where it ends, or None when no whole frame with the right checksum is there."""
    if len(data) - at < FRAME.size:
        return None
    length, checksum = FRAME.unpack_from(data, at)
    end = at + FRAME.size + length
    if not 1 <= length <= MAX_PAYLOAD_BYTES or end > len(data):
        return None
    payload = data[at + FRAME.size : end]
    return (payload, end) if crc32(payload) == checksum else None


def _next_frame(data: bytes, at: int) -> int | None:
    """Return where the next good frame begins after a bad one at ``at``, or None.

    If the bad frame's length leads to a good one, only its payload is damaged: looking inside it first could take
    text that a client sent for a record.
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
