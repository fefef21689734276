"""One supervisor per data directory: an flock, which the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class AlreadyRunning(Exception):
    """Another supervisor holds the data directory."""


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock for the block; no child inherits it. Raises AlreadyRunning at once if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning from None
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return True while a supervisor runs on this data directory."""
    try:
        with hold(path):
            return False
    except AlreadyRunning:
        return True
    except FileNotFoundError:
        return False
