"""The unix socket on which a gateway process accepts connections from the other processes of its host.

All sockets lie in one folder with mode 0700, so that only processes of this user can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

#: New whenever a host starts; its containers read the same.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PeerListener:
    """The socket of one process: ``address`` names it in ``folder``; both are empty unless it is open."""

    def __init__(self, sockets_dir: Path) -> None:
        """``sockets_dir``: the folder that the gateway processes of this host share."""
        self._sockets_dir = sockets_dir
        self._token = secrets.token_hex(8)
        self._server: asyncio.AbstractServer | None = None
        self.address = ""
        #: Identifies the folder among those of all hosts: processes with another one cannot connect.
        self.folder = ""

    async def open(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Listen; ``make`` returns the protocol of an accepted connection. Raises OSError."""
        folder = self._open_folder()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(make, self._path(self._token))
        self.folder, self.address = folder, self._token

    async def connect(self, address: str, make: Callable[[], asyncio.Protocol]) -> None:
        """Connect to the listener with this address in the same folder. Raises OSError."""
        path = self._path(address)
        try:
            await asyncio.get_running_loop().create_unix_connection(make, path)
        except FileNotFoundError:
            raise ConnectionRefusedError from None
        except ConnectionRefusedError:  # the file of a killed process
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def close(self) -> None:
        """Close the socket and remove its file."""
        self.address = ""
        if self._server is not None:
            self._server.close()
            self._server = None
        with contextlib.suppress(OSError):
            os.unlink(self._path(self._token))

    def _path(self, address: str) -> str:
        return str(self._sockets_dir / f"{address}.s")

    def _open_folder(self) -> str:
        """Create the folder, or check the existing one; return its identity.

        Raises PermissionError if another user owns it or may open it: that user could impersonate a gateway.
        """
        folder = self._sockets_dir
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{folder} must be a folder that only this user can open (mode 0700)")
        host = _BOOT_ID.read_text() if _BOOT_ID.exists() else platform.node()
        return hashlib.sha256(f"{host} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:16]
