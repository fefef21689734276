"""Look before anything starts: what is wrong with this machine or these settings, and what to do about it."""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
import sys
import uuid
from dataclasses import dataclass

import psutil

from hearth import env
from hearth.instance import Instance

OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 12)
#: An empty PostgreSQL takes 40 MiB and its write-ahead log grows to 1 GiB under load; below this it soon stops.
NEEDED_FREE_MIB = 512


class PreflightError(Exception):
    """Nothing was started. Carries ``problem`` and ``remedy``, each a sentence."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class PortHolder:
    """The process that listens on a port, where it can be seen."""

    pid: int
    command: str


def check(instance: Instance) -> None:
    """Raise PreflightError for the first thing that would stop the instance; create its folders."""
    check_python(sys.version_info[:2])
    check_folders(instance)
    check_disk(instance, free_mib=shutil.disk_usage(instance.data_dir).free // 2**20)


def check_python(version: tuple[int, ...]) -> None:
    """Raise PreflightError unless ``version`` is one that every dependency has a build for."""
    if OLDEST_PYTHON <= version[:2] <= NEWEST_PYTHON:
        return
    found = ".".join(map(str, version))
    fault = "old" if version[:2] < OLDEST_PYTHON else "new"
    raise PreflightError(
        f"Python {found} is too {fault}: Hearth runs on 3.11 and 3.12.",
        "Install python3.12 or python3.11 with its venv module, remove .venv, and run make up again; "
        "PYTHON=/path/to/python3.12 chooses one.",
    )


def check_folders(instance: Instance) -> None:
    """Create the data directory's folders and try to write there. Raises PreflightError."""
    probe = instance.data_dir / f".probe-{uuid.uuid4()}"
    try:
        instance.make_folders()
        probe.write_bytes(b"\0" * 4096)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _disk_full(instance, 0) from error
        raise PreflightError(
            f"The data directory {instance.data_dir} cannot be written: {error.strerror}.",
            "Give yourself the right to, or set HEARTH_DATA_DIR to another folder.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def check_disk(instance: Instance, *, free_mib: int) -> None:
    """Raise PreflightError when too little space is left for the databases to run."""
    if free_mib < NEEDED_FREE_MIB:
        raise _disk_full(instance, free_mib)


def check_ports(instance: Instance) -> None:
    """Raise PreflightError unless both ports can be listened on.

    Binds them for a moment without SO_REUSEPORT: the server that follows sets it, and would share a port with
    another instance without a word.
    """
    if instance.portal_port > 65535:
        raise PreflightError(
            f"HEARTH_PORT={instance.port} leaves no port for the portal, which takes the next one.",
            "Set HEARTH_PORT to at most 65534.",
        )
    for port, user in ((instance.port, "gateway"), (instance.portal_port, "portal")):
        try:
            _try_to_listen(instance.host, port)
        except OSError as error:
            raise _port_error(instance.host, port, user, error) from error


def check_address() -> None:
    """Raise PreflightError unless engines can listen on HEARTH_NODE_ADDRESS."""
    address = env.text("HEARTH_NODE_ADDRESS")
    try:
        _try_to_listen(address, 0)
    except OSError as error:
        raise PreflightError(
            f"HEARTH_NODE_ADDRESS={address} is no address of this machine: {error.strerror}.",
            "Set it to the one that the gateways reach this machine under; `ip address` lists them.",
        ) from error


def port_holder(port: int) -> PortHolder | None:
    """Return who listens on a TCP port; None when nobody does, or only root could see."""
    for connection in psutil.net_connections(kind="tcp"):
        address = connection.laddr
        if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
            try:
                command = " ".join(psutil.Process(connection.pid).cmdline())
            except psutil.Error:
                command = "?"
            return PortHolder(connection.pid, command[:120])
    return None


def _try_to_listen(host: str, port: int) -> None:
    """SO_REUSEADDR lets connections that a former server closed pass, but no living listener."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)


def _port_error(host: str, port: int, user: str, error: OSError) -> PreflightError:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return PreflightError(
            f"HEARTH_HOST={host} is no address of this machine.", "Use 127.0.0.1, or 0.0.0.0 for every interface."
        )
    if error.errno == errno.EACCES:
        return PreflightError(
            f"Port {port} is reserved for root.", "Set HEARTH_PORT to a number from 1024 up, such as 8080."
        )
    holder = port_holder(port)
    held = f"by process {holder.pid} ({holder.command})" if holder else "by a process that only root can see"
    return PreflightError(
        f"Port {port}, which the {user} needs, is taken {held}.",
        f"Stop it, or choose another: HEARTH_PORT={_suggestion(host, port)} make up.",
    )


def _suggestion(host: str, port: int) -> int:
    """Return a port near by that is free, and so is the next one."""
    for candidate in range(port + 10, 65534, 10):
        try:
            _try_to_listen(host, candidate)
            _try_to_listen(host, candidate + 1)
        except OSError:
            continue
        return candidate
    return 8080


def _disk_full(instance: Instance, free_mib: int) -> PreflightError:
    return PreflightError(
        f"Only {free_mib} MiB are free on the disk of {instance.data_dir}; {NEEDED_FREE_MIB} are needed.",
        "Free some, or set HEARTH_DATA_DIR to a folder on another disk.",
    )
