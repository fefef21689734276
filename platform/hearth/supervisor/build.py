"""What a role process was started with: the code, the command and the settings, as one short text.

Two processes with the same text do the same, so a supervisor may keep one that another supervisor started.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hearth import secrets
from hearth.paths import ROOT

SOURCES = ("platform", "tenants", "caching", "routing", "workers", "templates")
CACHE = "__pycache__"
#: Prefixes of variables that a role or its libraries read. A terminal's differ between two starts and change nothing.
READ = ("HEARTH_", "DATABASE_", "REDIS_", "DJANGO_", "PYTHON", "PG", "CUDA_", "VLLM_", "HF_", "LD_")


def fingerprint(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the fingerprint of a process with this command and environment, started now."""
    found = hashlib.sha256()
    for part in (*command, *_settings(environment), *_files(Path(environment["HEARTH_DATA_DIR"]))):
        found.update(part.encode(errors="surrogateescape") + b"\0")
    return found.hexdigest()


def _settings(environment: Mapping[str, str]) -> Iterator[str]:
    yield from (f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith(READ))


def _files(data_dir: Path) -> Iterator[str]:
    """Yield the size and time of each source file, lock file and the secrets: what a process read at its start."""
    sources = (path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*")) if CACHE not in path.parts)
    for path in (*sources, *sorted(ROOT.glob("*.lock")), secrets.path_in(data_dir)):
        if path.is_file():
            stat = os.stat(path)
            yield f"{path}:{stat.st_size}:{stat.st_mtime_ns}"
