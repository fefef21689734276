"""Retire months of requests: each tenant's statement becomes final, then the month's partition is dropped.

Roll-ups, the ledger and statements stay. A month that cannot be retired is held, with the reason, and tried again.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import DatabaseError

from billing.errors import NotFinal
from billing.ledger import partitions
from billing.ledger.partitions import Month, month_of
from billing.models import UsageRollup
from billing.reports import statements
from retention import metrics
from retention.models import HeldMonth
from tenants.ids import TenantId
from tenants.models import Tenant

log = logging.getLogger(__name__)


def due(since: datetime) -> list[Month]:
    """Return the months with a partition that end at or before ``since``, oldest first."""
    return [month for month in partitions.existing() if month.next.begin <= since]


def requests_in(month: Month) -> int:
    """Return how many requests of tenants the roll-ups have in that month."""
    found = UsageRollup.objects.filter(starts_at__gte=month.begin, starts_at__lt=month.next.begin)
    return sum(found.values_list("requests", flat=True).iterator())


def retire(since: datetime) -> int:
    """Retire what is due; return how many rows were deleted."""
    retired = 0
    held: dict[str, str] = {}
    for month in due(since):
        try:
            retired += _retire(month)
        except NotFinal as error:
            held[str(month)] = str(error)
        except DatabaseError as error:
            held[str(month)] = str(error).strip().partition("\n")[0]
    _remember(held)
    return retired


def _retire(month: Month) -> int:
    """Retire one month. Raises NotFinal, DatabaseError."""
    for tenant in _tenants_in(month):
        for year, number in _local_months(month, tenant):
            statements.finalise(TenantId(tenant.id), year, number)
    rows = partitions.retire(month) or 0
    log.info("retired the requests of %s: %d rows", month, rows)
    return rows


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
    """Return the begin of the oldest past month that has a partition."""
    this = month_of(datetime.now().astimezone())
    return next((month.begin for month in partitions.existing() if month < this), None)
