"""What the machines of a cluster agree on in the database: its tables, its secrets, and who is a node of which pool.

Django must be set up (``fleet.connect``). The fingerprints of the secrets are entries of the audit log: written by
`hearth up` and `hearth bootstrap` when they change, compared by every machine that joins, never changed.
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
from hearth.provisioning import secrets_transfer
from tenants import audit
from tenants.audit import SYSTEM
from tenants.models import AuditEntry
from workers import processes
from workers.errors import Conflict
from workers.fleet import deployments, operations
from workers.models import Node, Placeholder, Pool, Replica
from workers.scheduler import reconciler, slot_leases
from workers.serving import endpoints

DECLARED = "cluster.secrets_declared"
REDIS_TIMEOUT_SECONDS = 5.0


class JoinRefused(PreflightError):
    """This machine cannot take part. Carries ``problem`` and ``remedy``, each a sentence."""


def declare_secrets() -> None:
    """Write the fingerprints of this machine's secrets down as the cluster's, unless they are already."""
    mine, known = secrets_transfer.fingerprints(settings.SECRETS), _declared()
    if mine != known:
        audit.record(SYSTEM, DECLARED, ("cluster", "secrets"), before=known, after=mine)


def check_secrets(names: Iterable[str]) -> None:
    """Raise JoinRefused unless this machine's secrets of these names are the cluster's."""
    known = _declared()
    if known is None:
        raise JoinRefused(
            "The database belongs to no cluster yet.",
            "Start the first machine: `hearth up` or `hearth bootstrap` there.",
        )
    mine = secrets_transfer.fingerprints(settings.SECRETS)
    differing = [name for name in names if mine[name] != known.get(name)]
    if differing:
        raise JoinRefused(
            f"The secrets in {settings.DATA_DIR} are not this cluster's: {', '.join(differing)} would be refused.",
            "Move secrets.json away and import the cluster's: `hearth secrets export -` on the first machine, into "
            "`hearth secrets import -` here.",
        )


def check_servers() -> None:
    """Raise JoinRefused unless the database answers with this version's tables, and Redis answers."""
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except Error as error:
        raise JoinRefused(
            f"The database of DATABASE_URL does not answer: {_first_line(error)}.",
            "Check the address and its password, that the server listens on the network, and its pg_hba.conf.",
        ) from error
    if missing:
        raise JoinRefused(
            "The database lacks tables of this version of Hearth.",
            "Start or upgrade the first machine before this one: `hearth up` or `hearth bootstrap` there.",
        )
    try:
        with redis.Redis.from_url(settings.REDIS_LIMITS_URL, socket_connect_timeout=REDIS_TIMEOUT_SECONDS) as client:
            client.ping()
    except redis.RedisError as error:
        raise JoinRefused(
            f"The Redis of REDIS_URL does not answer: {_first_line(error)}.",
            "Check the address and its password, and that the server listens on the network.",
        ) from error


def local_pool(node: str, new_node: PoolOptions) -> Pool:
    """Return the node's pool; a new node joins the pool of ``new_node``, which is created if it does not exist.

    Raises JoinRefused when that pool is given and is not the node's, or is of another kind.
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
    """Make this machine a node, or a node again, and return its pool. Raises JoinRefused.

    The agent does the rest: it registers address and slots and renews the node's lease.
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


@transaction.atomic
def leave(node: str) -> int:
    """Give the node nothing new, ask its replicas to stop, evict its placeholders; return how many replicas that were.

    Waits for a tick that is running. :func:`rejoin` undoes it.
    """
    operations.cordon(SYSTEM, node)
    return withdraw(node)


@transaction.atomic
def withdraw(node: str) -> int:
    """Ask the node's replicas to stop and evict its placeholders; return how many replicas that were."""
    reconciler.lock(wait=True)
    asked = reconciler.withdraw(
        Replica.objects.filter(node__name=node), drain_seconds=deployments.SHUTDOWN_DRAIN_SECONDS
    )
    slot_leases.evict(list(Placeholder.objects.filter(node__name=node).values_list("id", flat=True)), "the node leaves")
    if asked:
        endpoints.announce()
    return asked


def is_cordoned(node: str) -> bool:
    """Return True when the node gets nothing new."""
    return Node.objects.filter(name=node, cordoned=True).exists()


def rejoin(node: str) -> None:
    """Give the node replicas again."""
    operations.uncordon(SYSTEM, node)


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
