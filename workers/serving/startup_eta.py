"""The expected start-up time of a deployment's next replica, for requests that find none ready."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Q

from tenants.database.compiled_query import CompiledQuery
from tenants.ids import RevisionId
from workers.engines.driver import import_class
from workers.models import Deployment, DeploymentPool, Level, Placeholder, Replica
from workers.serving import start_times
from workers.serving.start_times import StartSummary

#: The expected time of a start that was never measured.
UNMEASURED_SECONDS = 30.0
#: Warmest first: a level that was not measured takes the time of the next colder one, which is no shorter.
_COLDER = (Level.H2, Level.H0, Level.COLD)

#: Gateways run this query several times a second.
_DEPLOYED = CompiledQuery(
    lambda: (
        Deployment.objects.filter(archived_at=None)
        .order_by("name")
        .annotate(regions=ArrayAgg("pools__region", distinct=True, filter=~Q(pools=None), default=[]))
        .values_list("id", "name", "revision__model__name", "revision_id", "max_replicas", "regions")
    )
)
_State = Replica.State
_COMING = (_State.REQUESTED, _State.RESERVED, _State.STARTING, _State.WARMING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A deployment as a gateway needs it. One whose maximum is zero does not wake for requests."""

    id: UUID
    name: str
    model_name: str
    revision_id: RevisionId
    max_replicas: int
    #: Those of its pools.
    regions: frozenset[str] = frozenset()

    @property
    def may_wake(self) -> bool:
        return self.max_replicas > 0


def deployed() -> tuple[Deployed, ...]:
    """Return the deployments that are not archived, by name."""
    return tuple(
        Deployed(
            id=id_,
            name=name,
            model_name=model_name,
            revision_id=revision_id,
            max_replicas=max_replicas,
            regions=frozenset(regions),
        )
        for id_, name, model_name, revision_id, max_replicas, regions in _DEPLOYED.rows()
    )


def etas() -> dict[UUID, float]:
    """Return, by deployment, how many seconds its next replica takes from the decision to its first token.

    That is the median of the measured starts of its revision, at the warmth of its next start.
    """
    rows = list(Deployment.objects.filter(archived_at=None).select_related("revision"))
    coming = _coming()
    warm = _warm()
    measured = start_times.summaries({row.revision_id for row in rows})
    return {
        row.id: expected(
            measured.get(row.revision_id, ()),
            coming.get(row.id) or (Level.H2 if (row.id, _import_class(row)) in warm else Level.COLD),
        )
        for row in rows
    }


def expected(measured: Sequence[StartSummary], level: str) -> float:
    """Return how long a start from ``level`` takes, given the measurements of its revision."""
    colder = (start_times.expected_seconds(measured, each) for each in _COLDER[_COLDER.index(Level(level)) :])
    return next((seconds for seconds in colder if seconds is not None), UNMEASURED_SECONDS)


def _coming() -> dict[UUID, str]:
    """Return the start level of the replica that each deployment is starting, if any."""
    rows = Replica.objects.filter(state__in=_COMING, desired_state=Replica.Desired.RUNNING).exclude(start_level="")
    return dict(rows.order_by("id").values_list("deployment_id", "start_level"))


def _import_class(row: Deployment) -> str:
    return import_class(row.revision.engine, row.revision.source, row.revision.engine_args)


def _warm() -> set[tuple[UUID, str]]:
    """Return (deployment, import class) for each deployment with such a warm placeholder in one of its pools."""
    pools: dict[UUID, list[UUID]] = defaultdict(list)
    for pool_id, deployment_id in DeploymentPool.objects.values_list("pool_id", "deployment_id"):
        pools[pool_id].append(deployment_id)
    warm = Placeholder.objects.filter(state=Placeholder.State.WARM, level=Level.H2, node__cordoned=False)
    revision = "deployment__revision"
    found = warm.values_list("node__pool_id", "engine", f"{revision}__source", f"{revision}__engine_args").distinct()
    return {
        (deployment_id, import_class(engine, source or "", arguments or ()))
        for pool_id, engine, source, arguments in found
        for deployment_id in pools[pool_id]
    }
