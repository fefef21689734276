"""What `hearth status` prints: the processes of an instance or a node, its replicas and its backlog, no secrets."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from billing.wal.disk_usage import DiskUsage, bytes_in
from hearth import environment, secrets
from hearth.embedded.postgres import PostgresServer
from hearth.embedded.redis import RedisServer
from hearth.instance import health_ports, running
from hearth.instance.instance import Instance
from hearth.instance.roles import ROLES, processes
from hearth.provisioning import database
from hearth.provisioning.database import PlaceholderStatus, ReplicaStatus
from hearth.supervisor import child_process, node, up_file
from hearth.supervisor.process_group import supervisor_process
from hearth.supervisor.up import phase
from workers.processes import is_running

if TYPE_CHECKING:
    from billing.drain.lag import WalBacklog  # its models need the settings

#: States of a server that responds, or is not managed here.
AVAILABLE = ("running", "external")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStatus:
    """One role. ``state`` is running, restarting (by its supervisor) or stopped; ``vitals_url`` has its health
    pages."""

    name: str
    state: str
    pid: int | None
    restarts: int
    uptime_seconds: float | None
    vitals_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """PostgreSQL or Redis. ``state`` is running, silent (it runs but does not respond), stopped or external."""

    name: str
    state: str
    pid: int | None
    #: The program of an embedded Redis and its version; None where it is always the wheel's, or does not run.
    program: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The instance now. ``state``: up, degraded (up, but a role, server or replica is not), starting or down.

    ``pool`` is the pool of a node that `hearth node` runs; ``replicas`` and ``placeholders`` are then those of that
    node.
    ``wal_backlog_bytes`` is usage written but not yet in the database, ``wal_lag_seconds`` the age of its oldest
    record. These four are None while the database is unavailable. ``wal_disk_bytes`` is the size of the log on this
    host's disk, stored or not, and ``wal_max_bytes`` its limit.
    """

    state: str
    pid: int | None
    data_dir: str
    pool: str | None
    engine: str | None
    api_base: str
    portal_url: str
    admin_username: str | None
    tenants: tuple[str, ...]
    roles: tuple[RoleStatus, ...]
    servers: tuple[ServerStatus, ...]
    replicas: tuple[ReplicaStatus, ...] | None
    placeholders: tuple[PlaceholderStatus, ...] | None
    #: A sentence for each deployment whose desired replicas find no slot, or wait for files.
    shortages: tuple[str, ...]
    #: A sentence for each open alert.
    alerts: tuple[str, ...]
    wal_backlog_bytes: int | None
    wal_lag_seconds: float | None
    wal_disk_bytes: int
    wal_max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """What the database contains; all None while it is unavailable.

    ``needed`` is how many replicas the instance must have ready; a node needs none.
    """

    needed: int | None = None
    replicas: tuple[ReplicaStatus, ...] | None = None
    placeholders: tuple[PlaceholderStatus, ...] | None = None
    shortages: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()
    wal: WalBacklog | None = None


def read(instance: Instance) -> Status:
    """Return the status. Changes nothing. Takes a second, most of it to load Django."""
    supervisor = supervisor_process(instance)
    now = phase(instance)
    if now != "down":
        instance = running.as_started(instance)
    ready = up_file.read(instance.up_path) if now == "up" else None
    member = node.read(instance.node_path) if now == "up" else None
    names = member.roles if member else [name for role in ROLES for name, _ in processes(role, instance)]
    roles = tuple(_role(instance, name, supervised=supervisor is not None) for name in names)
    servers = _servers(instance)
    may_read = now != "down" and servers[0].state in AVAILABLE
    stored = _read_database(instance, only_here=member is not None) if may_read else _Stored()
    return Status(
        state=_worst(now, roles, servers, stored, is_node=member is not None),
        pid=supervisor.pid if supervisor else None,
        data_dir=str(instance.data_dir),
        pool=member.pool if member else None,
        engine=ready.engine if ready else None,
        api_base=instance.api_base,
        portal_url=instance.portal_url,
        admin_username=ready.admin.username if ready else None,
        tenants=tuple(tenant.slug for tenant in ready.tenants) if ready else (),
        roles=roles,
        servers=servers,
        replicas=stored.replicas,
        placeholders=stored.placeholders,
        shortages=stored.shortages,
        alerts=stored.alerts,
        wal_backlog_bytes=stored.wal.bytes if stored.wal else None,
        wal_lag_seconds=round(stored.wal.records_lag_seconds, 1) if stored.wal else None,
        wal_disk_bytes=bytes_in(instance.data_dir / "wal"),
        wal_max_bytes=environment.read().wal_max_bytes,
    )


def as_json(found: Status) -> dict[str, Any]:
    """Return the status as JSON values."""
    return asdict(found)


def text(found: Status) -> str:
    """Return the status as a table for a person."""
    place = f"node of pool {found.pool}" if found.pool else f"API {found.api_base}   portal {found.portal_url}"
    lines = [f"{found.state:<10} {found.data_dir}", place, ""]
    for role in found.roles:
        uptime = "" if role.uptime_seconds is None else f"{role.uptime_seconds:8.0f} s"
        lines.append(
            f"  {role.name:<12} {role.state:<11} pid {role.pid or '-':<8} restarts {role.restarts} {uptime:<10} "
            f"{role.vitals_url}"
        )
    lines += [
        f"  {server.name:<12} {server.state:<11} pid {server.pid or '-':<8} {server.program or ''}".rstrip()
        for server in found.servers
    ]
    for replica in found.replicas or ():
        lines.append(
            f"  replica {replica.deployment}/{replica.id[-6:]} {replica.state} on {replica.node}:{replica.port}"
        )
    lines += [f"  placeholder {placeholder}" for placeholder in found.placeholders or ()]
    lines += [f"  {shortage}" for shortage in found.shortages]
    lines += [f"  ALERT {alert}" for alert in found.alerts]
    return "\n".join([*lines, *_usage_log(found)])


def _usage_log(found: Status) -> list[str]:
    taken = DiskUsage(bytes=found.wal_disk_bytes, max_bytes=found.wal_max_bytes)
    behind = "unknown, the database does not respond"
    if found.wal_backlog_bytes is not None:
        behind = f"{found.wal_backlog_bytes} bytes, {found.wal_lag_seconds:.0f} s behind"
    lines = [f"  usage not yet in the database: {behind}", f"  the usage log takes {taken.describe()}"]
    if taken.is_full:
        lines.append("  NOTHING IS SERVED until the drain has stored the usage log in the database")
    elif taken.is_alarming:
        lines.append("  more than a quarter of the usage log's limit is used: check the drain and the database")
    return lines


def _role(instance: Instance, name: str, *, supervised: bool) -> RoleStatus:
    record = child_process.read_record(instance.records_dir / f"{name}.json")
    runs = record is not None and is_running(record.process)
    return RoleStatus(
        name=name,
        state="running" if runs else "restarting" if record is not None and supervised else "stopped",
        pid=record.pid if record is not None and runs else None,
        restarts=record.restarts if record else 0,
        uptime_seconds=round(time.time() - record.started_at, 1) if record is not None and runs else None,
        vitals_url=health_ports.url_of(instance, name),
    )


def _servers(instance: Instance) -> tuple[ServerStatus, ServerStatus]:
    try:
        postgres = _server("postgres", instance.postgres(secrets.load(instance.data_dir)))
    except FileNotFoundError:
        postgres = ServerStatus(name="postgres", state="stopped", pid=None)
    return postgres, _server("redis", instance.redis())


def _server(name: str, server: PostgresServer | RedisServer | None) -> ServerStatus:
    process = server.process() if server is not None else None
    if server is None:
        state = "external"
    elif process is None:
        state = "stopped"
    else:
        state = "running" if server.answers() else "silent"
    program = server.running_program() if isinstance(server, RedisServer) else None
    return ServerStatus(
        name=name, state=state, pid=process.pid if process else None, program=str(program) if program else None
    )


def _read_database(instance: Instance, *, only_here: bool) -> _Stored:
    """Read the database, for this node alone or for all nodes; empty while it is unavailable or not migrated."""
    from django.db import Error

    database.connect(instance)

    def is_included(each: ReplicaStatus | PlaceholderStatus) -> bool:
        return not only_here or each.node == instance.node

    try:
        return _Stored(
            needed=0 if only_here else database.needed_replicas(instance),
            replicas=tuple(filter(is_included, database.replicas())),
            placeholders=tuple(filter(is_included, database.placeholders() or ())),
            shortages=() if only_here else tuple(database.shortages()),
            alerts=() if only_here else tuple(database.alerts()),
            wal=database.wal_backlog(),
        )
    except Error:
        return _Stored()


def _worst(
    now: str, roles: tuple[RoleStatus, ...], servers: tuple[ServerStatus, ...], stored: _Stored, *, is_node: bool
) -> str:
    if now != "up":
        return now
    needed = 0 if is_node else stored.needed
    ready = sum(replica.serves for replica in stored.replicas or ())
    well = all(role.state == "running" for role in roles) and all(server.state in AVAILABLE for server in servers)
    return "up" if well and needed is not None and ready >= needed else "degraded"
