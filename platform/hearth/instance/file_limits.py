"""The limit of open files of this process. Does not import Django."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

#: Files that are no client connections: logs, databases, Redis, listeners.
SPARE = 512


def allow(connections: int) -> None:
    """Raise the limit of open files for this many clients, each with a connection to an engine.

    Systems commonly allow 1,024 files, and a process may raise that to a hard limit. Logs a warning when the hard limit
    is too low.
    """
    wanted = 2 * connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("%d open files are allowed, but %d connections need %d", allowed, connections, wanted)
