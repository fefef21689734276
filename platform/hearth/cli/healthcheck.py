"""Check whether a role is alive, for the health check of a container. Does not import Django."""

from __future__ import annotations

import urllib.error
import urllib.request

from hearth.instance.health_ports import url_of
from hearth.instance.instance import Instance

TIMEOUT_SECONDS = 3.0


def problem(instance: Instance, role: str) -> str | None:
    """Return why the role of this instance is not alive; None when it is."""
    url = url_of(instance, role) + "/livez"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{url} returned {error.code}: {error.read(500).decode(errors='replace')}"
    except OSError as error:
        return f"{url} does not respond: {error}"
