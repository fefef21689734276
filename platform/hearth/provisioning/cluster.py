"""What a cluster's machines share in the database: its tables, its secrets' fingerprints, and the nodes of its pools.

Django must be set up (``database.connect``). The fingerprints of the secrets are entries of the audit log. `hearth up`
and `hearth bootstrap` add an entry when the secrets change; every machine that joins compares its own with the last
entry.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path

import redis
from django.conf import settings
from django.db import Error, connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.models.functions import Now

from hearth.checks.preflight import PreflightError
from hearth.instance.start_options import PoolOptions
from hearth.paths import LEFT_MARK
from hearth.provisioning import secrets_transfer
from tenants import audit, redis_address
from tenants.audit import SYSTEM
from tenants.database import schema_version
from tenants.models import AuditEntry
from workers import processes
from workers.errors import Conflict
from workers.fleet import deployments, operations
from workers.models import Node, Placeholder, Pool, Replica
from workers.scheduler import reconciler
from workers.scheduler.slots import slot_leases
from workers.serving import endpoints

DECLARED = "cluster.secrets_declared"
REDIS_TIMEOUT_SECONDS = 5.0


class JoinRefused(PreflightError):
    """This machine cannot join the cluster. Carries ``problem`` and ``remedy``, each a sentence."""


def declare_secrets() -> None:
    """Record the fingerprints of this machine's secrets as the cluster's, unless they are recorded already."""
    mine, known = secrets_transfer.fingerprints(settings.SECRETS), _declared()
    if mine != known:
        audit.record(SYSTEM, DECLARED, ("cluster", "secrets"), before=known, after=mine)


def check_secrets(names: Iterable[str]) -> None:
    """Raise JoinRefused unless this machine's secrets with these names are the cluster's."""
    known = _declared()
    if known is None:
        raise JoinRefused(
            "The database belongs to no cluster yet.",
            "Start the first machine: `hearth up` or `hearth bootstrap` there.",
        )
    mine = secrets_transfer.fingerprints(settings.SECRETS)
    refused = secrets_transfer.differing(mine, known, names)
    if refused:
        raise JoinRefused(
            f"The secrets in {settings.DATA_DIR} are not this cluster's: {', '.join(refused)} would be refused.",
            "Move secrets.json away and import the cluster's: `hearth secrets export -` on the first machine, into "
            "`hearth secrets import -` here.",
        )


def check_servers() -> None:
    """Raise JoinRefused unless the database answers and has this version's tables, and Redis answers."""
    try:
        unknown = schema_version.unknown_migration(connection)
        executor = MigrationExecutor(connection)
        needed = schema_version.last_before(connection, schema_version.held_back(connection))
        missing = executor.migration_plan(needed)
    except Error as error:
        raise JoinRefused(
            f"The database of DATABASE_URL does not answer: {_first_line(error)}.",
            "Check the address and its password, that the server listens on the network, and its pg_hba.conf.",
        ) from error
    if unknown is not None:
        raise JoinRefused(schema_version.PROBLEM.format(migration=unknown), schema_version.REMEDY)
    if missing:
        raise JoinRefused(
            "The database lacks tables of this version of Hearth.",
            "Start or upgrade the first machine before this one: `hearth up` or `hearth bootstrap` there.",
        )
    try:
        with redis_address.client(settings.REDIS_LIMITS_URL, socket_connect_timeout=REDIS_TIMEOUT_SECONDS) as client:
            client.ping()
    except redis.RedisError as error:
        raise JoinRefused(
            f"The Redis of REDIS_URL does not answer: {_first_line(error)}.",
            "Check the address and its password, and that the server listens on the network.",
        ) from error


def local_pool(node: str, new_node: PoolOptions) -> Pool:
    """Return the node's pool; a new node joins the pool of ``new_node``, which is created if it does not exist.

    Raises JoinRefused when ``new_node`` names a pool that is not the node's, or that is of another kind.
    """
    known = Node.objects.select_related("pool").filter(name=node).first()
    asked = new_node.pool
    if known is not None and asked in {"", known.pool.name}:
        return known.pool
    kind = _kind(new_node)
    try:
        pool = deployments.ensure_pool(SYSTEM, name=asked or f"local-{kind}", kind=kind)
        deployments.ensure_node(SYSTEM, pool=pool, name=node)
    except Conflict as error:
        raise JoinRefused(
            f"The {error.kind} {error.name} exists, and its {error.field} is {error.found}, not {error.asked}.",
            "Choose another --pool, or give this machine another HEARTH_NODE.",
        ) from error
    return pool


def _kind(new_node: PoolOptions) -> str:
    if new_node.pool_kind != "auto":
        return new_node.pool_kind
    return "gpu" if Path("/dev/nvidia0").exists() else "cpu"


@transaction.atomic
def join(node: str, new_node: PoolOptions) -> Pool:
    """Register this machine as a node, if it is not one already, and return its pool. Raises JoinRefused.

    The agent registers the node's address and slots and renews its lease.
    """
    others = Node.objects.filter(lease_expires_at__gt=Now()).exclude(name=node).exclude(boot_id=processes.boot_id())
    if _is_loopback(settings.NODE_ADDRESS) and others.exists():
        raise JoinRefused(
            f"HEARTH_NODE_ADDRESS is {settings.NODE_ADDRESS}, which the gateways of other machines cannot reach.",
            "Set it to this machine's address in the private network.",
        )
    twin = Node.objects.filter(name=node, lease_expires_at__gt=Now()).exclude(boot_id=processes.boot_id()).first()
    if twin is not None:
        raise JoinRefused(
            f"Another machine is the node {node}, and its agent is alive.",
            "Give this one another HEARTH_NODE. If it is the same machine, started anew, wait 15 seconds.",
        )
    return local_pool(node, new_node)


def leave(node: str, data_dir: Path) -> int:
    """Cordon the node, request the stop of its replicas, evict its placeholders; return the number of those replicas.

    Waits for a reconcile tick that is running. :func:`rejoin` removes the cordon, unless an operator had set it before.
    """
    if not _is_cordoned(node):
        (data_dir / LEFT_MARK).touch()
    with transaction.atomic():
        operations.cordon(SYSTEM, node)
        return withdraw(node)


def has_others(node: str) -> bool:
    """Return whether another node's agent is alive."""
    return Node.objects.filter(lease_expires_at__gt=Now()).exclude(name=node).exists()


@transaction.atomic
def withdraw(node: str) -> int:
    """Request the stop of the node's replicas and evict its placeholders; return the number of those replicas."""
    reconciler.lock(wait=True)
    asked = reconciler.withdraw(
        Replica.objects.filter(node__name=node), drain_seconds=deployments.SHUTDOWN_DRAIN_SECONDS
    )
    slot_leases.evict(list(Placeholder.objects.filter(node__name=node).values_list("id", flat=True)), "the node leaves")
    if asked:
        endpoints.announce()
    return asked


def rejoin(node: str, data_dir: Path) -> None:
    """Let the scheduler place replicas on the node again if :func:`leave` prevented it. Idempotent."""
    mark = data_dir / LEFT_MARK
    if mark.exists():
        if _is_cordoned(node):  # not where a backup of another node was restored
            operations.uncordon(SYSTEM, node)
        mark.unlink()


def _is_cordoned(node: str) -> bool:
    """Return whether the scheduler places nothing new on the node."""
    return Node.objects.filter(name=node, cordoned=True).exists()


def _declared() -> dict[str, str] | None:
    entry = AuditEntry.objects.filter(action=DECLARED).order_by("-id").first()
    return None if entry is None else entry.after


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
