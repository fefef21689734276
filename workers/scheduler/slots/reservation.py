"""Keep a node's slots for the replica that has waited longest, so that smaller ones do not starve it.

Decided from facts alone: no database, no clock. What frees slots is that other replicas end. Without a reservation,
smaller replicas take these one by one, and a large gang never sees a whole node. Per pool, the node with the most slots
to give is kept for the deployment that has waited longest. Nobody else takes from that node, so what the best node has
to give never becomes less, and each replica that ends there brings the gang closer.
"""

from __future__ import annotations

from workers.scheduler.slots.placement import DeploymentView, FreeSlots, NodeView, Steps

#: Seconds that a replica waits before slots are kept for it: what was just asked for may fit in a moment.
KEEP_AFTER = 30.0
#: Seconds for which slots are kept, and then given to anybody for as long: where nothing ends, they do not stay idle.
KEEP_FOR = 1800.0


def keep(deployment: DeploymentView, free_slots: FreeSlots, steps: Steps) -> None:
    """Keep the best node of the deployment's pools for it, if it found none and has waited for long enough."""
    waited = deployment.waited_seconds
    if not steps.homeless.get(deployment.id) or waited is None or waited < KEEP_AFTER:
        return
    if (waited - KEEP_AFTER) % (2 * KEEP_FOR) >= KEEP_FOR:
        return
    nodes = [
        node
        for pool_id in deployment.pool_ids
        if pool_id not in free_slots.keeping_pools
        for node in free_slots.offered(deployment, pool_id)
        if max(node.size, node.free + node.with_placeholder) >= deployment.slots_per_replica
    ]
    best = min(nodes, key=lambda node: _order(node, free_slots), default=None)
    if best is not None:
        free_slots.keep(best)
        steps.kept[deployment.id] = best.id


def _order(node: NodeView, free_slots: FreeSlots) -> tuple[int, str]:
    return (-free_slots.slots[node.id], node.name)
