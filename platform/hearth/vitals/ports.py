"""Which port each role's listener has: HEARTH_METRICS_PORT and those that follow, always in this order."""

from __future__ import annotations

from hearth.instance import Instance, client_host

ORDER = ("gateway", "portal", "drain", "agent", "control", "inference", "beat")


def port_of(instance: Instance, role: str) -> int:
    """Return the port of a role's listener. Raises ValueError for a role that has none."""
    return instance.metrics_port + ORDER.index(role)


def url_of(instance: Instance, role: str) -> str:
    """Return where a role's listener answers, without a path, for a client on this machine."""
    return f"http://{client_host(instance.metrics_host)}:{port_of(instance, role)}"
