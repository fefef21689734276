"""Compare the PostgreSQL connections and locks that an instance may need with those that its server has."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from hearth.embedded import postgres
from hearth.instance import health_ports
from hearth.instance.instance import Instance
from portal.access.requests import load_limits

#: The most connections of one process of each role. Portal: one for each running request and each response that is
#: sent in pieces, one for the live updates, two for health pages. Gateway: its feed, deferred requests, health pages.
#: Celery's roles: their threads, and those that watch and publish.
OF_ROLE = {
    "portal": load_limits.RUNNING + load_limits.SENDING + 3,
    "gateway": 11,
    "inference": 12,
    "control": 5,
    "background": 7,
    "agent": 8,
    "drain": 4,
    "beat": 2,
}
#: Of a further machine that `hearth node` runs.
OF_NODE = OF_ROLE["agent"] + OF_ROLE["drain"]
#: For `hearth` commands, migrations and backups beside them.
OF_COMMANDS = 5
CONNECT_SECONDS = 3
#: Locks on tables and indexes that the server should hold at once: as many as the embedded one. A query over a year of
#: usage locks each day with its indexes, and several run at once.
LOCKS = postgres.LOCKS * postgres.MAX_CONNECTIONS
_SERVER = """
    SELECT current_setting('max_connections')::int, current_setting('max_locks_per_transaction')::int,
           current_setting('max_prepared_transactions')::int,
           current_setting('superuser_reserved_connections')::int
           + coalesce(current_setting('reserved_connections', true)::int, 0),
           (SELECT count(*) FROM workers_node WHERE name <> %(node)s),
           (SELECT count(DISTINCT split_part(process, '@', 2)) FROM workers_gatewayload
            WHERE reported_at > now() - interval '1 minute' AND split_part(process, '@', 2) <> %(node)s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a server accepts from Hearth's role; it keeps ``reserved`` connections beside these for others."""

    connections: int
    reserved: int
    #: Nodes of the cluster other than this machine.
    further_nodes: int
    #: Those of them that run every role.
    further_heads: int
    #: Of all connections together: ``max_locks_per_transaction`` for each one that it accepts.
    locks: int
    #: ``max_locks_per_transaction`` with which it would have LOCKS.
    locks_for_each: int


def needed(instance: Instance, further_nodes: int, further_heads: int = 0) -> int:
    """Return the most connections that the cluster's processes open at once. All heads are taken to be like this."""
    gateways = 1 + len(list(health_ports.further_gateways(instance)))
    of_head = sum(OF_ROLE.values()) + (gateways - 1) * OF_ROLE["gateway"]
    return (1 + further_heads) * of_head + (further_nodes - further_heads) * OF_NODE + OF_COMMANDS


def accepted(url: str, node: str) -> Server | None:
    """Return what the server of this address accepts; None if it cannot be asked."""
    try:
        with psycopg.connect(url, connect_timeout=CONNECT_SECONDS, autocommit=True) as connection:
            row = connection.execute(_SERVER, {"node": node}).fetchone()
    except psycopg.Error:
        return None
    if row is None:
        return None
    most, locks, prepared, reserved, nodes, heads = row
    return Server(
        connections=most - reserved,
        reserved=reserved,
        further_nodes=nodes,
        further_heads=min(heads, nodes),
        locks=locks * (most + prepared),
        locks_for_each=-(-LOCKS // (most + prepared)),
    )
