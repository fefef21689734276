"""The memory that the processes of a host share: a file in memory, mapped by each of them.

Which process has which number, and which of them run, are locks of the file's bytes (``fcntl``, open file description
locks): the kernel releases those of a dead process at once. Whoever finds himself alone at his end removes the file.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Self

from routing.errors import NotShared
from routing.shared.state import MAX_PROCESSES, SharedState, size

#: C's ``struct flock``: type, whence, start, length, process; aligned to its end.
_FLOCK = struct.Struct("hhqqi0q")
#: Locked bytes: one to exclude all others for a moment, then one for each process.
_EXCLUSIVE, _FIRST = 0, 1
#: How long to try to exclude the others, seconds: at a start, when another one may be reserving the memory, and later,
#: when they do so for microseconds.
_START_SECONDS = 5.0
_PATIENCE_SECONDS = 0.01
_PAUSE_SECONDS = 0.0002


class SharedFile:
    """One process's mapping of the file."""

    def __init__(self, file: int, path: Path, prefix_entries: int, session_entries: int) -> None:
        """Map an open file, which this owns. Raises NotShared."""
        self._file = file
        self._path = path
        self.running: list[bool] = []
        with self.exclusive(_START_SECONDS) as alone:
            if not alone:
                raise NotShared(f"{path} is locked")
            length = size(prefix_entries, session_entries)
            if os.fstat(file).st_size < length:
                os.posix_fallocate(file, 0, length)  # else writing to a full file system would kill the process
            self.process = self._take_number()
            memory = memoryview(mmap.mmap(file, length))
            self.state = SharedState(memory, prefix_entries, session_entries, self)

    @classmethod
    def open(cls, path: Path, prefix_entries: int, session_entries: int) -> Self:
        """Open or make the file at ``path``, a name that says the sizes. Raises NotShared, OSError."""
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                    raise NotShared(f"{path} is not a private file of this user")
                fcntl.flock(file, fcntl.LOCK_SH)
                if _is_at(file, path):
                    return cls(file, path, prefix_entries, session_entries)
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # its last user has just removed it

    def close(self) -> None:
        """Give the number back, and remove the file if nobody else uses it."""
        with suppress(BlockingIOError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(self._file, self._path):
                self._path.unlink()
        # The mapping keeps the file open, so its locks are released one by one.
        self._set(fcntl.F_UNLCK, _FIRST + self.process)
        fcntl.flock(self._file, fcntl.LOCK_UN)
        os.close(self._file)

    @contextmanager
    def exclusive(self, seconds: float = _PATIENCE_SECONDS) -> Iterator[bool]:
        """Exclude the other processes, or yield False if one of them is stopped while it does so."""
        give_up_at = time.monotonic() + seconds
        while not (taken := self._set(fcntl.F_WRLCK, _EXCLUSIVE)) and time.monotonic() < give_up_at:
            time.sleep(_PAUSE_SECONDS)
        try:
            yield taken
        finally:
            if taken:
                self._set(fcntl.F_UNLCK, _EXCLUSIVE)

    def look(self, processes: int) -> None:
        """See which of the first ``processes`` run."""
        self.running = [process == self.process or self._is_locked(_FIRST + process) for process in range(processes)]

    def count(self) -> int:
        """Return how many processes run, this one included."""
        self.look(self.state.processes)
        return sum(self.running)

    def _take_number(self) -> int:
        for process in range(MAX_PROCESSES):
            if self._set(fcntl.F_WRLCK, _FIRST + process):
                return process
        raise NotShared(f"{self._path} is used by {MAX_PROCESSES} processes")

    def _set(self, kind: int, place: int) -> bool:
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, place, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _is_locked(self, place: int) -> bool:
        """Return whether another process holds a lock of a byte."""
        return _is_locked(self._file, place)


def copy(path: Path, prefix_entries: int, session_entries: int) -> SharedState:
    """Return a copy of what the processes know now, which no process shares. Raises NotShared, OSError."""
    length = size(prefix_entries, session_entries)
    with path.open("rb") as file:
        memory = bytearray(file.read(length))
        running = [_is_locked(file.fileno(), _FIRST + process) for process in range(MAX_PROCESSES)]
    if len(memory) < length or all(running):
        raise NotShared(f"{path} is being made" if len(memory) < length else f"{path} is used by all its processes")
    return SharedState(memoryview(memory), prefix_entries, session_entries, _Copied(running))


class _Copied:
    """The processes that ran when their memory was copied, and this one under the number of none of them."""

    def __init__(self, running: list[bool]) -> None:
        self.process = running.index(False)
        self.running = running

    def exclusive(self) -> AbstractContextManager[bool]:
        """Exclude nobody."""
        return nullcontext(True)

    def look(self, processes: int) -> None:
        """See nothing new."""


def _is_locked(file: int, place: int) -> bool:
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _is_at(file: int, path: Path) -> bool:
    """Return whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False
