"""The target loads of replicas as lists show them: which number, and what it was learned from."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from workers.fleet.status.pool_status import PoolStatus
from workers.fleet.status.replica_status import ReplicaStatus
from workers.models import Deployment, LoadCurve, Replica
from workers.scheduler.scaling import load_curves
from workers.scheduler.scaling.target_learning import Curve
from workers.serving import learned_targets
from workers.serving.gateway_load import DeploymentLoad

Origin = Literal["set", "learned", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStatus:
    """The tokens in flight that one replica of a deployment in a pool should have, and where that comes from.

    ``ready``: how many replicas serve there. ``points`` are what was measured of the revision there.
    """

    pool: str
    tokens: int
    origin: Origin
    ready: int
    reason: str = ""
    measured_at: dt.datetime | None = None
    points: Curve = ()


def by_deployment(
    rows: Sequence[Deployment], replicas: Sequence[ReplicaStatus], pools: Sequence[PoolStatus]
) -> dict[UUID, tuple[TargetStatus, ...]]:
    """Return the targets of each deployment, by pool in filling order (three queries)."""
    learned = learned_targets.read(rows)
    curves = {
        (curve.deployment_id, curve.pool_id): curve
        for curve in LoadCurve.objects.filter(deployment__in=[row.id for row in rows])
        if curve.revision_id == next(row.revision_id for row in rows if row.id == curve.deployment_id)
    }
    pool_of = {node.name: pool.name for pool in pools for node in pool.nodes}
    ready = Counter(
        (each.deployment, pool_of.get(each.node or ""))
        for each in replicas
        if each.state == Replica.State.READY and each.canary in Replica.PROVEN
    )
    return {
        row.id: tuple(
            _status(
                row,
                link.pool.name,
                learned.get((row.id, link.pool_id)),
                curves.get((row.id, link.pool_id)),
                ready[row.name, link.pool.name],
            )
            for link in row.deploymentpool_set.all()
        )
        for row in rows
    }


def words(targets: Sequence[TargetStatus]) -> str:
    """Return the targets as one text: ``16,384``, ``700 learned``, or ``700 to 9,000 learned``."""
    if not targets:
        return ""
    tokens = sorted(each.tokens for each in targets)
    numbers = f"{tokens[0]:,}" if tokens[0] == tokens[-1] else f"{tokens[0]:,} to {tokens[-1]:,}"
    return f"{numbers} learned" if any(each.origin == "learned" for each in targets) else numbers


def share(load: DeploymentLoad, targets: Sequence[TargetStatus]) -> float | None:
    """Return the tokens in flight and queued as a share of what the ready replicas should have; None without any."""
    capacity = sum(each.ready * each.tokens for each in targets)
    return (load.in_flight_tokens + load.queued_tokens) / capacity if capacity else None


def _status(row: Deployment, pool: str, learned: int | None, curve: LoadCurve | None, ready: int) -> TargetStatus:
    if not row.learns_target:
        return TargetStatus(pool=pool, tokens=row.target_tokens_per_replica, origin="set", ready=ready)
    origin: Origin = "default" if learned is None else "learned"
    tokens = row.target_tokens_per_replica if learned is None else learned
    if curve is None:
        reason = "" if learned is None else "learned of an earlier revision, or in a pool with the same GPUs"
        return TargetStatus(pool=pool, tokens=tokens, origin=origin, ready=ready, reason=reason)
    return TargetStatus(
        pool=pool,
        tokens=tokens,
        origin=origin,
        ready=ready,
        reason=curve.reason,
        measured_at=curve.measured_at,
        points=load_curves.points_of(curve),
    )
