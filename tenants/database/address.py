"""Read DATABASE_URL as libpq does: one server, or several of which one is the primary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import psycopg
from psycopg.conninfo import conninfo_to_dict

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_DATABASE = "hearth"
DEFAULT_PORT = 5432
#: What ``target_session_attrs`` may be: Hearth writes on every connection, so a standby serves none of its processes.
PRIMARY = ("read-write", "primary")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAddress:
    """A database of one server, or of several between which libpq chooses. ``host`` and ``port`` are as libpq's."""

    user: str
    password: str
    #: A host or a folder of sockets, or several, comma separated.
    host: str
    #: As many ports as hosts, or one for all; empty: the default.
    port: str
    name: str
    #: All other parameters of the URL.
    options: Mapping[str, str]

    @property
    def servers(self) -> tuple[tuple[str, int], ...]:
        """Return the host and port of each server that is reached by network."""
        hosts = self.host.split(",")
        ports = self.port.split(",")
        ports = ports if len(ports) > 1 else ports * len(hosts)
        pairs = zip(hosts, ports, strict=True)
        return tuple((host, int(port or DEFAULT_PORT)) for host, port in pairs if host and not host.startswith("/"))


def parse(url: str) -> DatabaseAddress:
    """Return what a ``postgresql://`` URL says. Raises ValueError with what is allowed; it repeats no password."""
    if not url.startswith(SCHEMES):
        raise ValueError("a postgresql:// URL")
    try:
        found = cast("dict[str, str]", conninfo_to_dict(url))
    except psycopg.ProgrammingError as error:
        # libpq's other messages repeat parts of the URL, which may be the password's
        reason = str(error).strip()
        known = reason if reason.startswith("invalid URI query parameter") else "percent-encode what is special in it"
        raise ValueError(f"a postgresql:// URL that libpq can read ({known})") from None
    address = DatabaseAddress(
        user=found.pop("user", ""),
        password=found.pop("password", ""),
        host=found.pop("host", ""),
        port=found.pop("port", ""),
        name=found.pop("dbname", "") or DEFAULT_DATABASE,
        options=found,
    )
    _check_servers(address)
    return address


def _check_servers(address: DatabaseAddress) -> None:
    hosts, ports = address.host.split(","), address.port.split(",")
    if len(ports) not in {1, len(hosts)}:
        raise ValueError(f"one port for each of the {len(hosts)} hosts, or one for all")
    if not all(not port or (port.isdecimal() and 1 <= int(port) <= 65535) for port in ports):
        raise ValueError("ports from 1 to 65535")
    target = address.options.get("target_session_attrs")
    if target is None and len(hosts) == 1:
        return
    if target not in PRIMARY:
        raise ValueError(
            f"target_session_attrs={' or '.join(PRIMARY)}, because Hearth writes and a standby refuses that"
        )
