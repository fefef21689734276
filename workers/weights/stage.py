"""Keep models' files in the page cache, within a share of the memory: ``python -m workers.weights.stage``.

A process of its own at the lowest priority. It reads a job from its standard input, stages what fits, most recently
wanted first, drops what does not, and writes what is resident then to its standard output. It ends with its parent.
No Django here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workers.weights import page_cache
from workers.weights.page_cache import Residency

#: ``ioprio_set`` has no wrapper: its number by machine, this process, and the idle class.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Folders in the order in which they are wanted, and the share of the available memory that they may take."""

    folders: tuple[str, ...]
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What became of one folder. ``note`` says why it is not staged, or not measured; empty if it is both."""

    folder: str
    bytes_total: int = 0
    bytes_resident: int = 0
    note: str = ""


def parse_job(text: str | bytes) -> Job:
    """Return the job of a line. Raises ValueError, TypeError, KeyError."""
    given = json.loads(text)
    return Job(folders=tuple(given["folders"]), share=float(given["share"]))


def parse_results(text: str | bytes) -> list[Staged]:
    """Return what the process has written. Raises ValueError, TypeError."""
    return [Staged(**each) for each in json.loads(text)]


def run(given: Job, keeps_on: Callable[[], bool] = lambda: True) -> list[Staged]:
    """Stage the folders that fit; ``keeps_on`` is asked before every chunk.

    A folder is staged whole or not at all. What does not fit is dropped first, so that it does not push out the rest.
    """
    budget = round(page_cache.available_bytes() * given.share)
    chosen: list[tuple[str, list[Path]]] = []
    found: dict[str, Staged] = {}
    left = budget
    for folder in given.folders:
        try:
            files = page_cache.files_of(Path(folder))
            size = page_cache.residency(files).bytes_total
            if size <= left:
                left -= size
                chosen.append((folder, files))
                continue
            for path in files:
                page_cache.drop(path)
            note = f"{_gib(size)} do not fit: {_gib(left)} of {_gib(budget)} are left for it"
            found[folder] = _staged(folder, page_cache.residency(files), note)
        except OSError as error:
            found[folder] = Staged(folder=folder, note=f"its files cannot be read: {error}")
    for folder, files in chosen:
        found[folder] = _stage(folder, files, keeps_on)
    return [found[folder] for folder in given.folders]


def _stage(folder: str, files: Sequence[Path], keeps_on: Callable[[], bool]) -> Staged:
    try:
        for path in files:
            before = page_cache.residency([path])
            if before.bytes_resident >= before.bytes_total:
                continue
            for _ in page_cache.stage(path):
                if not keeps_on():
                    return _staged(folder, page_cache.residency(list(files)))
        return _read(folder, page_cache.residency(list(files)))
    except OSError as error:
        return Staged(folder=folder, note=f"its files cannot be read: {error}")


def _read(folder: str, measured: Residency) -> Staged:
    """Return the result for a folder that has been read; what cannot be measured counts as resident."""
    if not measured.bytes_unmeasured:
        return _staged(folder, measured)
    return Staged(
        folder=folder,
        bytes_total=measured.bytes_total,
        bytes_resident=measured.bytes_resident + measured.bytes_unmeasured,
        note=f"{_gib(measured.bytes_unmeasured)} were read and are not measured: the agent's account neither owns "
        "these files nor may write them",
    )


def _staged(folder: str, measured: Residency, note: str = "") -> Staged:
    return Staged(folder=folder, bytes_total=measured.bytes_total, bytes_resident=measured.bytes_resident, note=note)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"


def _lower_priority() -> None:
    """Let everything else on the machine run and read first, as far as the system allows it."""
    os.nice(19)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if (number := _IOPRIO_SET.get(os.uname().machine)) is not None:
        page_cache.system_call(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)


def main() -> None:
    """Run the job on standard input."""
    parent = os.getppid()
    _lower_priority()
    found = run(parse_job(sys.stdin.read()), keeps_on=lambda: os.getppid() == parent)
    sys.stdout.write(json.dumps([asdict(each) for each in found]))


if __name__ == "__main__":
    main()
