"""Which nodes fetch which models' files: those that may get a replica, before they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from django.db.models import Count, F, Q

from catalogue.models import ModelRevision
from workers.engines.arguments import commit_of, is_fetched, load_format
from workers.models import Deployment, DeploymentPool, Node, Rollout, Slot, Weights
from workers.scheduler import adapters
from workers.scheduler.slots.placement import WeightsState
from workers.serving import pool_requirements

#: The state of the files by revision, then by node.
Fetched = Mapping[UUID, Mapping[UUID, WeightsState]]


def renew(live: Iterable[UUID]) -> tuple[Fetched, set[UUID]]:
    """Create the rows that are missing and delete those that nobody needs; return all, and the nodes with new ones.

    A row is created on each of the ``live`` nodes of a deployment's pools that has slots for a replica and what it
    requires, as soon as one is desired. It stays while the deployment may have replicas: what scales to zero starts
    again without a download.
    Deleting a row ends its process and leaves the files. Call it inside reconcile's transaction.
    """
    deployments = [each for each in _needed() if is_fetched(*_program(each.revision))]
    rows = list(Weights.objects.select_related("node", "revision"))
    if not deployments and not rows:
        return {}, set()
    pools: dict[UUID, set[UUID]] = defaultdict(set)
    for deployment_id, pool_id in DeploymentPool.objects.values_list("deployment_id", "pool_id"):
        pools[deployment_id].add(pool_id)
    kept = {(pool_id, each.revision.id) for each in deployments for pool_id in pools[each.deployment_id]}
    gone = [row.id for row in rows if (row.node.pool_id, row.revision_id) not in kept]
    if gone:
        Weights.objects.filter(id__in=gone).delete()
    found: dict[UUID, dict[UUID, WeightsState]] = defaultdict(dict)
    for row in rows:
        if row.id not in gone:
            found[row.revision_id][row.node_id] = cast(WeightsState, row.state)
    usable: dict[UUID, set[UUID]] = defaultdict(set)
    for deployment_id, links in pool_requirements.usable_links().items():
        usable[deployment_id] = {link.pool_id for link in links}
    touched = _create(deployments, usable, set(live), found, [row for row in rows if row.state == Weights.State.READY])
    return found, touched


def are_ready(revision: ModelRevision, node_id: UUID) -> bool:
    """Return whether a replica of the revision can start on the node without waiting for files."""
    if not is_fetched(*_program(revision)):
        return True
    if not Node.objects.filter(id=node_id, fetching_epoch=F("epoch")).exists():
        return True
    return Weights.objects.filter(node_id=node_id, revision=revision, state=Weights.State.READY).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """A revision whose files a deployment needs; ``at_once``: replicas are to start, with this many slots each."""

    deployment_id: UUID
    revision: ModelRevision
    slots_per_replica: int
    at_once: bool


def _needed() -> Iterator[_Needed]:
    """Yield what every deployment serves, what its open rollout brings, and the adapters of both."""
    rows = Deployment.objects.filter(archived_at=None, max_replicas__gt=0).select_related("revision")
    opened = Rollout.objects.filter(finished_at=None, deployment__in=rows).select_related("revision", "deployment")
    for row in rows:
        yield _Needed(
            deployment_id=row.id,
            revision=row.revision,
            slots_per_replica=row.slots_per_replica,
            at_once=row.desired_replicas > 0,
        )
    for rollout in opened:
        yield _Needed(
            deployment_id=rollout.deployment_id,
            revision=rollout.revision,
            slots_per_replica=rollout.slots_per_replica,
            at_once=rollout.deployment.desired_replicas > 0,
        )
    yield from _adapters(rows)


def _adapters(rows: Iterable[Deployment]) -> Iterator[_Needed]:
    """Yield the adapters of what the deployments serve."""
    by_base = adapters.wanted()
    if not by_base:
        return
    revisions = ModelRevision.objects.in_bulk({each for found in by_base.values() for each in found})
    for row in rows:
        for revision_id in by_base.get(row.revision.model_id, ()):
            yield _Needed(
                deployment_id=row.id,
                revision=revisions[revision_id],
                slots_per_replica=row.slots_per_replica,
                at_once=row.desired_replicas > 0,
            )


def _program(revision: ModelRevision) -> tuple[str, str, list[str]]:
    return revision.engine, revision.source, revision.engine_args


def _create(
    deployments: Iterable[_Needed],
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
    for needed in deployments:
        if not needed.at_once:
            continue
        same = {row.node_id: row for row in rows if _files(row.revision) == _files(needed.revision)}
        for node in nodes:
            if node.fetching_epoch != node.epoch:  # its agent is of a version whose engines download by themselves
                found[needed.revision.id][node.id] = "ready"
                continue
            fits = node.pool_id in pools[needed.deployment_id] and node.slot_count >= needed.slots_per_replica
            if not fits or node.id in found[needed.revision.id]:
                continue
            row = Weights(node=node, revision=needed.revision)
            if (there := same.get(node.id)) is not None:
                row.state, row.folder = Weights.State.READY, there.folder
                row.bytes_done, row.bytes_total = there.bytes_done, there.bytes_total
            row.save()
            found[needed.revision.id][node.id] = cast(WeightsState, row.state)
            touched.add(node.id)
    return touched


def _files(revision: ModelRevision) -> tuple[str, str, str]:
    """Return what the files depend on: a revision with another option of the engine has the same."""
    return revision.source, commit_of(revision.engine_args), load_format(revision.engine_args)
