"""What became of the fleet, newest first: scaling decisions, transitions of replicas, measured starts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from workers.fleet.lookup import short
from workers.models import Deployment, ReplicaEvent, ScaleDecision
from workers.serving import start_times


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine:
    """One decision of scaling, with what it was decided from."""

    at: dt.datetime
    deployment: str
    action: str
    from_replicas: int
    to_replicas: int
    pool: str
    reason: str
    inputs: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One transition of one replica."""

    at: dt.datetime
    replica: str
    node: str
    from_state: str
    to_state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartLine:
    """The newest starts of a deployment's revision from one level, in seconds up to the first canary token."""

    deployment: str
    model: str
    level: str
    count: int
    median_seconds: float
    p95_seconds: float


def decisions(last: int) -> tuple[DecisionLine, ...]:
    """Return the ``last`` decisions."""
    rows = ScaleDecision.objects.select_related("deployment", "pool").order_by("-id")[:last]
    return tuple(
        DecisionLine(
            at=row.created_at,
            deployment=row.deployment.name,
            action=row.action,
            from_replicas=row.from_replicas,
            to_replicas=row.to_replicas,
            pool=row.pool.name if row.pool else "",
            reason=row.reason,
            inputs=row.inputs,
        )
        for row in rows
    )


def events(last: int) -> tuple[EventLine, ...]:
    """Return the ``last`` transitions."""
    rows = ReplicaEvent.objects.select_related("replica__deployment", "replica__node").order_by("-id")[:last]
    return tuple(
        EventLine(
            at=row.created_at,
            replica=f"{row.replica.deployment.name}/{short(row.replica_id)}",
            node=row.replica.node.name if row.replica.node else "",
            from_state=row.from_state,
            to_state=row.to_state,
            reason=row.reason,
        )
        for row in rows
    )


def starts() -> tuple[StartLine, ...]:
    """Return what starts took, by deployment and level, coldest first."""
    rows = Deployment.objects.filter(archived_at=None).select_related("revision__model").order_by("name")
    measured = start_times.summaries({row.revision_id for row in rows})
    return tuple(
        StartLine(
            deployment=row.name,
            model=row.revision.model.name,
            level=summary.level,
            count=summary.count,
            median_seconds=summary.median_seconds,
            p95_seconds=summary.p95_seconds,
        )
        for row in rows
        for summary in measured.get(row.revision_id, ())
    )
