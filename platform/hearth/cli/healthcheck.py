"""Ask a role's own listener whether it lives: what a container's health check runs. No Django here."""

from __future__ import annotations

import urllib.error
import urllib.request

from hearth.instance.health_ports import url_of
from hearth.instance.instance import Instance

TIMEOUT_SECONDS = 3.0


def problem(instance: Instance, role: str) -> str | None:
    """Return why the role of this environment does not live; None when it does."""
    url = url_of(instance, role) + "/livez"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{url} answers {error.code}: {error.read(500).decode(errors='replace')}"
    except OSError as error:
        return f"{url} does not answer: {error}"
