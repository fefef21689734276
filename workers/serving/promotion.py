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


def fits_devices(slots_per_replica: int, pool_kind: str) -> bool:
    """Return whether replicas of so many slots can be promoted: a zygote sees the one GPU of its own slot."""
    return slots_per_replica == 1 or pool_kind != "gpu"


def can_become(row: Placeholder, deployment: Deployment) -> bool:
    """Return whether the placeholder's zygote, once warm, can become a replica of the deployment."""
    return offered(row) == needed(deployment.revision) and fits_devices(
        deployment.slots_per_replica, row.node.pool.kind
    )
