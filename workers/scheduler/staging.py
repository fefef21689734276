"""Which models' files a node should keep in its page cache: those of replicas that it may soon get."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from uuid import UUID

from django.db.models import F, Q
from django.db.models.functions import Now

from workers.models import Deployment, Node, StagedWeights
from workers.scheduler import adapters
from workers.serving import gateway_load, pool_requirements

#: How often a model that is wanted all the time is noted as wanted.
NOTED_SECONDS = 60.0


def renew(now: dt.datetime) -> None:
    """Create the rows that are missing, delete those that nobody needs, and note which models are wanted now.

    A deployment may soon get a replica on a node of a pool that stages files while it is below its maximum, also at
    zero, or has one prepared there. It is wanted while it has requests or is prepared. Its adapters go with it. Call it
    in every tick.
    """
    nodes = list(
        Node.objects.filter(pool__staged_share__gt=0, lease_expires_at__gt=Now(), cordoned=False).order_by("id")
    )
    known = {(row.node_id, row.revision_id): row for row in StagedWeights.objects.all()} if nodes else {}
    if not nodes:
        StagedWeights.objects.all().delete()
        return
    may_grow = Q(desired_replicas__lt=F("max_replicas")) | Q(deploymentpool__prepared_replicas__gt=0)
    rows = (
        Deployment.objects.filter(may_grow, archived_at=None, max_replicas__gt=0).select_related("revision").distinct()
    )
    by_base = adapters.wanted()
    links, busy_at = pool_requirements.usable_links(), gateway_load.busy_at()
    wanted: dict[tuple[UUID, UUID], dt.datetime | None] = {}
    for row in rows:
        pools = {link.pool_id: link.prepared_replicas > 0 for link in links.get(row.id, ())}
        for node in nodes:
            if node.pool_id in pools:
                at = now if pools[node.pool_id] else busy_at.get(row.id)
                takes = by_base.get(row.revision.model_id, ()) if row.revision.options.get("lora_adapters") else ()
                wanted |= {(node.id, revision_id): at for revision_id in (row.revision_id, *takes)}
    _apply(wanted, known)


def _apply(
    wanted: Mapping[tuple[UUID, UUID], dt.datetime | None], known: Mapping[tuple[UUID, UUID], StagedWeights]
) -> None:
    gone = [row.id for key, row in known.items() if key not in wanted]
    if gone:
        StagedWeights.objects.filter(id__in=gone).delete()
    noted = []
    for key, at in wanted.items():
        row = known.get(key)
        if row is None:
            noted.append(StagedWeights(node_id=key[0], revision_id=key[1], wanted_at=at))
        elif at is not None and (row.wanted_at is None or (at - row.wanted_at).total_seconds() >= NOTED_SECONDS):
            row.wanted_at = at
            noted.append(row)
    StagedWeights.objects.bulk_create(
        noted, update_conflicts=True, unique_fields=("node", "revision"), update_fields=("wanted_at",)
    )
