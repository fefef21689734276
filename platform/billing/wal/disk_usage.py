"""Disk usage of a host's log against its cap. No Django here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from billing.wal.segments import segments

#: How long a measurement is reused, seconds. One takes 0.3 ms with a hundred files.
MEASURE_SECONDS = 1.0
#: Share of the cap from which an operator should check the drain.
ALARM_SHARE = 0.25
#: A segment takes at most 1/SEGMENTS_IN_CAP of the cap: it is removed only after its writer has opened the next one.
SEGMENTS_IN_CAP = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """Bytes of all segments on disk, stored in the database or not. ``max_bytes`` is the cap."""

    bytes: int
    max_bytes: int

    @property
    def is_alarming(self) -> bool:
        """Whether a quarter of the cap is reached."""
        return self.bytes >= self.max_bytes * ALARM_SHARE

    @property
    def is_full(self) -> bool:
        """Whether the cap is reached: no new request starts until the drain has caught up."""
        return self.bytes >= self.max_bytes

    def describe(self) -> str:
        """Return it as text for an operator."""
        return f"{_size(self.bytes)} of at most {_size(self.max_bytes)}"


class DiskQuota:
    """The disk usage of a log directory, measured at most once per MEASURE_SECONDS. Thread-safe."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._directory = directory
        self._found = DiskUsage(bytes=0, max_bytes=max_bytes)
        self._measure_at = 0.0

    def usage(self) -> DiskUsage:
        """Return the last measurement, at most MEASURE_SECONDS old."""
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
        except FileNotFoundError:  # the drain has just removed it
            continue
    return total


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
