"""Change the pools of a deployment: what runs outside of them is drained, and what comes back inside stays."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from workers.models import Deployment, DeploymentPool, Replica


def of(deployment: Deployment) -> list[UUID]:
    """Return the ids of the deployment's pools, the first filled first."""
    links = DeploymentPool.objects.filter(deployment=deployment).order_by("sequence")
    return list(links.values_list("pool_id", flat=True))


def change(deployment: Deployment, pools: Sequence[UUID]) -> bool:
    """Make these the deployment's pools, and return whether that changed them. The caller has the lock of reconcile.

    A replica outside of them serves until another one is ready in its place. One that left for an earlier change stays
    if its pool is back, unless its node is drained.
    """
    before = of(deployment)
    if before == list(pools):
        return False
    DeploymentPool.objects.filter(deployment=deployment).delete()
    DeploymentPool.objects.bulk_create(
        DeploymentPool(deployment=deployment, pool_id=pool_id, sequence=sequence)
        for sequence, pool_id in enumerate(pools, start=1)
    )
    running = Replica.objects.filter(deployment=deployment, desired_state=Replica.Desired.RUNNING)
    running.exclude(node__pool__in=pools).update(leaving=True)
    back = set(pools) - set(before)
    running.filter(node__pool__in=back, node__cordoned=False, leaving=True).update(leaving=False)
    return True
