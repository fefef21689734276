"""What the gateways have in flight, as they say it themselves: the demand that scaling decides from.

Each process keeps one row per deployment and writes it again while it lives, so silence is no load. Ages are told by
the database's clock alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Sum
from django.db.models.functions import Now

from workers.models import Deployment, GatewayLoad

#: How often a process repeats a load that did not change, and how old a row may be that still counts.
KEEP_ALIVE_SECONDS = 3.0
LASTS = dt.timedelta(seconds=10)
#: A row of a process that has been silent for this long is removed: the process is gone.
FORGOTTEN_AFTER = dt.timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests and their tokens, prompt and answer: at engines, and waiting for a first engine."""

    in_flight_requests: int = 0
    in_flight_tokens: int = 0
    held_requests: int = 0
    held_tokens: int = 0


def report(process: str, loads: Mapping[UUID, Load]) -> None:
    """Write down what one process has, by deployment; a deployment it does not name keeps its row.

    One statement beside the check that each deployment is still there.
    """
    known = set(Deployment.objects.filter(id__in=loads).values_list("id", flat=True))
    GatewayLoad.objects.bulk_create(
        [
            GatewayLoad(
                process=process,
                deployment_id=deployment_id,
                in_flight_requests=load.in_flight_requests,
                in_flight_tokens=load.in_flight_tokens,
                held_requests=load.held_requests,
                held_tokens=load.held_tokens,
                reported_at=Now(),
            )
            for deployment_id, load in sorted(loads.items())
            if deployment_id in known
        ],
        update_conflicts=True,
        unique_fields=("process", "deployment"),
        update_fields=("in_flight_requests", "in_flight_tokens", "held_requests", "held_tokens", "reported_at"),
    )


def demand() -> dict[UUID, Load]:
    """Return the sum over all live processes, by deployment; one that nobody reports is absent."""
    fresh = GatewayLoad.objects.filter(reported_at__gt=Now() - LASTS).order_by()
    sums = fresh.values("deployment").annotate(
        requests=Sum("in_flight_requests"),
        tokens=Sum("in_flight_tokens"),
        waiting=Sum("held_requests"),
        waiting_tokens=Sum("held_tokens"),
    )
    return {
        row["deployment"]: Load(
            in_flight_requests=row["requests"],
            in_flight_tokens=row["tokens"],
            held_requests=row["waiting"],
            held_tokens=row["waiting_tokens"],
        )
        for row in sums
    }


def forget_silent() -> int:
    """Remove the rows of processes that are gone, and return how many. They count for nothing already."""
    removed, _ = GatewayLoad.objects.filter(reported_at__lt=Now() - FORGOTTEN_AFTER).delete()
    return removed
