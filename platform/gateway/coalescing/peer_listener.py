"""Where a gateway process listens for the others: a unix socket for its own host, a TCP port for other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import os
import platform
import secrets
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

Make = Callable[[], asyncio.Protocol]


class Elsewhere(OSError):
    """The process is on another host and listens for none but its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``sockets``: the folder that the gateways of this host share; ``host``: under which others reach it, or empty.

    ``port`` 0: any that is free; else the first of many, of which the first free one is taken.
    """

    sockets: Path
    host: str = ""
    port: int = 0

    @classmethod
    def of(cls, sockets: Path, node_address: str, port: int) -> Place:
        """Return the place of a node: on loopback nobody else can reach it."""
        return cls(sockets=sockets, host="" if _is_of_this_host_alone(node_address) else node_address, port=port)


#: Processes of one host that find a port each.
PORTS = 32
#: New whenever a host starts; its containers have it too.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Listener:
    """Listens in one place. Its address is empty until it does.

    An address says in which folder of which host its socket is: one that is missing in this very folder was of a
    process that has ended, and need not be looked for elsewhere.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._token = secrets.token_hex(8)
        self._folder = ""
        self._servers: list[asyncio.AbstractServer] = []
        self.address = ""

    async def open(self, make: Callable[[str, bool], asyncio.Protocol]) -> None:
        """Begin to listen; ``make`` gets this listener's address, and whether it is asked by TCP. Raises OSError."""
        self._folder = self._make_folder()
        loop = asyncio.get_running_loop()
        bound = _bound(self._place) if self._place.host else None
        where = f"{self._place.host}:{bound.getsockname()[1]}" if bound is not None else ""
        address = f"{self._token} {self._folder} {where}"
        if bound is not None:
            self._servers.append(await loop.create_server(lambda: make(address, True), sock=bound))
        self._servers.append(await loop.create_unix_server(lambda: make(address, False), self._path(self._token)))
        self.address = address

    async def connect(self, address: str, make: Make) -> None:
        """Connect to the listener of this address. Raises OSError, of it Elsewhere."""
        token, _, rest = address.partition(" ")
        folder, _, where = rest.partition(" ")
        loop = asyncio.get_running_loop()
        if folder != self._folder:
            if not where:
                raise Elsewhere
            host, _, port = where.rpartition(":")
            await loop.create_connection(make, host, int(port))
            return
        path = self._path(token)
        try:
            await loop.create_unix_connection(make, path)
        except FileNotFoundError:
            raise ConnectionRefusedError from None
        except ConnectionRefusedError:  # what a killed process left
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def close(self) -> None:
        """Listen no more."""
        self.address = ""
        for server in self._servers:
            server.close()
        self._servers.clear()
        with contextlib.suppress(OSError):
            os.unlink(self._path(self._token))

    def _path(self, token: str) -> str:
        return str(self._place.sockets / f"{token}.s")

    def _make_folder(self) -> str:
        """Make the folder, closed to others, or accept the one that is there; return what no other folder is called.

        Raises OSError for somebody else's.
        """
        folder = self._place.sockets
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{folder} is not this user's alone")
        host = _BOOT_ID.read_text() if _BOOT_ID.exists() else platform.node()
        return hashlib.sha256(f"{host} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:16]


def _bound(place: Place) -> socket.socket | None:
    """Return a socket on the first port that is free; None where the address is not of this machine.

    In a container HEARTH_NODE_ADDRESS may be the agent's: then only processes of one container follow each other.
    """
    ports = range(place.port, min(place.port + PORTS, 1 << 16)) if place.port else (0,)
    refusal: OSError | None = None
    for port in ports:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.bind((place.host, port))
            bound.setblocking(False)
        except OSError as error:
            bound.close()
            refusal = error
        else:
            return bound
    log.warning("gateway processes of other hosts cannot follow requests of this one: %s: %s", place.host, refusal)
    return None


def _is_of_this_host_alone(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    return found.is_loopback or found.is_unspecified
