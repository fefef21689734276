"""Which nodes fetch which models' files: those that may get a replica, before they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import cast
from uuid import UUID

from django.db.models import Count, F, Q

from catalogue.models import ModelRevision
from workers.engines.arguments import commit_of, is_fetched, load_format
from workers.models import Deployment, DeploymentPool, Node, Slot, Weights
from workers.scheduler.placement import WeightsState

#: The state of the files by revision, then by node.
Fetched = Mapping[UUID, Mapping[UUID, WeightsState]]


def renew(live: Iterable[UUID]) -> tuple[Fetched, set[UUID]]:
    """Create the rows that are missing and delete those that nobody needs; return all, and the nodes with new ones.

    A row is created on each of the ``live`` nodes of a deployment's pools that has slots for a replica, as soon as one
    is desired. It stays while the deployment may have replicas: what scales to zero starts again without a download.
    Deleting a row ends its process and leaves the files. Call it inside reconcile's transaction.
    """
    deployments = [
        row
        for row in Deployment.objects.filter(archived_at=None, max_replicas__gt=0).select_related("revision")
        if is_fetched(row.revision.engine, row.revision.source, row.revision.engine_args)
    ]
    rows = list(Weights.objects.select_related("node", "revision"))
    if not deployments and not rows:
        return {}, set()
    pools: dict[UUID, set[UUID]] = defaultdict(set)
    for deployment_id, pool_id in DeploymentPool.objects.values_list("deployment_id", "pool_id"):
        pools[deployment_id].add(pool_id)
    kept = {(pool_id, row.revision_id) for row in deployments for pool_id in pools[row.id]}
    gone = [row.id for row in rows if (row.node.pool_id, row.revision_id) not in kept]
    if gone:
        Weights.objects.filter(id__in=gone).delete()
    found: dict[UUID, dict[UUID, WeightsState]] = defaultdict(dict)
    for row in rows:
        if row.id not in gone:
            found[row.revision_id][row.node_id] = cast(WeightsState, row.state)
    touched = _create(deployments, pools, set(live), found, [row for row in rows if row.state == Weights.State.READY])
    return found, touched


def are_ready(revision: ModelRevision, node_id: UUID) -> bool:
    """Return whether a replica of the revision can start on the node without waiting for files."""
    if not is_fetched(revision.engine, revision.source, revision.engine_args):
        return True
    if not Node.objects.filter(id=node_id, fetching_epoch=F("epoch")).exists():
        return True
    return Weights.objects.filter(node_id=node_id, revision=revision, state=Weights.State.READY).exists()


def _create(
    deployments: Iterable[Deployment],
    pools: Mapping[UUID, set[UUID]],
    live: set[UUID],
    found: dict[UUID, dict[UUID, WeightsState]],
    rows: Iterable[Weights],
) -> set[UUID]:
    """Create the missing rows and add them to ``found``; return their nodes.

    A row is ready where one of the ``rows``, which are ready, has the same files.
    """
    counted = Count("slots", filter=Q(slots__health=Slot.Health.OK))
    nodes = list(Node.objects.filter(id__in=live).annotate(slot_count=counted).order_by("name"))
    touched: set[UUID] = set()
    for deployment in deployments:
        if not deployment.desired_replicas:
            continue
        same = {row.node_id: row for row in rows if _files(row.revision) == _files(deployment.revision)}
        for node in nodes:
            if node.fetching_epoch != node.epoch:  # its agent is of a version whose engines download by themselves
                found[deployment.revision_id][node.id] = "ready"
                continue
            fits = node.pool_id in pools[deployment.id] and node.slot_count >= deployment.slots_per_replica
            if not fits or node.id in found[deployment.revision_id]:
                continue
            row = Weights(node=node, revision_id=deployment.revision_id)
            if (there := same.get(node.id)) is not None:
                row.state, row.folder = Weights.State.READY, there.folder
                row.bytes_done, row.bytes_total = there.bytes_done, there.bytes_total
            row.save()
            found[deployment.revision_id][node.id] = cast(WeightsState, row.state)
            touched.add(node.id)
    return touched


def _files(revision: ModelRevision) -> tuple[str, str, str]:
    """Return what the files depend on: a revision with another option of the engine has the same."""
    return revision.source, commit_of(revision.engine_args), load_format(revision.engine_args)
