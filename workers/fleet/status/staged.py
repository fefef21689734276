"""The files of models in the page cache of nodes as lists show them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db.models import F

from workers.models import StagedWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedStatus:
    """The files of one model on one node, as its agent measured them; ``note`` says why they are not staged."""

    node: str
    pool: str
    model: str
    bytes_total: int
    bytes_resident: int
    #: When a deployment of it last had a request or was prepared; the oldest is dropped first.
    wanted_at: dt.datetime | None
    note: str


def statuses() -> tuple[StagedStatus, ...]:
    """Return what each node stages, by node, most recently wanted first (one query)."""
    rows = StagedWeights.objects.select_related("node__pool", "revision__model")
    return tuple(
        StagedStatus(
            node=row.node.name,
            pool=row.node.pool.name,
            model=row.revision.model.name,
            bytes_total=row.bytes_total,
            bytes_resident=row.bytes_resident,
            wanted_at=row.wanted_at,
            note=row.note if row.measured_at else "not measured yet",
        )
        for row in rows.order_by("node__name", F("wanted_at").desc(nulls_last=True), "id")
    )
