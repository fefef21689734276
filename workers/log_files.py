"""Bound the size of log files that running processes append to. No Django here.

A process keeps its log open, and outlives the one that started it, so the log can neither be renamed nor read through a
pipe: its content is copied to ``<name>.1``, then the file is cut, as logrotate's ``copytruncate`` does. All processes
open their logs to append, so they continue at the new end. Lines written between the last read and the cut,
microseconds apart, are lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LARGEST_BYTES = 32 * 1024 * 1024
#: Earlier parts of a log: ``.1`` is the newest.
KEPT = 4


def rotate(path: Path, *, largest_bytes: int = LARGEST_BYTES, kept: int = KEPT) -> bool:
    """Move the content of a log that is too large to ``<name>.1``; return whether it was. Raises OSError.

    Earlier parts move on to ``.2`` and so on; the last one is removed. One process at a time may do this for a file.
    """
    try:
        if path.stat().st_size <= largest_bytes:
            return False
    except FileNotFoundError:
        return False
    new = path.with_name(f"{path.name}.new")
    try:
        with path.open("rb") as source, new.open("wb") as target:
            os.fchmod(target.fileno(), 0o600)
            shutil.copyfileobj(source, target, 1 << 20)  # to the end, which moves while processes write
            target.flush()
            os.truncate(path, 0)
    except OSError:  # a full disk: the earlier parts stay, and what was copied goes
        new.unlink(missing_ok=True)
        raise
    for number in range(kept - 1, 0, -1):
        if _part(path, number).exists():
            _part(path, number).replace(_part(path, number + 1))
    new.replace(_part(path, 1))
    return True


def _part(path: Path, number: int) -> Path:
    """Return the name of an earlier part."""
    return path.with_name(f"{path.name}.{number}")
