"""The supervisor's access to the database: migrate it, fill it, read the replicas, request their stop.

The `hearth` command itself needs no Django. Only these functions load it, after the database answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hearth.instance.instance import Instance
from hearth.instance.start_options import EngineChoice, StartOptions
from tenants.database import address
from tenants.database.lock_waits import WAITING

if TYPE_CHECKING:
    from billing.drain.lag import WalBacklog
    from hearth.provisioning.first_run import Bootstrapped

Engine = Literal["vllm", "simulated"]


class MigrationFailed(Exception):
    """The migration to this version failed. Carries the last line of Django's output."""


class Unreachable(Exception):
    """The database does not answer. Carries the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """One replica: the state that reconcile wants and the state that its agent reports."""

    id: str
    deployment: str
    state: str
    desired_state: str
    node: str | None
    port: int | None
    pid: int | None
    last_error: str

    @property
    def serves(self) -> bool:
        return self.state == "ready" and self.desired_state == "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderStatus:
    """One placeholder that has a slot. ``level`` is how warm it is now; ``warm_seconds`` is how long warming took."""

    id: str
    node: str
    state: str
    level: str
    warm_seconds: float | None
    reason: str

    def __str__(self) -> str:
        took = "" if self.warm_seconds is None else f" after {self.warm_seconds:.1f} s"
        return f"{self.id[-6:]} {self.state} at {self.level}{took} on {self.node}"


def migrate(instance: Instance, *, contract: bool = False) -> None:
    """Migrate the database to this version as its owner, in a separate process.

    Without ``contract`` the version before can still use it (``tenants.management.commands.migrate``).

    Raises MigrationFailed, before anything is written if a newer version migrated it.

    Then create the missing daily partitions of usage, and grant the role that runs Hearth its rights, which only the
    owner may do.
    """
    commands = [["migrate", "--noinput", *(["--contract"] if contract else [])], ["ensure_partitions"]]
    role = address.parse(instance.app_url()).user
    if role and role != address.parse(instance.owner_url()).user:
        commands.append(["grant_role", role])
    _manage(instance, commands)


def _manage(instance: Instance, commands: list[list[str]]) -> None:
    """Run management commands with their output in a log. Lines about locks are also printed, as they appear."""
    environment = instance.environment() | {"DATABASE_URL": instance.owner_url()}
    log_path = instance.log_path("migrate")
    command = [sys.executable, "-m", "hearth.provisioning.management_commands", *map(json.dumps, commands)]
    with (
        log_path.open("a") as log,
        subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.PIPE, text=True, errors="replace", cwd="/"
        ) as process,
    ):
        for line in process.stderr or ():
            print(line, end="", file=log, flush=True)
            if line.startswith(WAITING):
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode != 0:
        lines = log_path.read_text().strip().splitlines()
        reason = lines[-1].removeprefix("CommandError: ") if lines else "no output"
        raise MigrationFailed(f"{reason} (log: {log_path})")


def connect(instance: Instance) -> None:
    """Set up Django in this process as role hearth_app, and Celery for the hints that commands send. Idempotent."""
    os.environ.update(instance.environment())
    import django

    django.setup()
    from hearth.celery import app

    app.set_current()


def remembered_engine(instance: Instance) -> EngineChoice:
    """Return the engine option of the last start. Needs :func:`connect`."""
    from hearth.provisioning import first_run

    return first_run.remembered_engine(instance.data_dir)


def bootstrap(instance: Instance, options: StartOptions, engine: Engine) -> Bootstrapped:
    """Create the first data of a new instance; see ``hearth.provisioning.first_run``. Needs :func:`connect`."""
    from hearth.provisioning import first_run

    return first_run.run(engine=engine, options=options, node=instance.node, demo=instance.demo)


def bootstrap_without_model(instance: Instance) -> Bootstrapped:
    """Create the first data without a model or a node; see ``hearth.provisioning.first_run``. Needs :func:`connect`."""
    from hearth.provisioning import first_run

    return first_run.run_without_model(demo=instance.demo)


def needed_replicas(instance: Instance) -> int:
    """Return how many replicas the instance needs to be up. Needs :func:`connect`."""
    from hearth.provisioning import first_run

    return first_run.needed_replicas(instance.data_dir)


def replicas() -> list[ReplicaStatus]:
    """Return the replicas that are wanted or still run, oldest first. Needs :func:`connect`."""
    from workers.models import Replica

    rows = Replica.objects.exclude(state__in=("stopped", "lost", "failed"), desired_state="stopped")
    return [
        ReplicaStatus(
            id=str(row.id),
            deployment=row.deployment.name,
            state=row.state,
            desired_state=row.desired_state,
            node=row.node.name if row.node else None,
            port=row.port,
            pid=row.pid,
            last_error=row.last_error,
        )
        for row in rows.select_related("deployment", "node").order_by("created_at", "id")
    ]


def placeholders() -> list[PlaceholderStatus] | None:
    """Return the placeholders, oldest first; None while the database is unavailable. Needs :func:`connect`."""
    from django.db import Error

    from workers.models import Placeholder
    from workers.scheduler import placeholder_pools

    try:
        rows = list(
            Placeholder.objects.filter(state__in=placeholder_pools.LEASED_STATES).select_related("node").order_by("id")
        )
    except Error:
        return None
    return [
        PlaceholderStatus(
            id=str(row.id),
            node=row.node.name,
            state=row.state,
            level=row.level,
            warm_seconds=row.warm_seconds,
            reason=row.reason,
        )
        for row in rows
    ]


def shortages() -> list[str]:
    """Return a sentence for each deployment whose replicas find no slot, or wait for files. Needs :func:`connect`."""
    from workers.fleet.status import inventory

    found = ((each.name, each.obstacles) for each in inventory.read().deployments)
    return [f"deployment {name}: {obstacles}" for name, obstacles in found if obstacles]


def alerts() -> list[str]:
    """Return a sentence for each open alert. Needs :func:`connect`."""
    from alerting import open_alerts

    return [f"{each.kind}: {each.summary}" for each in open_alerts.newest(is_open=True, most=20)]


def wal_backlog() -> WalBacklog:
    """Return how much usage is in the log but not yet in the database. Needs :func:`connect`."""
    from billing.drain.lag import backlog

    return backlog()


def stop_fleet() -> int:
    """Request the stop of every replica; return their number. Needs :func:`connect`, and no control worker."""
    from tenants.audit import SYSTEM
    from workers.fleet import deployments

    return deployments.stop_all(SYSTEM)


def leave(instance: Instance) -> int:
    """Request the stop of the replicas on this machine; return their number. Needs :func:`connect`.

    While other machines run, the node is cordoned until :func:`rejoin`: their scheduler would start replacements here.
    """
    from hearth.provisioning import cluster

    if cluster.has_others(instance.node):
        return cluster.leave(instance.node, instance.data_dir)
    return cluster.withdraw(instance.node)


def rejoin(instance: Instance) -> None:
    """Undo the cordon of :func:`leave`. Idempotent. Needs :func:`connect`."""
    from hearth.provisioning import cluster

    cluster.rejoin(instance.node, instance.data_dir)


def withdraw(node: str) -> int:
    """Request the stop of one node's replicas; return their number. Needs :func:`connect`."""
    from hearth.provisioning import cluster

    return cluster.withdraw(node)


def declare_secrets(instance: Instance) -> None:
    """Store the fingerprints of this instance's secrets, which every later start compares. Raises Unreachable."""
    connect(instance)
    from django.db import Error

    from hearth.provisioning import cluster

    try:
        cluster.declare_secrets()
    except Error as error:
        raise Unreachable(str(error).strip()) from error
    finally:
        disconnect()


def disconnect() -> None:
    """Close the database connection, so that an idle supervisor keeps none open."""
    from django.db import connections

    connections.close_all()
