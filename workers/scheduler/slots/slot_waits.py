"""Record when deployments wait for slots of a pool."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db.models.functions import Now

from workers.models import SlotWait
from workers.serving import pool_requirements


def renew(deployments: Collection[UUID]) -> None:
    """Begin the waits of these deployments, in every pool that they may use, and end all others.

    Call it in every tick of reconcile, with the deployments that have a replica without a node.
    """
    links = pool_requirements.usable_links() if deployments else {}
    wanted = {(deployment, link.pool_id) for deployment in deployments for link in links.get(deployment, ())}
    known = {(row.deployment_id, row.pool_id): row.id for row in SlotWait.objects.filter(ended_at=None)}
    over = [known[key] for key in known.keys() - wanted]
    if over:
        SlotWait.objects.filter(id__in=over).update(ended_at=Now())
    SlotWait.objects.bulk_create(
        SlotWait(deployment_id=deployment, pool_id=pool) for deployment, pool in sorted(wanted - known.keys())
    )
