"""Files of the data directory that only their owner may read."""

from __future__ import annotations

import os
from pathlib import Path


def write(file: Path, text: str) -> None:
    """Write the file, mode 0600, atomically. Raises OSError."""
    partial = file.with_suffix(".part")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as content:
        content.write(text)
    partial.replace(file)
