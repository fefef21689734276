"""Retire days of requests, of months that every tenant with requests in them has closed: the partition is dropped.

Each is exported first. Roll-ups, the ledger and statements stay. What cannot be retired is held, with the reason, and
tried again.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import DatabaseError

from billing.ledger import partitions
from billing.ledger.partitions import Month, Partition, month_of
from billing.models import UsageRollup
from billing.reports import statements
from retention import metrics, usage_export
from retention.models import HeldMonth
from retention.usage_export import NotExported
from tenants.models import Tenant

log = logging.getLogger(__name__)

#: Tenants that a reason names.
NAMED_TENANTS = 3
#: A run begins no further export after this long, so that the worker is free for its other tasks. The next run goes on.
LONGEST_RUN_SECONDS = 120.0


def due(since: datetime) -> list[Partition]:
    """Return the partitions that end at or before ``since``, oldest first."""
    return [each for each in partitions.existing() if each.end <= since]


def requests_in(month: Month) -> int:
    """Return how many requests of tenants the roll-ups have in that month."""
    found = UsageRollup.objects.filter(starts_at__gte=month.begin, starts_at__lt=month.next.begin)
    return sum(found.values_list("requests", flat=True).iterator())


def retire(since: datetime) -> int:
    """Retire what is due; return how many rows were deleted."""
    retired = 0
    held: dict[str, str] = {}
    ends = time.monotonic() + LONGEST_RUN_SECONDS
    for month, found in groupby(due(since), key=attrgetter("month")):
        if still_open := _open_months(month):
            held[str(month)] = still_open
            continue
        for partition in found:
            if time.monotonic() > ends:
                break
            try:
                retired += _retire(partition)
            except (DatabaseError, NotExported) as error:
                held.setdefault(str(month), str(error).strip().partition("\n")[0])
    _remember(held)
    return retired


def _retire(partition: Partition) -> int:
    """Export a partition and retire it. Raises NotExported, DatabaseError."""
    exported = usage_export.ensure(partition)
    rows = partitions.retire(partition) or 0
    file = f", which are in {exported.path}" if exported is not None else ""
    log.info("retired the requests of %s: %d rows%s", partition.name, rows, file)
    return rows


def _open_months(month: Month) -> str:
    """Return which tenants' months with requests of this month are open, and what to do; empty if none is."""
    found: dict[str, list[str]] = {}
    for tenant in _tenants_in(month):
        for year, number in _local_months(month, tenant):
            local = statements.Month(tenant=tenant, year=year, month=number)
            if statements.kept_statement(local) is None and _has_requests(month, local):
                found.setdefault(local.name, []).append(tenant.slug)
    return "; ".join(
        f"{name} is open for {', '.join(slugs[:NAMED_TENANTS])}"
        f"{f' and {len(slugs) - NAMED_TENANTS} more' if len(slugs) > NAMED_TENANTS else ''}: "
        f"run `hearth month close {name}`"
        for name, slugs in sorted(found.items())
    )


def _has_requests(month: Month, local: statements.Month) -> bool:
    return UsageRollup.objects.filter(
        tenant_id=local.tenant.id,
        starts_at__gte=max(month.begin, local.start),
        starts_at__lt=min(month.next.begin, local.end),
        requests__gt=0,
    ).exists()


def _tenants_in(month: Month) -> list[Tenant]:
    ids: set[UUID] = set(
        UsageRollup.objects.filter(starts_at__gte=month.begin, starts_at__lt=month.next.begin)
        .values_list("tenant_id", flat=True)
        .distinct()
    )
    return list(Tenant.objects.filter(id__in=ids).order_by("id"))


def _local_months(month: Month, tenant: Tenant) -> list[tuple[int, int]]:
    """Return the months of the tenant's billing time zone that the UTC month has a part of."""
    zone = ZoneInfo(tenant.billing_timezone)
    ends = (month.begin.astimezone(zone), (month.next.begin - timedelta(milliseconds=1)).astimezone(zone))
    return sorted({(end.year, end.month) for end in ends})


def _remember(held: dict[str, str]) -> None:
    """Replace the months that are held, and log those that are new."""
    known = dict(HeldMonth.objects.values_list("month", "reason"))
    for month, reason in held.items():
        if known.get(month) != reason[:500]:
            log.warning("the requests of %s are not retired: %s", month, reason)
        HeldMonth.objects.update_or_create(month=month, defaults={"reason": reason[:500]})
    HeldMonth.objects.exclude(month__in=held).delete()
    metrics.HELD_MONTHS.set(len(held))


def oldest() -> datetime | None:
    """Return the begin of the oldest partition of a past month."""
    this = month_of(datetime.now().astimezone())
    return next((each.begin for each in partitions.existing() if each.month < this), None)
