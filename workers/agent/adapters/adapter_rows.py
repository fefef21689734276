"""What an agent reads and writes about the LoRA adapters of its replicas, under the node's epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

from django.db.models import BooleanField, Case, ExpressionWrapper, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Now

from catalogue import adapters
from tenants.ids import ReplicaId, RevisionId
from workers.agent.store.replica_rows import NodeRows
from workers.engines.arguments import is_fetched
from workers.models import AdapterLoad, Replica, ReplicaEvent, Weights
from workers.scheduler.adapters import UNLOAD_AFTER
from workers.serving import endpoints

AdapterState = Literal["wanted", "loaded", "failed", "unloaded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRow:
    """One revision of an adapter on one replica.

    ``engine_name`` is what the engine shall call it, ``loaded_as`` what the engine of ``generation`` calls it.
    ``folder`` has its files; it is empty while the node fetches them. ``due`` is True once the next attempt may begin,
    ``leaves`` once it may be unloaded.
    """

    load_id: UUID
    replica_id: ReplicaId
    revision_id: RevisionId
    model_name: str
    engine_name: str
    folder: str
    weights_digest: str
    wanted: bool
    leaves: bool
    due: bool
    state: AdapterState
    generation: int
    loaded_as: str
    attempts: int
    #: Why the last attempt failed; empty if it did not.
    error: str


class AdapterRows:
    """The adapters of the replicas of a node that an agent owns."""

    def __init__(self, node: NodeRows) -> None:
        self._node = node

    def by_replica(self) -> Mapping[ReplicaId, Sequence[AdapterRow]]:
        """Return the adapters of each replica that serves, oldest first."""
        due = Q(next_attempt_at=None) | Q(next_attempt_at__lte=Now())
        files = Weights.objects.filter(
            node_id=self._node.node_id, revision=OuterRef("revision"), state=Weights.State.READY
        )
        rows = (
            AdapterLoad.objects.filter(replica__node_id=self._node.node_id, replica__state=Replica.State.READY)
            .annotate(
                due=ExpressionWrapper(due, output_field=BooleanField()),
                leaves=Case(When(unwanted_since__lte=Now() - UNLOAD_AFTER, then=Value(True)), default=Value(False)),
                fetched=Subquery(files.values("folder")[:1]),
            )
            .select_related("revision__model")
            .order_by("id")
        )
        found: dict[ReplicaId, list[AdapterRow]] = defaultdict(list)
        for row in rows:
            revision = row.revision
            fetched = is_fetched(revision.engine, revision.source, revision.engine_args)
            replica_id = cast(ReplicaId, row.replica_id)
            found[replica_id].append(
                AdapterRow(
                    load_id=row.id,
                    replica_id=replica_id,
                    revision_id=RevisionId(revision.id),
                    model_name=revision.model.name,
                    engine_name=adapters.engine_name(revision.model.name, revision.digest),
                    folder=(row.fetched or "") if fetched else revision.source,
                    weights_digest=revision.weights_digest,
                    wanted=row.unwanted_since is None,
                    leaves=row.leaves,
                    due=row.due,
                    state=cast(AdapterState, row.state),
                    generation=row.generation,
                    loaded_as=row.engine_name,
                    attempts=row.attempts,
                    error=row.error,
                )
            )
        return found

    def move(self, row: AdapterRow, to: AdapterState, *, event: str = "", **changes: Any) -> bool:
        """Move the adapter from the state in ``row`` to another, with the notice to gateways.

        ``event``: what the history of its replica gets. False if it has changed. Raises Superseded.
        """
        with self._node.owning():
            same = AdapterLoad.objects.filter(id=row.load_id, state=row.state)
            changed = same.update(state=to, state_since=Now(), **changes)
            if changed and to != row.state:
                endpoints.announce()
            if changed and event:
                ready = Replica.State.READY
                ReplicaEvent.objects.create(
                    replica_id=row.replica_id, from_state=ready, to_state=ready, reason=event[:500]
                )
            return bool(changed)
