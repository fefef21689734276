"""What an agent reads and writes about the files of models on its node, under the node's epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.functions import Now

from workers.agent.store.replica_rows import NodeRows
from workers.engines.arguments import commit_of, load_format
from workers.models import Weights
from workers.weights import secrets

WeightsState = Literal["wanted", "fetching", "ready", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRow:
    """The files of one revision on this node. ``due`` is True once the next attempt may begin."""

    weights_id: UUID
    model_id: UUID
    state: WeightsState
    source: str
    commit: str
    load_format: str
    bytes_done: int
    bytes_total: int | None
    folder: str
    attempts: int
    due: bool


class WeightsRows:
    """The weights of a node that an agent owns."""

    def __init__(self, node: NodeRows) -> None:
        self._node = node

    def all(self) -> list[WeightsRow]:
        """Return the files that the node should have, oldest first."""
        due = Q(next_attempt_at=None) | Q(next_attempt_at__lte=Now())
        rows = Weights.objects.filter(node_id=self._node.node_id).annotate(
            due=ExpressionWrapper(due, output_field=BooleanField())
        )
        return [
            WeightsRow(
                weights_id=row.id,
                model_id=row.revision.model_id,
                state=cast(WeightsState, row.state),
                source=row.revision.source,
                commit=commit_of(row.revision.engine_args),
                load_format=load_format(row.revision.engine_args),
                bytes_done=row.bytes_done,
                bytes_total=row.bytes_total,
                folder=row.folder,
                attempts=row.attempts,
                due=row.due,
            )
            for row in rows.select_related("revision").order_by("id")
        ]

    def token(self, row: WeightsRow) -> str | None:
        """Return the model's token for the hub; None if it has none. Raises UnknownEngineKey, SecretUnreadable."""
        return secrets.read_of_model(row.model_id)

    def move(self, row: WeightsRow, to: WeightsState, **changes: Any) -> bool:
        """Move the weights from the state in ``row`` to another. False if they have changed. Raises Superseded."""
        return self.note(row, state=to, state_since=Now(), **changes)

    def note(self, row: WeightsRow, **changes: Any) -> bool:
        """Write facts without changing the state. False if the row has changed. Raises Superseded."""
        with self._node.owning():
            same = Weights.objects.filter(id=row.weights_id, node_id=self._node.node_id, state=row.state)
            return bool(same.update(**changes))
