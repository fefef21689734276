"""The target loads of replicas that were learned; ``workers.scheduler.scaling.load_curves`` learns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from workers.models import Deployment, DeploymentPool, LoadCurve

#: By deployment and pool: the tokens in flight that one replica should have. Absent where none were learned.
Targets = Mapping[tuple[UUID, UUID], int]


def read(rows: Iterable[Deployment]) -> Targets:
    """Return the learned targets of those deployments that have none set.

    A new revision begins with that of the one before, and a pool with that of an earlier one with the same GPUs.
    """
    by_id = {row.id: row for row in rows if row.learns_target}
    found: dict[tuple[UUID, UUID], int] = {}
    stored = LoadCurve.objects.filter(deployment__in=by_id).exclude(target_tokens=None)
    for curve in sorted(
        stored.order_by("measured_at"), key=lambda each: each.revision_id == by_id[each.deployment_id].revision_id
    ):
        assert curve.target_tokens is not None
        found[curve.deployment_id, curve.pool_id] = curve.target_tokens
    links = DeploymentPool.objects.filter(deployment__in=by_id).exclude(pool__gpu_type="")
    same: dict[tuple[UUID, str], int] = {}
    for deployment_id, pool_id, gpu_type in links.order_by("deployment", "sequence").values_list(
        "deployment_id", "pool_id", "pool__gpu_type"
    ):
        if (target := found.get((deployment_id, pool_id))) is not None:
            same.setdefault((deployment_id, gpu_type), target)
        elif (deployment_id, gpu_type) in same:
            found[deployment_id, pool_id] = same[deployment_id, gpu_type]
    return found
