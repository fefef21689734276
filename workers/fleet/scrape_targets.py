"""Where the metrics of all roles and engines are, for Prometheus' discovery over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db.models.functions import Now

from workers.models import Node, Replica

#: Roles that every node has; their addresses are in its row.
NODE_ROLES = ("agent", "drain")
ENGINES_PATH = "/metrics/engines/"
#: An engine answers from when it was started until its processes have ended.
_ANSWERING = (
    Replica.State.WARMING,
    Replica.State.READY,
    Replica.State.SUSPECT,
    Replica.State.DRAINING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """One address to scrape, with the labels that its series get."""

    address: str
    labels: Mapping[str, str]


def targets() -> tuple[ScrapeTarget, ...]:
    """Return the roles of this machine, the agents and drains of all nodes that respond, and the engines on these.

    Engines are reached through their agent, which has their key. Two queries.
    """
    nodes = list(Node.objects.filter(lease_expires_at__gt=Now()).exclude(metrics={}).select_related("pool"))
    found = [*_roles(), *(each for node in nodes for each in _of_node(node)), *_engines(nodes)]
    return tuple(found)


def _roles() -> Iterator[ScrapeTarget]:
    for name, address in settings.METRICS_ADDRESSES.items():
        role = name.partition("-")[0]  # gateway-2 is a further gateway
        if role not in NODE_ROLES:
            yield ScrapeTarget(address=address, labels={"role": role})


def _of_node(node: Node) -> Iterator[ScrapeTarget]:
    for role in NODE_ROLES:
        if role in node.metrics:
            labels = {"role": role, "node": node.name, "pool": node.pool.name}
            yield ScrapeTarget(address=str(node.metrics[role]), labels=labels)


def _engines(nodes: list[Node]) -> Iterator[ScrapeTarget]:
    by_id = {node.id: node for node in nodes if "agent" in node.metrics}
    rows = Replica.objects.filter(node__in=by_id, state__in=_ANSWERING).select_related("deployment", "revision__model")
    for row in rows.order_by("id"):
        assert row.node_id is not None, "filtered by it"
        node = by_id[row.node_id]
        yield ScrapeTarget(
            address=str(node.metrics["agent"]),
            labels={
                "__metrics_path__": f"{ENGINES_PATH}{row.id}",
                "role": "engine",
                "deployment": row.deployment.name,
                "model": row.revision.model.name,
                "replica": str(row.id),
                "node": node.name,
                "pool": node.pool.name,
            },
        )
