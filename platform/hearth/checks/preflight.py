"""Check the machine and the settings before anything starts, and explain each problem and its remedy."""

from __future__ import annotations

import contextlib
import errno
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass

import psutil

from hearth import environment, role_account
from hearth.instance import health_ports
from hearth.instance.instance import Instance
from workers.agent.processes import engine_account
from workers.agent.processes.engine_account import EngineAccount
from workers.system_account import AccountUnusable, SystemAccount

OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 12)
#: An empty PostgreSQL takes 40 MiB, and its write-ahead log grows to 1 GiB under load. With less it soon stops.
NEEDED_FREE_MIB = 512
LAST_PORT = 65535
PORT_CLOSES_SECONDS = 2.0


class PreflightError(Exception):
    """Nothing was started. Carries ``problem`` and ``remedy``, each a sentence."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem = problem
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class _PortSettings:
    """The settings that choose a range of ports, and the size of that range."""

    host_setting: str
    port_setting: str
    count: int


_HEALTH_PORTS = _PortSettings("HEARTH_METRICS_HOST", "HEARTH_METRICS_PORT", len(health_ports.ORDER))
#: The ports of the health pages follow the portal's port, unless HEARTH_METRICS_PORT is set.
_CLIENT_PORTS = _PortSettings("HEARTH_HOST", "HEARTH_PORT", 2 + len(health_ports.ORDER))


@dataclass(frozen=True, slots=True)
class _Port:
    """A port that a process of the instance listens on."""

    host: str
    port: int
    user: str
    chosen: _PortSettings


@dataclass(frozen=True, slots=True)
class PortHolder:
    """The process that uses a port."""

    pid: int
    command: str


def check(instance: Instance) -> None:
    """Check Python, the folders and the disk; create the folders. Raises PreflightError for the first problem."""
    check_python(sys.version_info[:2])
    check_folders(instance)
    check_disk(instance, free_mib=shutil.disk_usage(instance.data_dir).free // 2**20)


def check_engine_account(instance: Instance) -> EngineAccount:
    """Return the account of engines that start here. Raises PreflightError if it cannot read what engines need."""
    settings = environment.read()
    try:
        account = engine_account.engine_account(settings.engine_user)
        installed = [settings.engine_venv] if settings.engine_venv.is_dir() else []
        engine_account.require_readable(account, account.home(instance.data_dir), *installed)
    except AccountUnusable as error:
        raise PreflightError(error.problem, error.remedy) from error
    return account


def check_role_account(instance: Instance) -> SystemAccount:
    """Return the account of roles that start here. Raises PreflightError if it cannot read what roles need."""
    try:
        account = role_account.role_account()
        role_account.require_readable(account, instance.data_dir)
    except AccountUnusable as error:
        raise PreflightError(error.problem, error.remedy) from error
    return account


def check_python(version: tuple[int, ...]) -> None:
    """Raise PreflightError unless every dependency has a build for the Python ``version``."""
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
    """Create the folders of the data directory and write a test file there. Raises PreflightError."""
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


def check_ports(instance: Instance, *, used_by: Collection[str] = ()) -> None:
    """Raise PreflightError unless the gateway, the portal and each role's health pages can listen on their ports.

    Skips the ports of the processes ``used_by``, which run already. Binds each port for a moment without SO_REUSEPORT.
    The gateway sets it, and would otherwise silently share a port with another instance.
    """
    if instance.portal_port > LAST_PORT:
        raise PreflightError(
            f"HEARTH_PORT={instance.port} leaves no port for the portal, which takes the next one.",
            f"Set HEARTH_PORT to at most {LAST_PORT - 1}.",
        )
    _check_health_ports_fit(instance)
    wanted = []
    if not any(name.startswith("gateway") for name in used_by):
        wanted.append(_Port(instance.host, instance.port, "gateway", _CLIENT_PORTS))
    if "portal" not in used_by:
        wanted.append(_Port(instance.host, instance.portal_port, "portal", _CLIENT_PORTS))
    for name in [name for name in health_ports.names(instance) if name not in used_by]:
        port = health_ports.port_of(instance, name)
        wanted.append(_Port(instance.metrics_host, port, f"metrics listener of role {name}", _HEALTH_PORTS))
    for each in wanted:
        try:
            _wait_to_listen(each.host, each.port)
        except OSError as error:
            raise _port_error(each, error) from error


def _check_health_ports_fit(instance: Instance) -> None:
    count = len(health_ports.names(instance))
    first, last = instance.metrics_port, instance.metrics_port + count - 1
    fault = ""
    if last > LAST_PORT:
        fault = f"leaves too few ports: the roles take {first} to {last}"
    elif first <= instance.portal_port and instance.port <= last:
        fault = f"overlaps HEARTH_PORT={instance.port}: the roles take {first} to {last}"
    if fault:
        raise PreflightError(
            f"HEARTH_METRICS_PORT={first} {fault}.",
            f"Set it to a port up to {LAST_PORT - count + 1} that leaves theirs to gateway and portal.",
        )


def check_address() -> None:
    """Raise PreflightError unless engines can listen on HEARTH_NODE_ADDRESS."""
    address = environment.read().node_address
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise PreflightError(
            f"HEARTH_NODE_ADDRESS={address} is no address of this machine: {error.strerror}.",
            "Set it to the one that the gateways reach this machine under; `ip address` lists them.",
        ) from error


def port_holder(port: int) -> PortHolder | None:
    """Return the process that uses a TCP port, preferably its listener; None if there is none visible to this user."""
    holders = [
        (each.status != psutil.CONN_LISTEN, each.pid)
        for each in psutil.net_connections(kind="tcp")
        if each.pid and each.laddr and each.laddr.port == port
    ]
    if not holders:
        return None
    _, pid = min(holders)
    try:
        command = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        command = "?"
    return PortHolder(pid, command[:120])


def _wait_to_listen(host: str, port: int) -> None:
    """Listen for a moment; wait for a port that no process holds: the last thread of a killed one closes it."""
    deadline = time.monotonic() + PORT_CLOSES_SECONDS
    while True:
        try:
            _try_to_listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port_holder(port) is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _try_to_listen(host: str, port: int) -> None:
    """Listen for a moment. SO_REUSEADDR permits leftover connections of an ended server, but not a second listener."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)


def _port_error(wanted: _Port, error: OSError) -> PreflightError:
    chosen = wanted.chosen
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return PreflightError(
            f"{chosen.host_setting}={wanted.host} is no address of this machine.",
            "Use 127.0.0.1, or 0.0.0.0 for every interface.",
        )
    if error.errno == errno.EACCES:
        return PreflightError(
            f"Port {wanted.port} is reserved for root.",
            f"Set {chosen.port_setting} to a number from 1024 up, such as 8080.",
        )
    holder = port_holder(wanted.port)
    held = f"by process {holder.pid} ({holder.command})" if holder else "by a process that only root can see"
    free = _suggestion(wanted.host, wanted.port, chosen.count)
    return PreflightError(
        f"Port {wanted.port}, which the {wanted.user} needs, is taken {held}.",
        f"Stop it, or choose another: {chosen.port_setting}={free} make up.",
    )


def _suggestion(host: str, port: int, count: int) -> int:
    """Return the first of ``count`` free ports in a row, a little above ``port``."""
    for candidate in range(port + 10, LAST_PORT - count, 10):
        try:
            for each in range(candidate, candidate + count):
                _try_to_listen(host, each)
        except OSError:
            continue
        return candidate
    return 8080


def _disk_full(instance: Instance, free_mib: int) -> PreflightError:
    return PreflightError(
        f"Only {free_mib} MiB are free on the disk of {instance.data_dir}; {NEEDED_FREE_MIB} are needed.",
        "Free some, or set HEARTH_DATA_DIR to a folder on another disk.",
    )
