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
    """Return every replica that requests can go to, by id: those that are ready and wanted.

    A deployment that has none offers those of a lost node instead: the agent may be silent while its engines are
    well, and an engine that is gone refuses the connection at once.
    """
    rows = (
        Replica.objects.filter(
            state__in=(Replica.State.READY, Replica.State.LOST),
            desired_state=Replica.Desired.RUNNING,
            deployment__archived_at=None,
            port__isnull=False,
        )
        .select_related("deployment", "revision__model")
        .order_by("id")
    )
    served = {row.deployment_id for row in rows if row.state == Replica.State.READY}
    return tuple(_endpoint(row) for row in rows if row.state == Replica.State.READY or row.deployment_id not in served)


def announce() -> None:
    """Tell every gateway that the set changed. Call it inside the transaction of the change."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])


def _endpoint(row: Replica) -> Endpoint:
    replica_id = cast(ReplicaId, row.id)
    revision = row.revision
    return Endpoint(
        replica_id=replica_id,
        deployment=row.deployment.name,
        model_name=revision.model.name,
        revision_id=cast(RevisionId, revision.id),
        base_url=f"http://{row.host}:{row.port}",
        api_key=engine_keys.derive(replica_id),
        generation=row.generation,
    )
