"""Keep every pool's placeholders: make what is missing, evict what is too many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

from django.db.models import Count, Q
from django.db.models.functions import Now

from workers import leases
from workers.models import Deployment, DeploymentPool, Level, Node, Placeholder, Pool, Replica, Slot
from workers.refill import Shelf, refill

_State = Placeholder.State
#: States in which a placeholder has a slot.
HELD = (_State.REQUESTED, _State.WARMING, _State.WARM)
_STARTING = (Replica.State.REQUESTED, Replica.State.RESERVED, Replica.State.STARTING, Replica.State.WARMING)


def fill() -> list[UUID]:
    """Bring every live node's placeholders to what its pool wants; return the nodes concerned.

    Call it inside a transaction, after replicas were placed: those come first.
    """
    pools = list(Pool.objects.order_by("priority", "name"))
    nodes = list(
        Node.objects.filter(lease_expires_at__gt=Now(), cordoned=False).select_related("pool").order_by("name")
    )
    rank = {pool.id: position for position, pool in enumerate(pools)}
    nodes.sort(key=lambda node: (rank[node.pool_id], node.name))
    shelves = _shelves(nodes)
    steps = refill(shelves, {before.id: after.id for before, after in pairwise(pools)})
    by_id = {node.id: node for node in nodes}
    made = [node_id for node_id in steps.make if _make(by_id[node_id])]
    where = dict(Placeholder.objects.filter(id__in=steps.evict).values_list("id", "node_id"))
    leases.evict(steps.evict, "more placeholders than its pool wants")
    return [*made, *where.values()]


def _shelves(nodes: Sequence[Node]) -> list[Shelf]:
    held: dict[UUID, list[UUID]] = defaultdict(list)
    rows = Placeholder.objects.filter(state__in=HELD, node__in=nodes)
    best_first = sorted(rows, key=lambda row: (row.level != Level.H2, row.state != _State.WARM, row.id))
    for row in best_first:
        held[row.node_id].append(row.id)
    open_leases = Count("leases", filter=Q(leases__released_at=None))
    slots = Slot.objects.filter(health=Slot.Health.OK, node__in=nodes).annotate(holders=open_leases)
    free = Counter(slot.node_id for slot in slots if not slot.holders)
    starting = set(Replica.objects.filter(state__in=_STARTING, node__in=nodes).values_list("node_id", flat=True))
    warming = set(rows.exclude(state=_State.WARM).values_list("node_id", flat=True))
    return [
        Shelf(
            node_id=node.id,
            name=node.name,
            pool_id=node.pool_id,
            wanted=node.pool.placeholders_per_node,
            free=free[node.id],
            held=tuple(held[node.id]),
            calm=node.id not in starting | warming,
        )
        for node in nodes
    ]


def _make(node: Node) -> bool:
    """Create a placeholder on the node for the pool's deployment that has fewest; False without a free slot."""
    deployment = _neediest(node.pool_id)
    row = Placeholder.objects.create(
        node=node,
        deployment=deployment,
        engine=deployment.revision.engine if deployment else "",
        target_level=node.pool.placeholder_level,
        reason="the pool keeps it warm",
    )
    fence = leases.hold(row.id, node.id)
    if fence is None:
        row.delete()
        return False
    Placeholder.objects.filter(id=row.id).update(fence=fence)
    return True


def _neediest(pool_id: UUID) -> Deployment | None:
    links = DeploymentPool.objects.filter(pool_id=pool_id, deployment__archived_at=None, deployment__max_replicas__gt=0)
    held = Count("deployment__placeholders", filter=Q(deployment__placeholders__state__in=HELD))
    link = (
        links.select_related("deployment__revision").annotate(held=held).order_by("held", "sequence", "deployment_id")
    ).first()
    return link.deployment if link else None
