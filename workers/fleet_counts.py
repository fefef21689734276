"""Count the fleet: replicas, slots and placeholders by state, and how long starts took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, FilteredRelation, Q, Sum
from django.db.models.functions import Now

from workers.models import (
    Deployment,
    DeploymentPool,
    NodeCertificate,
    Placeholder,
    Replica,
    Slot,
    StagedWeights,
    StartTime,
)
from workers.serving import learned_targets, placeholder_costs
from workers.serving.placeholder_costs import PlaceholderCost
from workers.serving.start_times import PARTS

#: Upper bounds of the histogram of starts, in seconds.
START_BOUNDS = (0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
#: States that every deployment exports, even when no replica is in them.
SHOWN_STATES = tuple(
    state for state in Replica.State.values if state not in {Replica.State.STOPPED, Replica.State.LOST}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartHistogram:
    """Starts, or one part of them, of one model in one pool from one level.

    ``counts`` is the number that took at most each bound.
    """

    level: str
    pool: str
    model: str
    counts: tuple[int, ...]
    count: int
    #: Sum over all starts.
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """The fleet at one moment. Keys are (deployment, state), (deployment,), (pool, state), (pool, level, state)."""

    replicas: Mapping[tuple[str, ...], int]
    desired: Mapping[tuple[str, ...], int]
    #: Tokens in flight that one replica should have, by (deployment, pool, origin).
    targets: Mapping[tuple[str, ...], int]
    slots: Mapping[tuple[str, ...], int]
    placeholders: Mapping[tuple[str, ...], int]
    #: What placeholders cost and saved on the present day of UTC until now, by pool.
    placeholder_costs: tuple[PlaceholderCost, ...]
    #: Bytes of models' files in the page cache of nodes, and in all, by (node, model).
    staged_resident: Mapping[tuple[str, ...], int]
    staged_total: Mapping[tuple[str, ...], int]
    starts: tuple[StartHistogram, ...]
    #: Parts of starts, by the name of the part; see ``workers.serving.start_times``.
    start_parts: Mapping[str, tuple[StartHistogram, ...]]
    #: Seconds until the certificate of each node that has one and whose agent lives expires, by (node,).
    certificates: Mapping[tuple[str, ...], float]
    start_bounds: tuple[float, ...] = START_BOUNDS


def read() -> FleetCounts:
    """Count everything, in twenty-one short queries. Raises django.db.Error."""
    desired: dict[tuple[str, ...], int] = {
        (name,): wanted
        for name, wanted in Deployment.objects.filter(archived_at=None).values_list("name", "desired_replicas")
    }
    staged = list(
        StagedWeights.objects.values_list("node__name", "revision__model__name", "bytes_resident", "bytes_total")
    )
    return FleetCounts(
        replicas=_replicas([name for name, *_ in desired]),
        desired=desired,
        targets=_targets(),
        slots=_slots(),
        placeholders=_placeholders(),
        placeholder_costs=placeholder_costs.today(),
        staged_resident={(node, model): resident for node, model, resident, _ in staged},
        staged_total={(node, model): total for node, model, _, total in staged},
        starts=_starts("seconds"),
        start_parts={part: _starts(f"{part}_seconds") for part in PARTS},
        certificates=_certificates(),
    )


def _targets() -> dict[tuple[str, ...], int]:
    rows = list(Deployment.objects.filter(archived_at=None))
    learned = learned_targets.read(rows)
    by_id = {row.id: row for row in rows}
    found: dict[tuple[str, ...], int] = {}
    links = DeploymentPool.objects.filter(deployment__in=rows).values_list("deployment_id", "pool_id", "pool__name")
    for deployment_id, pool_id, pool in links:
        row, target = by_id[deployment_id], learned.get((deployment_id, pool_id))
        origin = "learned" if target else "default" if row.learns_target else "set"
        found[row.name, pool, origin] = target or row.target_tokens_per_replica
    return found


def _certificates() -> dict[tuple[str, ...], float]:
    rows = NodeCertificate.objects.filter(node__lease_expires_at__gt=Now(), node__removed_at=None)
    lives = rows.exclude(expires_at=None).annotate(life=F("expires_at") - Now())
    return {(name,): life.total_seconds() for name, life in lives.values_list("node__name", "life")}


def _replicas(deployments: list[str]) -> dict[tuple[str, ...], int]:
    """Count replicas; failed ones only while they are wanted, because those need attention."""
    found: dict[tuple[str, ...], int] = {(name, state): 0 for name in deployments for state in SHOWN_STATES}
    given_up = Q(state=Replica.State.FAILED, desired_state=Replica.Desired.STOPPED)
    rows = Replica.objects.filter(state__in=SHOWN_STATES).exclude(given_up)
    for name, state, count in rows.values_list("deployment__name", "state").annotate(count=Count("id")):
        found[name, state] = count
    return found


def _slots() -> dict[tuple[str, ...], int]:
    found: Counter[tuple[str, ...]] = Counter()
    rows = Slot.objects.exclude(health=Slot.Health.GONE).annotate(
        lease=FilteredRelation("leases", condition=Q(leases__released_at=None))
    )
    for pool, health, kind in rows.values_list("node__pool__name", "health", "lease__kind"):
        found[pool, "quarantined" if health == Slot.Health.QUARANTINED else kind or "free"] += 1
    return dict(found)


def _placeholders() -> dict[tuple[str, ...], int]:
    state = Placeholder.State
    rows = Placeholder.objects.filter(state__in=(state.REQUESTED, state.WARMING, state.WARM, state.EVICTING))
    counted = rows.values_list("node__pool__name", "level", "state").annotate(count=Count("id"))
    return {(pool, level, state): count for pool, level, state, count in counted}


def _starts(column: str) -> tuple[StartHistogram, ...]:
    """Return the histograms of a column of the starts, over those that have it."""
    within = {
        f"within_{place}": Count("id", filter=Q(**{f"{column}__lte": bound}))
        for place, bound in enumerate(START_BOUNDS)
    }
    known = StartTime.objects.exclude(**{column: None})
    rows = known.values("level", pool_name=F("pool__name"), model=F("revision__model__name"))
    counted: Iterable[Any] = rows.annotate(count=Count("id"), total=Sum(column), **within).order_by("level")
    return tuple(
        StartHistogram(
            level=row["level"],
            pool=row["pool_name"],
            model=row["model"],
            counts=tuple(row[name] for name in within),
            count=row["count"],
            seconds=row["total"],
        )
        for row in counted
    )
