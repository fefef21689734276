"""Failover: which pools work, what that changes for deployments, and when their replicas may go back.

A pool works while one of its nodes has a live agent, no cordon and a healthy slot. Replicas of a lost pool are placed
in the deployment's next pool by the same plan that places all others; this module stores why, and since when a pool
that was replaced so has worked again. Its replicas move back after the deployment's down delay; see ``failback``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from django.db.models import BooleanField, DurationField, ExpressionWrapper, F, Q
from django.db.models.functions import Now

from workers.models import Deployment, DeploymentPool, Node, Replica, ReplicaEvent, ScaleDecision, Slot
from workers.scheduler.slots.placement import NodeView, Steps
from workers.serving import pool_requirements

MOVES = "pool {} works again: it moves back once its replacement there is ready"


def works_again() -> dict[UUID, tuple[UUID, ...]]:
    """Return, by deployment, the pools in order that its replicas may move back to; renew since when pools work.

    A pool that stops working again keeps the replicas that were about to move there where they are.
    """
    links = DeploymentPool.objects.exclude(failed_over_at=None)
    if not links.exists():
        return {}
    working = _working_pools()
    down = links.exclude(pool__in=working)
    for deployment_id in down.values_list("deployment_id", flat=True):
        Replica.objects.filter(deployment=deployment_id, moves_back=True).update(leaving=False, moves_back=False)
    down.exclude(works_since=None).update(works_since=None)
    links.filter(pool__in=working, works_since=None).update(works_since=Now())
    age = ExpressionWrapper(Now() - F("works_since"), output_field=DurationField())
    found: dict[UUID, list[UUID]] = defaultdict(list)
    rows = links.filter(pool__in=working).select_related("deployment").annotate(age=age).order_by("sequence")
    for link in rows:
        if link.age.total_seconds() >= link.deployment.scale_down_delay_seconds:
            found[link.deployment_id].append(link.pool_id)
    return {deployment_id: tuple(pools) for deployment_id, pools in found.items()}


def record(steps: Steps, nodes: Sequence[NodeView]) -> None:
    """Store a decision for each deployment whose replicas the plan places past a pool that does not work."""
    pool_of = {node.id: node.pool_id for node in nodes}
    placed = Counter((deployment_id, pool_of[node_id]) for deployment_id, node_id in steps.place)
    if not placed:
        return
    working = _working_pools()
    links = pool_requirements.usable_links()
    states = _node_states()
    for (deployment_id, pool_id), count in placed.items():
        ordered = links.get(deployment_id, [])
        target = next(link for link in ordered if link.pool_id == pool_id)
        before = [link for link in ordered if link.sequence < target.sequence]
        down = [link for link in before if link.pool_id not in working and link.pool_id in states]
        if down:
            _record(target, count, down, states)


def follow(steps: Steps, moved: Iterable[tuple[UUID, UUID, UUID]]) -> set[UUID]:
    """Store which replicas move back, given (deployment, replica, node of its replacement); return their nodes.

    Pools that have their replicas again are no longer failed over.
    """
    for deployment_id, pool_id in steps.moved_back:
        links = DeploymentPool.objects.filter(deployment=deployment_id, pool=pool_id)
        links.update(failed_over_at=None, works_since=None)
    touched = set()
    for deployment_id, replica_id, node_id in moved:
        row = Replica.objects.select_related("node__pool", "deployment").get(id=replica_id)
        home = Node.objects.select_related("pool").get(id=node_id).pool
        Replica.objects.filter(id=replica_id).update(leaving=True, moves_back=True)
        ReplicaEvent.objects.create(
            replica=row, from_state=row.state, to_state=row.state, reason=MOVES.format(home.name)
        )
        desired = row.deployment.desired_replicas
        away = row.node.pool.name if row.node else "none"
        delay = row.deployment.scale_down_delay_seconds
        ScaleDecision.objects.create(
            deployment_id=deployment_id,
            pool=home,
            action=ScaleDecision.Action.FAILBACK,
            from_replicas=desired,
            to_replicas=desired,
            reason=f"pool {home.name} has worked again for {delay:g} s: one replica moves back from pool {away}",
            inputs={"replica": str(replica_id), "node": str(node_id), "down_delay_seconds": delay},
        )
        touched.add(node_id)
    return touched


def _record(
    target: DeploymentPool, count: int, down: Sequence[DeploymentPool], states: Mapping[UUID, Counter[str]]
) -> None:
    desired = Deployment.objects.values_list("desired_replicas", flat=True).get(id=target.deployment_id)
    told = "; ".join(f"no node of pool {link.pool.name} works ({_words(states[link.pool_id])})" for link in down)
    placed = "1 replica is" if count == 1 else f"{count} replicas are"
    ScaleDecision.objects.create(
        deployment_id=target.deployment_id,
        pool_id=target.pool_id,
        action=ScaleDecision.Action.FAILOVER,
        from_replicas=desired,
        to_replicas=desired,
        reason=f"{told}: {placed} placed in pool {target.pool.name}"[:500],
        inputs={"replicas": count, "pools": {link.pool.name: dict(states[link.pool_id]) for link in down}},
    )
    ids = [link.id for link in down]
    DeploymentPool.objects.filter(id__in=ids, failed_over_at=None).update(failed_over_at=Now(), works_since=None)


def _words(states: Counter[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def _working_pools() -> set[UUID]:
    slots = Slot.objects.filter(health=Slot.Health.OK, node__lease_expires_at__gt=Now(), node__cordoned=False)
    return set(slots.order_by().values_list("node__pool_id", flat=True).distinct())


def _node_states() -> dict[UUID, Counter[str]]:
    """Count the nodes of each pool by what is wrong with them."""
    found: dict[UUID, Counter[str]] = defaultdict(Counter)
    alive = Q(lease_expires_at__gt=Now())
    rows = Node.objects.annotate(alive=ExpressionWrapper(alive, output_field=BooleanField()))
    for pool_id, is_alive, cordoned in rows.values_list("pool_id", "alive", "cordoned"):
        found[pool_id]["silent" if not is_alive else "cordoned" if cordoned else "without a healthy slot"] += 1
    return found
