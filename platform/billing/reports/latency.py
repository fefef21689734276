"""Percentiles of TTFT and TPOT over any period, from the histograms of roll-ups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.db import connection

from billing.ledger.latency_buckets import Latency, latency
from billing.reports.usage import Period, floor
from tenants.ids import TenantId

Column = Literal["tenant_id", "project_id", "key_id", "model_name"]
_MERGED = """
    SELECT {0}, bucket.number, sum(bucket.requests)::bigint
    FROM billing_usagerollup, unnest(latency_buckets, latency_counts) AS bucket(number, requests)
    WHERE starts_at >= %s AND starts_at < %s AND (%s::uuid IS NULL OR tenant_id = %s)
        AND (%s::uuid IS NULL OR project_id = %s)
    GROUP BY 1, 2
"""
_DAYS = "width_bucket(starts_at, %s::timestamptz[])"


def by_column(
    period: Period, tenant_id: TenantId | None, project_id: UUID | None, column: Column
) -> dict[Any, Counter[int]]:
    """Return the histogram of each value of a column of roll-ups."""
    return _read(column, [], period, tenant_id, project_id)


def by_moment(
    period: Period, tenant_id: TenantId | None, project_id: UUID | None, moments: Sequence[datetime]
) -> dict[datetime, Counter[int]]:
    """Return the histogram of what follows each moment until the next, as ``billing.reports.usage.series_at``."""
    found = _read(_DAYS, [list(moments)], period, tenant_id, project_id)
    return {moments[number - 1]: histogram for number, histogram in found.items()}


def total(period: Period, tenant_id: TenantId | None, project_id: UUID | None = None) -> Latency:
    """Return the percentiles of a period."""
    merged: Counter[int] = Counter()
    for histogram in by_column(period, tenant_id, project_id, "model_name").values():
        merged += histogram
    return latency(merged)


def _read(
    group: str, parameters: list[Any], period: Period, tenant_id: TenantId | None, project_id: UUID | None
) -> dict[Any, Counter[int]]:
    found: defaultdict[Any, Counter[int]] = defaultdict(Counter)
    within = [floor(period.start), period.end, tenant_id, tenant_id, project_id, project_id]
    with connection.cursor() as cursor:
        cursor.execute(_MERGED.format(group), [*parameters, *within])
        for value, number, requests in cursor.fetchall():
            found[value][number] = requests
    return dict(found)
