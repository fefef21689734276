"""What an agent reads and writes about the files that its node keeps in the page cache, under the node's epoch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Now

from workers.agent.store.replica_rows import NodeRows
from workers.models import Node, StagedWeights, Weights
from workers.weights.stage import Staged


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRow:
    """The files of one revision; ``folder`` is empty while they are not on this node."""

    row_id: UUID
    folder: str


class StagedRows:
    """The staged weights of a node that an agent owns."""

    def __init__(self, node: NodeRows) -> None:
        self._node = node

    def wanted(self) -> tuple[tuple[StagedRow, ...], float]:
        """Return the files to stage, most recently wanted first, and the share of the memory that they may take."""
        share = Node.objects.values_list("pool__staged_share", flat=True).get(id=self._node.node_id)
        if not share:
            return (), 0.0
        fetched = dict(
            Weights.objects.filter(node_id=self._node.node_id, state=Weights.State.READY).values_list(
                "revision_id", "folder"
            )
        )
        rows = StagedWeights.objects.filter(node_id=self._node.node_id).select_related("revision")
        ordered = rows.order_by(F("wanted_at").desc(nulls_last=True), "id")
        return tuple(
            StagedRow(row_id=row.id, folder=fetched.get(row.revision_id) or _local(row.revision.source))
            for row in ordered
        ), share

    def note(self, row: StagedRow, found: Staged) -> None:
        """Write what became of the files. Raises Superseded."""
        with self._node.owning():
            StagedWeights.objects.filter(id=row.row_id, node_id=self._node.node_id).update(
                bytes_total=found.bytes_total,
                bytes_resident=found.bytes_resident,
                note=found.note[:500],
                measured_at=Now(),
            )


def _local(source: str) -> str:
    """Return the folder that a source names on this node; empty if it is none, as an id on the hub."""
    return source if os.path.isabs(source) and os.path.isdir(source) else ""
