"""What the gateways sent to the replicas of open rollouts, and how it went: what makes a rollout undo itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Sum

from workers.models import Replica, RolloutTraffic

_COUNTS = ("requests", "failures", "slow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests, those that engines failed, and the streams whose first token took longer than the policy's bound."""

    requests: int = 0
    failures: int = 0
    slow: int = 0


def report(process: str, counts: Mapping[UUID, Traffic]) -> None:
    """Store what one process has counted so far, by replica; one without an open rollout is passed over."""
    opened = Replica.objects.filter(id__in=counts, rollout__isnull=False, rollout__finished_at=None)
    RolloutTraffic.objects.bulk_create(
        [
            RolloutTraffic(
                process=process,
                replica_id=replica_id,
                requests=counts[replica_id].requests,
                failures=counts[replica_id].failures,
                slow=counts[replica_id].slow,
            )
            for replica_id in sorted(opened.values_list("id", flat=True))
        ],
        update_conflicts=True,
        unique_fields=("process", "replica"),
        update_fields=_COUNTS,
    )


def of_rollout(rollout_id: UUID) -> Traffic:
    """Return the sums over all processes, ended ones included, and all replicas that the rollout made."""
    rows = RolloutTraffic.objects.filter(replica__rollout=rollout_id)
    sums = rows.aggregate(**{name: Sum(name, default=0) for name in _COUNTS})
    return Traffic(**sums)


def forget_finished() -> int:
    """Remove the rows of finished rollouts, and return how many."""
    removed, _ = RolloutTraffic.objects.filter(replica__rollout__finished_at__isnull=False).delete()
    return removed
