"""The port of each process's health pages: from HEARTH_METRICS_PORT on, always in this order."""

from __future__ import annotations

from hearth.instance.instance import Instance, client_host

ORDER = ("gateway", "portal", "drain", "agent", "control", "inference", "beat", "background")


def further_gateways(instance: Instance) -> tuple[str, ...]:
    """Return the names of the gateways beyond the first."""
    return tuple(f"gateway-{number}" for number in range(2, instance.gateway_processes + 1))


def names(instance: Instance) -> tuple[str, ...]:
    """Return the name of every process with health pages, in the order of their ports."""
    return (*ORDER, *further_gateways(instance))


def port_of(instance: Instance, name: str) -> int:
    """Return the port of a process's health pages. Raises ValueError for an unknown name."""
    return instance.metrics_port + names(instance).index(name)


def addresses(instance: Instance, own_address: str) -> dict[str, str]:
    """Return host and port of each process's health pages, for other machines if they listen there.

    ``own_address`` is where other machines reach this one; it stands for a host that means every interface.
    """
    host = own_address if instance.metrics_host in {"0.0.0.0", "::"} else instance.metrics_host
    return {name: f"{client_host(host)}:{port_of(instance, name)}" for name in names(instance)}


def url_of(instance: Instance, name: str) -> str:
    """Return the address of a process's health pages, without a path, for a client on this machine."""
    return f"http://{client_host(instance.metrics_host)}:{port_of(instance, name)}"
