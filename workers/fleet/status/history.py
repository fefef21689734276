"""What happened in the fleet, newest first: scale decisions and transitions of replicas."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F, Window
from django.db.models.functions import RowNumber

from workers.fleet.lookup import short
from workers.models import Replica, ReplicaEvent, ScaleDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One change of a deployment's desired replicas. ``pool`` is the one that is prepared or released, else None."""

    id: UUID
    at: dt.datetime
    deployment: str
    pool: str | None
    action: str
    from_replicas: int
    to_replicas: int
    reason: str
    #: The facts it was decided from.
    inputs: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One transition of one replica."""

    at: dt.datetime
    replica: str
    node: str | None
    from_state: str
    to_state: str
    reason: str


def decisions(last: int) -> tuple[Decision, ...]:
    """Return the ``last`` decisions."""
    rows = ScaleDecision.objects.select_related("deployment", "pool").order_by("-id")
    return tuple(decision(row) for row in rows[:last])


def decision(row: ScaleDecision) -> Decision:
    """Return the decision of a row; select its deployment and pool with it."""
    return Decision(
        id=row.id,
        at=row.created_at,
        deployment=row.deployment.name,
        pool=row.pool.name if row.pool else None,
        action=row.action,
        from_replicas=row.from_replicas,
        to_replicas=row.to_replicas,
        reason=row.reason,
        inputs=row.inputs,
    )


def transitions(last: int) -> tuple[Transition, ...]:
    """Return the ``last`` transitions of all replicas."""
    rows = ReplicaEvent.objects.select_related("replica__deployment", "replica__node").defer("log_tail").order_by("-id")
    rows = rows[:last]
    return tuple(_transition(row, row.replica) for row in rows)


def transitions_of(replicas: Sequence[Replica], last: int) -> dict[UUID, list[Transition]]:
    """Return the ``last`` transitions of each replica by its id (one query)."""
    by_id = {replica.id: (_name(replica), replica.node.name if replica.node else None) for replica in replicas}
    newest = Window(RowNumber(), partition_by=F("replica_id"), order_by=F("id").desc())
    rows = ReplicaEvent.objects.filter(replica__in=by_id).annotate(rank=newest).filter(rank__lte=last)
    # Values, not models: a fleet page of 280 replicas reads 840 of them.
    columns = rows.order_by("replica_id", "-id").values_list("replica_id", "created_at", *_STATES)
    found: dict[UUID, list[Transition]] = defaultdict(list)
    for replica_id, at, before, after, reason in columns:
        name, node = by_id[replica_id]
        found[replica_id].append(
            Transition(at=at, replica=name, node=node, from_state=before, to_state=after, reason=reason)
        )
    return found


_STATES = ("from_state", "to_state", "reason")


def _name(replica: Replica) -> str:
    return f"{replica.deployment.name}/{short(replica.id)}"


def _transition(row: ReplicaEvent, replica: Replica) -> Transition:
    return Transition(
        at=row.created_at,
        replica=_name(replica),
        node=replica.node.name if replica.node else None,
        from_state=row.from_state,
        to_state=row.to_state,
        reason=row.reason,
    )
