"""The placeholders as lists show them: how warm each is, and which deployments it can serve how soon."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from django.db.models import DurationField, ExpressionWrapper, F, Model, QuerySet
from django.db.models.functions import Now

from workers.models import Deployment, Level, Placeholder
from workers.scheduler.placeholder_pools import LEASED_STATES
from workers.serving import promotion, start_times
from workers.serving.start_times import Summaries

STATE_AGE = ExpressionWrapper(Now() - F("state_since"), output_field=DurationField())


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimate:
    """Median measured seconds until a placeholder serves ``deployment``; None while no such start was measured."""

    deployment: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderStatus:
    """Warm capacity. ``level`` is its level now; ``deployment`` the one it was warmed for."""

    id: UUID
    node: str
    deployment: str | None
    engine: str
    target_level: str
    level: str
    state: str
    since: dt.datetime
    #: Time in this state, by the database's clock.
    state_seconds: float
    reason: str
    memory_bytes: int | None
    warm_seconds: float | None
    #: Median measured seconds until a replica started from it serves; None while no such start was measured.
    expected_seconds: float | None
    #: Every deployment that it can serve.
    estimates: tuple[StartEstimate, ...]

    @property
    def evictable(self) -> bool:
        """Return whether it has a slot."""
        return self.state in LEASED_STATES

    @property
    def promotable(self) -> bool:
        """Return whether it has a warm process that can become a replica."""
        return (self.state, self.level) == (Placeholder.State.WARM, Level.H2)


def placeholder_rows() -> QuerySet[Placeholder]:
    """Return all placeholders, oldest first, with what :func:`placeholder_status` needs."""
    rows = Placeholder.objects.select_related("node__pool", "deployment__revision")
    return rows.annotate(age=STATE_AGE).order_by("id")


def placeholder_status(
    row: Placeholder, measured: Summaries, deployments: Sequence[Deployment] = ()
) -> PlaceholderStatus:
    """Return the status of a row of :func:`placeholder_rows`, which can serve those ``deployments`` that suit it."""
    # one that is still warming is used at the level that it is meant to reach
    level = row.level if row.state == Placeholder.State.WARM else row.target_level
    starts = measured.get(row.deployment.revision_id, ()) if row.deployment else ()
    return PlaceholderStatus(
        id=row.id,
        node=row.node.name,
        deployment=row.deployment.name if row.deployment else None,
        engine=row.engine,
        target_level=row.target_level,
        level=row.level,
        state=row.state,
        since=row.state_since,
        state_seconds=age_seconds(row),
        reason=row.reason,
        memory_bytes=row.memory_bytes,
        warm_seconds=row.warm_seconds,
        expected_seconds=start_times.expected_seconds(starts, level),
        estimates=tuple(
            StartEstimate(
                deployment=each.name,
                seconds=start_times.expected_seconds(measured.get(each.revision_id, ()), level),
            )
            for each in deployments
            if _suits(row, each)
        ),
    )


def _suits(row: Placeholder, deployment: Deployment) -> bool:
    """Return whether the placeholder can serve the deployment: without a process, every one of its pool."""
    if row.level == Level.H2 and not promotion.can_become(row, deployment):
        return False
    return any(link.pool_id == row.node.pool_id for link in deployment.deploymentpool_set.all())


def age_seconds(row: Model) -> float:
    """Return how long a row annotated with ``STATE_AGE`` has been in its state, by the database's clock."""
    age = cast(dt.timedelta, getattr(row, "age"))  # noqa: B009 - an annotation, unknown to the model's type
    return round(age.total_seconds(), 1)
