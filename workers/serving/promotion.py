"""Which placeholder can become a replica of which deployment.

A zygote has read some variables of its environment while it imported the engine, and a promotion cannot change them
(``workers.engines.zygote.IMPORT_TIME_VARIABLES``). A promotion that would fail for that reason is never tried.
"""

from __future__ import annotations

from catalogue.models import ModelRevision
from workers.engines.driver import import_class
from workers.models import Deployment, Placeholder


def needed(revision: ModelRevision) -> str:
    """Return the import class that a replica of the revision needs."""
    return import_class(revision.engine, revision.source, revision.engine_args, revision.engine_version)


def offered(row: Placeholder) -> str:
    """Return the import class of a placeholder's zygote: that of the deployment it was warmed for."""
    if row.deployment is None:
        return row.engine
    revision = row.deployment.revision
    return import_class(row.engine, revision.source, revision.engine_args, revision.engine_version)


def slots_needed(slots_per_replica: int, pool_kind: str) -> int:
    """Return how many slots a placeholder has whose zygote can become such a replica.

    A zygote sees the GPUs of its own slots and no others, so on GPUs it has all of them. Elsewhere one slot is enough:
    the replica takes its other ones when it is promoted.
    """
    return slots_per_replica if pool_kind == "gpu" else 1


def kind_of(import_class: str, slot_count: int) -> str:
    """Return what a zygote offers and a replica on a node needs: an import class, and slots if they are several."""
    return import_class if slot_count == 1 else f"{import_class}, {slot_count} slots"


def can_become(row: Placeholder, deployment: Deployment) -> bool:
    """Return whether the placeholder's zygote, once warm, can become a replica of the deployment."""
    slots = slots_needed(deployment.slots_per_replica, row.node.pool.kind)
    return offered(row) == needed(deployment.revision) and row.slot_count == slots
