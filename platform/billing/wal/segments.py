"""Files of a write-ahead log, shared by the writer and the reader. No Django here.

A writer's log is a sequence of segments ``<role>-<writer id>-<number>.wal`` and one ``<role>-<writer id>.lock``, on
which the writer holds an flock for its lifetime. A segment is a header of 32 bytes followed by frames, each

    length of the payload   u32, little endian, 1 … MAX_PAYLOAD_BYTES
    CRC-32 of the payload   u32, little endian
    payload                 one record (``billing.wal.records``)

A length of zero is invalid, so that zeros left by a crashed host are not mistaken for records.
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
#: Far above a real record (about 250 bytes), low enough to detect a damaged length.
MAX_PAYLOAD_BYTES = 64 * 1024

_SEGMENT = re.compile(r"(?P<role>[a-z0-9]+)-(?P<writer>[0-9a-f]{32})-(?P<number>[0-9]{8})\.wal")


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of one writer, parsed from its name. Sorts by writer, then number."""

    writer_id: UUID
    number: int
    path: Path

    @property
    def lock_path(self) -> Path:
        """The file that the writer locks while it is alive."""
        return self.path.with_name(f"{self.path.name.rsplit('-', 1)[0]}.lock")


def segment_path(directory: Path, role: str, writer_id: UUID, number: int) -> Path:
    """Return a segment's path. ``role`` is lower-case letters and digits."""
    return directory / f"{role}-{writer_id.hex}-{number:08d}.wal"


def lock_path(directory: Path, role: str, writer_id: UUID) -> Path:
    """Return the path of a writer's lock file."""
    return directory / f"{role}-{writer_id.hex}.lock"


def segments(directory: Path) -> list[Segment]:
    """Return every segment in ``directory``, sorted; other files are ignored."""
    matches = ((_SEGMENT.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted(Segment(UUID(hex=match["writer"]), int(match["number"]), path) for match, path in matches if match)


def header(writer_id: UUID, number: int) -> bytes:
    """Return the first 32 bytes of a segment."""
    return HEADER.pack(MAGIC, VERSION, writer_id.bytes, number)


def is_header(data: bytes, segment: Segment) -> bool:
    """Return whether ``data`` begins with that segment's header."""
    return data[: HEADER.size] == header(segment.writer_id, segment.number)
