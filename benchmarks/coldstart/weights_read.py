"""Read a file as large as a small model's weights, from the disk and from the page cache."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchError
from workers.weights import page_cache

FILE_BYTES = 1 << 30
#: As often as that it is staged again where the kernel has dropped a part for other files.
STAGINGS = 5
CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRead:
    """One file read twice: after it was dropped from the page cache, and after it was staged there."""

    bytes_read: int
    disk_seconds: float
    staged_seconds: float


def measure(folder: Path, *, rounds: int, size: int = FILE_BYTES) -> tuple[WeightsRead, ...]:
    """Write a file of random bytes, read it in every round, and remove it. Raises BenchError."""
    path = folder / "weights.safetensors"
    try:
        with path.open("wb") as file:
            for _ in range(size // CHUNK_BYTES):
                file.write(os.urandom(CHUNK_BYTES))
            file.flush()
            os.fsync(file.fileno())
        return tuple(_read(path) for _ in range(rounds))
    finally:
        path.unlink(missing_ok=True)


def _read(path: Path) -> WeightsRead:
    page_cache.drop(path)
    if page_cache.residency([path]).bytes_resident:
        raise BenchError("The kernel does not drop the file from its page cache.")
    disk_seconds = _seconds(path)
    page_cache.drop(path)
    for _ in range(STAGINGS):
        _seconds(path)
        found = page_cache.residency([path])
        if found.bytes_resident == found.bytes_total:
            break
    else:
        raise BenchError("The file does not stay in the page cache: other programs read too much.")
    return WeightsRead(bytes_read=found.bytes_total, disk_seconds=disk_seconds, staged_seconds=_seconds(path))


def _seconds(path: Path) -> float:
    began = time.perf_counter()
    for _ in page_cache.stage(path):
        pass
    return time.perf_counter() - began
