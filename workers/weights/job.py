"""What the process that fetches a model's files gets on its standard input, and the reports that it writes.

Both are lines of JSON. The token never is an argument or a variable, which other programs of the account could read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

#: The last report is within this many bytes of the end of the log.
TAIL_BYTES = 16 * 1024
LONGEST_ERROR = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A commit to fetch. ``node`` marks partial files: a cache may be shared between nodes."""

    source: str
    commit: str
    load_format: str
    node: str
    #: None: that of the environment, HF_TOKEN, if there is one.
    token: str | None = field(default=None, repr=False)

    def as_line(self) -> bytes:
        """Return the line to write to the process."""
        return json.dumps(asdict(self)).encode() + b"\n"


def parse(line: bytes | str) -> Job:
    """Return the job of a line. Raises ValueError, TypeError."""
    return Job(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How far a process is. ``done`` is the end: then ``folder`` has the files. ``failed`` is the end, with a reason.

    ``bytes_total`` is None until the hub has said how much it is. ``bytes_fetched`` is what this process has added.
    """

    state: Literal["fetching", "done", "failed"]
    bytes_done: int = 0
    bytes_total: int | None = None
    bytes_fetched: int = 0
    folder: str = ""
    error: str = ""

    def as_line(self) -> str:
        """Return the line for the log."""
        return json.dumps({"report": asdict(self)})


def last_report(log: Path) -> Report | None:
    """Return the last report in a log; None if it has none yet, or cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return None
    return next((found for line in reversed(lines[:-1]) if (found := _report(line)) is not None), None)


def _report(line: str) -> Report | None:
    if not line.startswith('{"report":'):
        return None
    try:
        return Report(**json.loads(line)["report"])
    except (ValueError, TypeError, KeyError):
        return None
