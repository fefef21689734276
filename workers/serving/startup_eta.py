"""The expected start-up time of a deployment's next replica, for requests that find none ready."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.models.functions import Now

from catalogue.registry import ServedModel
from tenants.database.compiled_query import CompiledQuery
from tenants.ids import RevisionId
from workers.models import Deployment, DeploymentPool, Level, Placeholder, Pool, Replica
from workers.serving import pool_requirements, promotion, start_times
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
        .values_list("id", "name", "revision__model__name", "revision_id", "max_replicas", "requires")
    )
)
#: Each deployment's pools, for their regions.
_LINKED = CompiledQuery(
    lambda: DeploymentPool.objects.filter(deployment__archived_at=None).values_list(
        "deployment_id", "pool__region", "pool__gpu_type", "pool__labels"
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
    #: Those of its pools that have what it requires.
    regions: frozenset[str] = frozenset()

    @property
    def may_wake(self) -> bool:
        return self.max_replicas > 0


def deployed() -> tuple[Deployed, ...]:
    """Return the deployments that are not archived, by name."""
    pools: dict[UUID, list[Pool]] = defaultdict(list)
    for deployment_id, region, gpu_type, labels in _LINKED.rows():
        pools[deployment_id].append(Pool(region=region, gpu_type=gpu_type, labels=_json(labels)))
    return tuple(
        Deployed(
            id=id_,
            name=name,
            model_name=model_name,
            revision_id=revision_id,
            max_replicas=max_replicas,
            regions=_regions(pools[id_], _json(requires)),
        )
        for id_, name, model_name, revision_id, max_replicas, requires in _DEPLOYED.rows()
    )


def _regions(pools: Sequence[Pool], requires: object) -> frozenset[str]:
    """Return the regions of those pools that have what a deployment requires."""
    requirements = pool_requirements.read(requires)
    return frozenset(pool.region for pool in pools if not pool_requirements.unmet(requirements, pool))


def _json(value: object) -> object:
    """Return a JSON column of a compiled query, which comes as text."""
    return json.loads(value) if isinstance(value, str) else value


def startable(deployments: Sequence[Deployed], model: ServedModel, regions: frozenset[str]) -> Deployed | None:
    """Return a deployment that may start a replica of the model, that of the active revision first.

    ``regions``: it has a pool in one of these; empty: anywhere.
    """
    able = [
        each
        for each in deployments
        if each.model_name == model.served_by and each.may_wake and (not regions or each.regions & regions)
    ]
    return min(able, key=lambda each: each.revision_id != model.deployed_revision_id, default=None)


def etas() -> dict[UUID, float]:
    """Return, by deployment, how many seconds its next replica takes from the decision to its first token.

    That is the median of the measured starts of its revision, at the warmth of its next start. Pools that lack what it
    requires count for nothing: their placeholders and the starts that were measured there.
    """
    rows = list(Deployment.objects.filter(archived_at=None).select_related("revision"))
    usable = pool_requirements.usable_links()
    pools = {row.id: {link.pool_id for link in usable.get(row.id, ())} for row in rows}
    coming = _coming()
    warm = _warm()
    measured = start_times.summaries({row.revision_id for row in rows}, left_out=_left_out(rows))
    return {
        row.id: expected(
            measured.get(row.revision_id, ()),
            coming.get(row.id) or (Level.H2 if _is_warm(row, pools[row.id], warm) else Level.COLD),
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


def _left_out(rows: Sequence[Deployment]) -> set[tuple[UUID, UUID]]:
    """Return (revision, pool) where the pool lacks what the revision's deployment requires."""
    revisions = {row.id: (row.revision_id, pool_requirements.read(row.requires)) for row in rows if row.requires}
    links = DeploymentPool.objects.filter(deployment__in=revisions).select_related("pool")
    return {
        (revisions[link.deployment_id][0], link.pool_id)
        for link in links
        if pool_requirements.unmet(revisions[link.deployment_id][1], link.pool)
    }


def _warm() -> list[Placeholder]:
    """Return the warm placeholders that may become replicas: a silent node gets none."""
    rows = Placeholder.objects.filter(
        state=Placeholder.State.WARM, level=Level.H2, node__cordoned=False, node__lease_expires_at__gt=Now()
    )
    return list(rows.select_related("node__pool", "deployment__revision"))


def _is_warm(row: Deployment, pools: set[UUID], warm: Sequence[Placeholder]) -> bool:
    """Return whether one of the placeholders can become a replica of the deployment, in one of these pools."""
    return any(each.node.pool_id in pools and promotion.can_become(each, row) for each in warm)
