"""Which part of a model's files is in the page cache, and bringing it there or dropping it. No Django here."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Files and folders of one model that are looked at.
MOST_ENTRIES = 100_000
#: Read at once, and mapped at once to ask what is resident.
CHUNK_BYTES, MAPPED_BYTES = 8 << 20, 1 << 30
#: The number of the capability in Linux.
_CAP_FOWNER = 3
#: The lowest bit of each byte of mincore(2) says whether the page is resident; the others are undefined.
_LOWEST_BIT = bytes(value & 1 for value in range(256))

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """How large files are, and how much of them is in the page cache, in whole pages.

    ``bytes_unmeasured`` belong to files of which the kernel does not say so to this process.
    """

    bytes_total: int
    bytes_resident: int
    bytes_unmeasured: int = 0


def files_of(folder: Path) -> list[Path]:
    """Return the regular files below a folder, also those that links name; links to folders are not entered.

    Raises OSError.
    """
    found, folders, entries = [], [folder], 0
    while folders:
        with os.scandir(folders.pop()) as listed:
            for entry in listed:
                entries += 1
                if entries > MOST_ENTRIES:
                    raise OSError(f"{folder} has more than {MOST_ENTRIES:,} files")
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file():
                    found.append(Path(entry.path))
    return sorted(found)


def residency(files: list[Path]) -> Residency:
    """Return what of the files is in the page cache. Raises OSError."""
    total = resident = unmeasured = 0
    for path in files:
        with _opened(path) as descriptor:
            found = os.fstat(descriptor)
            total += found.st_size
            if _is_measurable(path, found.st_uid):
                resident += min(found.st_size, sum(_resident_pages(descriptor, found.st_size)) * mmap.PAGESIZE)
            else:
                unmeasured += found.st_size
    return Residency(bytes_total=total, bytes_resident=resident, bytes_unmeasured=unmeasured)


def stage(path: Path) -> Iterator[int]:
    """Read a file into the page cache; yield the size of each chunk, so that the caller may stop. Raises OSError."""
    with _opened(path) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        buffer = bytearray(CHUNK_BYTES)
        while count := os.readv(descriptor, [buffer]):
            yield count


def drop(path: Path) -> None:
    """Drop a file from the page cache, except for pages that a process has mapped. Raises OSError."""
    with _opened(path) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the memory that processes may have without swapping; what is only cached counts. Raises OSError."""
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{meminfo} has no MemAvailable")


class _opened:
    """A file opened for reading; anything but a regular file is refused with OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> int:
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise OSError(f"{self._path} is not a regular file")
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _is_measurable(path: Path, owner: int) -> bool:
    """Return whether mincore(2) says the truth of the file; to a process that may not know, all of it seems resident.

    The kernel tells the owner, those who may write the file, and those who have CAP_FOWNER (``can_do_mincore``).
    """
    return owner == os.geteuid() or os.access(path, os.W_OK, effective_ids=True) or _has_fowner()


def _has_fowner() -> bool:
    for line in Path("/proc/thread-self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) >> _CAP_FOWNER & 1)
    return False


def _resident_pages(descriptor: int, size: int) -> Iterator[int]:
    """Yield how many pages of each part of a file are resident. Raises OSError."""
    for offset in range(0, size, MAPPED_BYTES):
        length = min(MAPPED_BYTES, size - offset)
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
        if address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        try:
            pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
            if _libc.mincore(address, length, pages):
                raise OSError(ctypes.get_errno(), "mincore")
            yield bytes(pages).translate(_LOWEST_BIT).count(1)
        finally:
            _libc.munmap(address, length)


def system_call(number: int, *arguments: int) -> int:
    """Make a system call that has no wrapper; -1 if it fails."""
    result: int = _libc.syscall(number, *arguments)
    return result
