"""Decide which replica moves back to an earlier pool that works again, from facts alone: no database, no clock."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from workers.scheduler.slots.placement import DeploymentView, FreeSlots, ReplicaView, Steps


def move_back(deployment: DeploymentView, free_slots: FreeSlots, steps: Steps) -> None:
    """Add the step that moves one replica back to a pool that works again, if it is time for one.

    One moves at a time, and only while every desired replica serves: its replacement gets its slots first, and the
    replica stops once that serves. Without a free node it stays where it is.
    """
    if deployment.rollout is not None or not deployment.works_again or not _is_settled(deployment):
        return
    place = {pool_id: index for index, pool_id in enumerate(deployment.pool_ids)}
    for pool_id in deployment.works_again:
        if pool_id not in place:
            continue
        replica = _furthest(deployment, place, place[pool_id])
        if replica is None:
            steps.moved_back.append((deployment.id, pool_id))
            continue
        node = free_slots.choose(deployment, pool_id)
        if node is not None:
            free_slots.take(node, deployment)
            steps.move_back.append((deployment.id, replica.id, node.id))
            return


def _is_settled(deployment: DeploymentView) -> bool:
    wanted = [replica for replica in deployment.replicas if replica.state != "failed"]
    return len(wanted) == deployment.desired and all(each.state == "ready" and not each.leaving for each in wanted)


def _furthest(deployment: DeploymentView, place: dict[UUID, int], home: int) -> ReplicaView | None:
    """Return the least busy replica of the last pool that has more than what is prepared there; None if none has."""
    there = Counter(replica.pool_id for replica in deployment.replicas)
    later = [
        replica
        for replica in deployment.replicas
        if replica.pool_id is not None
        and place.get(replica.pool_id, home) > home
        and there[replica.pool_id] > deployment.prepared.get(replica.pool_id, 0)
    ]
    return min(
        later, key=lambda each: (-place[each.pool_id], each.requests, each.id) if each.pool_id else (), default=None
    )
