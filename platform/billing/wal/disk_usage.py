"""How much the log of a host takes on its disk, against what it may. No Django here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from billing.wal.segments import segments

#: Looking at the directory takes 0.3 ms with a hundred files.
MEASURE_SECONDS = 1.0
#: From this share of the cap on somebody should look at the drain.
ALARM_SHARE = 0.25
#: A segment may take at most this share of the cap: a drained one is removed only once its writer is in the next.
SEGMENTS_IN_CAP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """Whole segments on the disk, stored in the database or not, in bytes; the cap is ``max_bytes``."""

    bytes: int
    max_bytes: int

    @property
    def is_alarming(self) -> bool:
        """A quarter of the cap is reached."""
        return self.bytes >= self.max_bytes * ALARM_SHARE

    @property
    def is_full(self) -> bool:
        """The cap is reached: nothing new is begun until the drain has caught up."""
        return self.bytes >= self.max_bytes

    def describe(self) -> str:
        """Return it as words for an operator."""
        return f"{_size(self.bytes)} of at most {_size(self.max_bytes)}"


class DiskQuota:
    """The log directory of a host, looked at no more often than LOOK_SECONDS, whoever asks. Any thread may."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._directory = directory
        self._found = DiskUsage(bytes=0, max_bytes=max_bytes)
        self._measure_at = 0.0

    def usage(self) -> DiskUsage:
        """Return what was there at the last look, at most LOOK_SECONDS ago."""
        now = time.monotonic()
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_SECONDS
            self._found = DiskUsage(bytes=bytes_in(self._directory), max_bytes=self.max_bytes)
        return self._found


def bytes_in(directory: Path) -> int:
    """Return the bytes of every segment in the directory; 0 without one. Raises OSError."""
    if not directory.exists():
        return 0
    total = 0
    for segment in segments(directory):
        try:
            total += segment.path.stat().st_size
        except FileNotFoundError:  # the drain has removed it meanwhile
            continue
    return total


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
