"""Delete what the policy no longer keeps: in batches, bounded per run, counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from retention import metrics, policy, usage_partitions
from retention.policy import KINDS, Kind
from tenants.ids import first_id_at
from workers.models import DeferredRequest, SlotLease, SlotWait

log = logging.getLogger(__name__)

BATCH_ROWS = 5_000
#: Batches of one kind in one run. The next run goes on.
MOST_BATCHES = 200
#: More than clocks of processes and the database differ by. Younger rows are kept.
CLOCK_SKEW = timedelta(minutes=1)
ENDED = (DeferredRequest.State.DONE, DeferredRequest.State.FAILED)


def run(now: datetime | None = None) -> dict[str, int]:
    """Retire every kind; return how many rows of each were deleted. A kind that fails does not stop the others."""
    moment, rules = now or timezone.now(), policy.current()
    retired = {}
    for kind in KINDS:
        since = policy.keeps_since(rules, kind, moment)
        if since is None:
            continue
        try:
            retired[kind.name] = _retire(kind, since - CLOCK_SKEW if kind.unit != "months" else since)
        except DatabaseError:
            metrics.FAILURES.labels(kind.name).inc()
            log.exception("%s could not be retired", kind.name)
    return retired


def _retire(kind: Kind, since: datetime) -> int:
    if kind.name == "requests":
        count = usage_partitions.retire(since)
        metrics.RETIRED_ROWS.labels(kind.name).inc(count)
        return count
    count = sum(_in_batches(kind, delete, since) for delete in _DELETES[kind.name])
    if count:
        log.info("retired %d rows of %s from before %s", count, kind.name, since.isoformat(timespec="seconds"))
    return count


def _in_batches(kind: Kind, delete: Callable[[datetime], int], since: datetime) -> int:
    total = 0
    for _ in range(MOST_BATCHES):
        count = delete(since)
        total += count
        metrics.RETIRED_ROWS.labels(kind.name).inc(count)
        if count < BATCH_ROWS:
            break
    return total


def _rows_of(name: str) -> Callable[[datetime], int]:
    """Return a function that deletes a batch of a kind that only the database's own function may delete."""

    def delete(since: datetime) -> int:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT hearth_retire_rows(%s, %s, %s)", [name, since, BATCH_ROWS])
            return int(cursor.fetchone()[0])

    return delete


def _leases(since: datetime) -> int:
    ended = SlotLease.objects.filter(id__lt=first_id_at(since), released_at__lt=since).order_by("id").values("id")
    return SlotLease.objects.filter(id__in=ended[:BATCH_ROWS]).delete()[0]


def _waits(since: datetime) -> int:
    ended = SlotWait.objects.filter(ended_at__lt=since).order_by("id").values("id")
    return SlotWait.objects.filter(id__in=ended[:BATCH_ROWS]).delete()[0]


def _deferred(since: datetime) -> int:
    ended = DeferredRequest.objects.filter(state__in=ENDED, finished_at__lt=since).order_by("id").values("id")
    return DeferredRequest.objects.filter(id__in=ended[:BATCH_ROWS]).delete()[0]


_DELETES: dict[str, tuple[Callable[[datetime], int], ...]] = {
    "events": (_rows_of("events"), _leases, _waits),
    "decisions": (_rows_of("decisions"),),
    "deferred": (_deferred,),
    "audit": (_rows_of("audit"),),
}
