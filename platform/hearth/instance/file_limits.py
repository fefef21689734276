"""How many files and connections this process may have open. No Django here."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

#: What a process needs beside its clients: logs, databases, Redis, listeners.
SPARE = 512


def allow(connections: int) -> None:
    """Let this process have so many clients, each with a connection to an engine.

    Systems commonly allow 1,024 files and let a process ask for more, up to a hard limit; below that it is logged.
    """
    wanted = 2 * connections + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("%d open files are allowed, and %d needed for %d connections", allowed, wanted, connections)
