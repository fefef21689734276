"""The files of the usage log that belong to a backup.

Held open from before the database's snapshot: the drain may remove a file meanwhile, and it stays readable. Copied
after it: so each record is in the dump, in the copied log, or in both, and the drain stores a record only once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from billing.wal.segments import segments

#: Rows that the database refused, and segments that cannot be read.
KEPT = ("refused.jsonl", "*.damaged")


class HeldLog:
    """Open files of the log by name."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.files: dict[str, IO[bytes]] = {}

    def hold(self) -> None:
        """Open every file that is not open yet."""
        if not self._directory.is_dir():
            return
        kept = (path for pattern in KEPT for path in self._directory.glob(pattern))
        for path in (*(segment.path for segment in segments(self._directory)), *kept):
            if path.name not in self.files:
                try:
                    self.files[path.name] = self._stack.enter_context(path.open("rb"))
                except FileNotFoundError:
                    continue  # removed since it was listed, so the database has it

    def sized(self) -> Iterator[tuple[str, IO[bytes], int]]:
        """Yield each file with its size now; a record that is being written may be cut off."""
        for name in sorted(self.files):
            file = self.files[name]
            yield name, file, os.fstat(file.fileno()).st_size


@contextmanager
def held(directory: Path) -> Iterator[HeldLog]:
    """Hold the log's files for the block."""
    with ExitStack() as stack:
        log = HeldLog(directory, stack)
        log.hold()
        yield log
