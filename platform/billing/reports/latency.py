"""Percentiles of TTFT and TPOT over any period, from the histograms of roll-ups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import F, Func

from billing.ledger.latency_buckets import Latency, latency
from billing.reports.usage import Column, Period, Rollups, place_among, rollups_in
from tenants.ids import TenantId

_HISTOGRAMS = "latency_buckets", "latency_counts"
_MERGED = """
    SELECT part.value, bucket.number, sum(bucket.requests)::bigint
    FROM ({0}) AS part(value, numbers, counts), unnest(part.numbers, part.counts) AS bucket(number, requests)
    GROUP BY 1, 2
"""


def by_column(
    period: Period,
    tenant_id: TenantId | None,
    project_id: UUID | None,
    column: Column,
    only: Sequence[Any] | None = None,
) -> dict[Any, Counter[int]]:
    """Return the histogram of each value of a column of roll-ups, or of these values only."""
    parts = rollups_in(period, tenant_id, project_id, by=column)
    chosen = parts if only is None else [rows.filter(**{f"{column}__in": only}) for rows in parts]
    return _read(chosen if only is None or only else (), F(column))


def by_moment(
    period: Period, tenant_id: TenantId | None, project_id: UUID | None, moments: Sequence[datetime]
) -> dict[datetime, Counter[int]]:
    """Return the histogram of what follows each moment until the next, as ``billing.reports.usage.series_at``."""
    found = _read(rollups_in(period, tenant_id, project_id, moments), place_among(moments))
    return {moments[number - 1]: histogram for number, histogram in found.items()}


def total(period: Period, tenant_id: TenantId | None, project_id: UUID | None = None) -> Latency:
    """Return the percentiles of a period."""
    merged: Counter[int] = Counter()
    for histogram in by_column(period, tenant_id, project_id, "model_name").values():
        merged += histogram
    return latency(merged)


def _read(parts: Iterable[Rollups], value: F | Func) -> dict[Any, Counter[int]]:
    found: defaultdict[Any, Counter[int]] = defaultdict(Counter)
    for rows in parts:
        inner, parameters = rows.annotate(value=value).values_list("value", *_HISTOGRAMS).query.sql_with_params()
        with connection.cursor() as cursor:
            cursor.execute(_MERGED.format(inner), parameters)
            for name, number, requests in cursor.fetchall():
                found[name][number] += requests
    return dict(found)
