"""Make the replicas of each deployment what the deployment asks for.

Level-triggered: every tick reads the whole desired and observed state and changes what differs, so a lost, late or
doubled tick does no harm. The work is one short transaction under an advisory lock.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Count, DateTimeField, Func, Q
from django.db.models.functions import Now

from workers import endpoints
from workers.models import Deployment, DeploymentPool, Node, Replica, ReplicaEvent
from workers.placement import DeploymentView, NodeView, Plan, ReplicaView, StopReason, plan

LOCK_KEY = 0x48_65_61_72_74_68_01  # "Hearth", tick
#: An agent renews its node's lease every second; a node silent for this long has lost its replicas.
LEASE = dt.timedelta(seconds=15)
#: How long the database must have been up before a lease counts as expired: while it was down no agent could renew.
DATABASE_GRACE = LEASE
#: How long a node where a deployment failed to start is not offered to it again.
FAILED_REST = dt.timedelta(minutes=10)

_State = Replica.State
#: States in which nothing runs and nothing will.
ENDED = (_State.STOPPED, _State.FAILED, _State.LOST)
_REASONS: dict[StopReason, str] = {
    "surplus": "more replicas than desired",
    "replaced": "replaced elsewhere",
    "settled": "its node may be tried again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one tick did. ``nodes`` are the names of the nodes whose agents have something new to do."""

    placed: int
    stopped: int
    lost: int
    nodes: tuple[str, ...]


@transaction.atomic
def tick() -> Outcome | None:
    """Do one round; None when another process is doing one. Idempotent."""
    if not lock(wait=False):
        return None
    lost = _mark_lost()
    steps = plan(_deployments(), _nodes())
    touched = _place(steps) | _stop(steps)
    names = Node.objects.filter(id__in=touched).order_by("name").values_list("name", flat=True)
    return Outcome(placed=len(steps.place), stopped=len(steps.stop), lost=lost, nodes=tuple(names))


def lock(*, wait: bool) -> bool:
    """Take the right to reconcile until the transaction ends; False when it is taken and ``wait`` is not set."""
    with connection.cursor() as cursor:
        if wait:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_KEY])
            return True
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK_KEY])
        return bool(cursor.fetchone()[0])


def _mark_lost() -> int:
    """Mark the replicas of nodes whose lease has expired, by the database's clock.

    Not in the first seconds of the database itself, when all leases have expired and all engines are well.
    """
    rows = list(
        Replica.objects.exclude(state__in=ENDED)
        .alias(database_up_since=Func(function="pg_postmaster_start_time", output_field=DateTimeField()))
        .filter(node__lease_expires_at__lt=Now(), database_up_since__lt=Now() - DATABASE_GRACE)
        .select_for_update(of=("self",))
        .order_by("id")
    )
    for row in rows:
        ReplicaEvent.objects.create(
            replica=row, from_state=row.state, to_state=_State.LOST, reason="the node's lease expired"
        )
    Replica.objects.filter(id__in=[row.id for row in rows]).update(state=_State.LOST, state_since=Now())
    if any(row.state == _State.READY for row in rows):
        endpoints.announce()
    return len(rows)


def _nodes() -> tuple[NodeView, ...]:
    rows = Node.objects.filter(lease_expires_at__gt=Now(), cordoned=False).annotate(
        held=Count("replicas", filter=~Q(replicas__state__in=ENDED))
    )
    return tuple(NodeView(id=row.id, name=row.name, pool_id=row.pool_id, replicas=row.held) for row in rows)


def _deployments() -> tuple[DeploymentView, ...]:
    pools: dict[UUID, list[UUID]] = defaultdict(list)
    for deployment_id, pool_id in DeploymentPool.objects.order_by("sequence").values_list("deployment_id", "pool_id"):
        pools[deployment_id].append(pool_id)
    replicas: dict[UUID, list[ReplicaView]] = defaultdict(list)
    recent = Q(state=_State.FAILED, state_since__gt=Now() - FAILED_REST)
    wanted = Replica.objects.filter(desired_state=Replica.Desired.RUNNING).exclude(state=_State.STOPPED)
    for row in wanted.select_related("node").annotate(recent=recent).order_by("id"):
        replicas[row.deployment_id].append(
            ReplicaView(
                id=row.id,
                state=row.state,
                node_id=row.node_id,
                pool_id=row.node.pool_id if row.node else None,
                requests=row.running_requests + row.waiting_requests,
                failed_recently=row.recent,
            )
        )
    return tuple(
        DeploymentView(
            id=row.id,
            desired=0 if row.archived_at else row.desired_replicas,
            pool_ids=tuple(pools[row.id]),
            replicas=tuple(replicas[row.id]),
        )
        for row in Deployment.objects.order_by("id")
    )


def _place(steps: Plan) -> set[UUID]:
    """Create the replicas of the plan, each with a fence of its own; return the nodes that got one."""
    for deployment_id, node_id in steps.place:
        row = Replica.objects.create(deployment_id=deployment_id, node_id=node_id, fence=_next_fence())
        ReplicaEvent.objects.create(replica=row, from_state="", to_state=_State.REQUESTED, reason="wanted")
    return {node_id for _, node_id in steps.place}


def _stop(steps: Plan) -> set[UUID]:
    """Withdraw the wish for replicas; their agents stop them. Return the nodes concerned."""
    rows = list(Replica.objects.filter(id__in=steps.stop).select_for_update().order_by("id"))
    Replica.objects.filter(id__in=[row.id for row in rows]).update(desired_state=Replica.Desired.STOPPED)
    for row in rows:
        ReplicaEvent.objects.create(
            replica=row, from_state=row.state, to_state=row.state, reason=_REASONS[steps.stop[row.id]]
        )
    if any(row.state == _State.READY for row in rows):
        endpoints.announce()
    return {row.node_id for row in rows if row.node_id is not None}


def _next_fence() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('workers_fence_seq')")
        return int(cursor.fetchone()[0])
