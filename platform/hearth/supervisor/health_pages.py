"""Read the health pages of a role, as its supervisor does: whether it is alive, and whether it is ready."""

from __future__ import annotations

import urllib.request

from hearth.instance.health_ports import url_of
from hearth.instance.instance import Instance

#: A healthy role answers within milliseconds, from a thread of its own.
ALIVE_TIMEOUT_SECONDS = 3.0
#: Limit of a probe that is repeated, during which the supervisor does nothing else.
READY_TIMEOUT_SECONDS = 0.5


def is_alive(instance: Instance, name: str) -> bool:
    """Return whether the process's loops turn."""
    return _ok(url_of(instance, name) + "/livez", ALIVE_TIMEOUT_SECONDS)


def is_ready(instance: Instance, name: str) -> bool:
    """Return whether the process can do its work now."""
    return _ok(url_of(instance, name) + "/readyz", READY_TIMEOUT_SECONDS)


def _ok(url: str, timeout_seconds: float) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds):
            return True
    except OSError:  # HTTPError is one
        return False
