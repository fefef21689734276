"""The memory in which the gateway processes of this host keep what routing knows."""

from __future__ import annotations

import logging
from pathlib import Path

from django.conf import settings

from gateway import metrics
from routing.errors import NotShared
from routing.shared import file as shared_file
from routing.shared import state as shared_state
from routing.shared.file import SharedFile
from routing.shared.state import WORD, SharedState

log = logging.getLogger(__name__)

#: Changes with the layout, so that an upgrade's processes do not read what those before them wrote.
LAYOUT = 4
#: Entries of prompts for each entry of a session.
PREFIXES_PER_SESSION = 32


def open_shared() -> SharedFile | None:
    """Join the other processes, or say in the log why not and return None."""
    prefixes, sessions = _entries()
    try:
        found = SharedFile.open(_path(), prefixes, sessions)
    except (NotShared, OSError) as error:
        log.warning(
            "this process routes by what it knows alone, and shares nothing with others of this host: %s", error
        )
        return None
    metrics.ROUTING_PROCESSES.set_function(found.count)
    return found


def close(file: SharedFile) -> None:
    """Leave the other processes."""
    metrics.ROUTING_PROCESSES.set_function(lambda: 0)  # metrics may be read for as long as this process exists
    file.close()


def copy() -> SharedState:
    """Return a copy of what the processes of this host know now. Raises NotShared, OSError."""
    return shared_file.copy(_path(), *_entries())


def private() -> SharedState:
    """Return a memory of this process alone."""
    metrics.ROUTING_PROCESSES.set_function(lambda: 1)
    return shared_state.private(*_entries())


def _path() -> Path:
    prefixes, _ = _entries()
    return settings.ROUTING_MEMORY.with_name(f"{settings.ROUTING_MEMORY.name}-{LAYOUT}-{prefixes}")


def _entries() -> tuple[int, int]:
    """Return the entries of the tables of warm prefixes and of sessions."""
    prefixes = 1 << (settings.ROUTING_BYTES // WORD).bit_length() - 1
    return prefixes, prefixes // PREFIXES_PER_SESSION
