"""Find the processes on this host that run as an account with more rights than they need. Does not import Django."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from pathlib import Path

import psutil

from hearth import process_records
from workers.processes import ProcessIdentity, is_running

#: Roles that root has to run for engines to have an account of their own.
MAY_BE_ROOT = frozenset({"agent"})


def roles_of_root(records_dir: Path) -> tuple[str, ...]:
    """Return the names of the running roles that root runs without need."""
    running = ((path.stem, process) for path, process in _recorded(records_dir) if path.stem not in MAY_BE_ROOT)
    return tuple(name for name, process in running if _uid(process) == 0)


def engines_beside_secrets(engines_dir: Path, secrets_file: Path) -> str:
    """Return the user of a running engine that is root or owns the secrets; empty if there is none."""
    powerful = {0, secrets_file.stat().st_uid} if secrets_file.exists() else {0}
    found = (_uid(process) for _, process in _recorded(engines_dir))
    return next((_name(uid) for uid in found if uid in powerful), "")


def _recorded(folder: Path) -> Iterator[tuple[Path, ProcessIdentity]]:
    """Yield the record and the process of each file in the folder whose process runs."""
    for path in sorted(folder.glob("*.json")):
        process = process_records.read_record(path)
        if process is not None and is_running(process):
            yield path, process


def _uid(process: ProcessIdentity) -> int | None:
    """Return the account that the process acts as; None if it has ended."""
    try:
        return int(psutil.Process(process.pid).uids().effective)
    except psutil.Error:
        return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"number {uid}"
