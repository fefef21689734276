"""Locks of Idempotency-Keys among the processes of a host, which need no Redis and end with their process.

One file, in which each key locks one byte (``fcntl``, open file description locks). The kernel releases the locks of a
dead process at once, and those of a stopped one not at all, so they say exactly whether a request may still run.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

#: Beside the usage log, which is a host's own.
FILE = "idempotency-keys.lock"
#: C's ``struct flock``: type, whence, start, length, process; aligned to its end.
_FLOCK = struct.Struct("hhqqi0q")
#: Offsets are below 2^62.
_OFFSET_SHIFT = 2


class KeyLocks:
    """The locks that one process holds. Not thread-safe: use it on one event loop."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        #: Locks of one file do not exclude each other.
        self._held: set[int] = set()

    def take(self, name: bytes) -> bool:
        """Lock the key with this MAC; return False if a request of this host holds it."""
        place = _place(name)
        if place in self._held or not self._set(fcntl.F_WRLCK, place):
            return False
        self._held.add(place)
        return True

    def release(self, name: bytes) -> None:
        """Release the key, if it is held."""
        place = _place(name)
        if place in self._held:
            self._held.discard(place)
            self._set(fcntl.F_UNLCK, place)

    def close(self) -> None:
        """Release every key."""
        self._held.clear()
        os.close(self._file)

    def _set(self, kind: int, place: int) -> bool:
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True


def _place(name: bytes) -> int:
    return int.from_bytes(name[:8], "big") >> _OFFSET_SHIFT
