"""Where requests can go now: the replicas that are ready, and the notice that this set changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from django.db import connection

from tenants.ids import ReplicaId, RevisionId
from workers import engine_keys
from workers.models import Replica

CHANNEL = "hearth_fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One engine that answers. A new ``generation`` is a new process, so its prefix cache is empty."""

    replica_id: ReplicaId
    deployment: str
    model_name: str
    revision_id: RevisionId
    base_url: str
    api_key: str = field(repr=False)
    generation: int


def ready() -> tuple[Endpoint, ...]:
    """Return every replica that is ready and wanted, by id.

    Whether the node's lease is still valid is not asked: reconcile marks replicas of a lost node, and while the
    control plane is away the last known engines go on serving.
    """
    rows = (
        Replica.objects.filter(
            state=Replica.State.READY, desired_state=Replica.Desired.RUNNING, deployment__archived_at=None
        )
        .select_related("deployment__revision__model")
        .order_by("id")
    )
    return tuple(_endpoint(row) for row in rows)


def announce() -> None:
    """Tell every gateway that the set changed. Call it inside the transaction of the change."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def _endpoint(row: Replica) -> Endpoint:
    replica_id = cast(ReplicaId, row.id)
    revision = row.deployment.revision
    return Endpoint(
        replica_id=replica_id,
        deployment=row.deployment.name,
        model_name=revision.model.name,
        revision_id=cast(RevisionId, revision.id),
        base_url=f"http://{row.host}:{row.port}",
        api_key=engine_keys.derive(replica_id),
        generation=row.generation,
    )
