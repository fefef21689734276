"""How a write-ahead log lies on the disk. Shared by the writer and the reader; no Django here.

A writer's log is a row of segments ``<role>-<writer id>-<number>.wal`` beside one ``<role>-<writer id>.lock``, on
which the writer holds an flock for as long as it lives. A segment is a header of 32 bytes and then frames, each

    length of the payload   u32, little endian, 1 … MAX_PAYLOAD_BYTES
    CRC-32 of the payload   u32, little endian
    payload                 one record (``billing.wal.records``)

A length of zero is no frame, so that the zeros a crashed host may leave behind are not taken for records.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

MAGIC = b"HEARTHWL"
VERSION = 1
#: Magic, version, writer id, segment number, two spare bytes.
HEADER = struct.Struct("<8sH16sI2x")
FRAME = struct.Struct("<II")
#: Far over a real record (about 250 bytes), low enough that a damaged length is noticed.
MAX_PAYLOAD_BYTES = 64 * 1024

_SEGMENT = re.compile(r"(?P<role>[a-z0-9]+)-(?P<writer>[0-9a-f]{32})-(?P<number>[0-9]{8})\.wal")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of one writer, as its name says. Sorts by writer, then number."""

    writer_id: UUID
    number: int
    path: Path

    @property
    def lock_path(self) -> Path:
        """The file whose lock says whether the writer lives."""
        return self.path.with_name(f"{self.path.name.rsplit('-', 1)[0]}.lock")


def segment_path(directory: Path, role: str, writer_id: UUID, number: int) -> Path:
    """Return where a segment lies. ``role`` is lower-case letters and digits."""
    return directory / f"{role}-{writer_id.hex}-{number:08d}.wal"


def lock_path(directory: Path, role: str, writer_id: UUID) -> Path:
    """Return where a writer's lock file lies."""
    return directory / f"{role}-{writer_id.hex}.lock"


def segments(directory: Path) -> list[Segment]:
    """Return every segment in ``directory``, sorted; other files are ignored."""
    matches = ((_SEGMENT.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted(Segment(UUID(hex=match["writer"]), int(match["number"]), path) for match, path in matches if match)


def header(writer_id: UUID, number: int) -> bytes:
    """Return the first 32 bytes of a segment."""
    return HEADER.pack(MAGIC, VERSION, writer_id.bytes, number)


def is_header(data: bytes, segment: Segment) -> bool:
    """Say whether ``data`` begins as that segment should."""
    return data[: HEADER.size] == header(segment.writer_id, segment.number)
