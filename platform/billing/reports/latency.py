"""Percentiles of TTFT and TPOT over any period, from the histograms of roll-ups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Func, Value

from billing.ledger.latency_buckets import Latency, latency
from billing.reports.usage import Column, Period, Rollups, place_among, rollups_in
from tenants.ids import TenantId

_HISTOGRAMS = "latency_buckets", "latency_counts"
_MERGED = """
    SELECT part.value, bucket.number, sum(bucket.requests)::bigint
    FROM ({0}) AS part(value, numbers, counts), unnest(part.numbers, part.counts) AS bucket(number, requests)
    GROUP BY 1, 2
"""
_GROUPED = """
    SELECT grouped.place, bucket.number, sum(bucket.requests)::bigint
    FROM ({0}) AS part(value, numbers, counts)
    JOIN unnest(%s::{1}[], %s::integer[]) AS grouped(value, place) USING (value),
        unnest(part.numbers, part.counts) AS bucket(number, requests)
    GROUP BY 1, 2
"""


def by_group(
    period: Period, tenant_id: TenantId | None, project_id: UUID | None, column: Column, groups: Mapping[Any, int]
) -> dict[int, Counter[int]]:
    """Return the histogram of each group of values of a column of roll-ups; ``groups`` says in which a value is.

    Values that are in none are left out. PostgreSQL adds up: a group may have thousands of keys.
    """
    found: defaultdict[int, Counter[int]] = defaultdict(Counter)
    given = [list(groups), list(groups.values())]
    for rows in rollups_in(period, tenant_id, project_id, by=column) if groups else ():
        inner, parameters = rows.values_list(column, *_HISTOGRAMS).query.sql_with_params()
        _add(found, _GROUPED.format(inner, "text" if column == "model_name" else "uuid"), [*parameters, *given])
    return dict(found)


def by_moment(
    period: Period, tenant_id: TenantId | None, project_id: UUID | None, moments: Sequence[datetime]
) -> dict[datetime, Counter[int]]:
    """Return the histogram of what follows each moment until the next, as ``billing.reports.usage.series_at``."""
    found = _read(rollups_in(period, tenant_id, project_id, moments), place_among(moments))
    return {moments[number - 1]: histogram for number, histogram in found.items()}


def total(period: Period, tenant_id: TenantId | None, project_id: UUID | None = None) -> Latency:
    """Return the percentiles of a period."""
    return latency(sum(_read(rollups_in(period, tenant_id, project_id), Value(0)).values(), Counter()))


def _read(parts: Iterable[Rollups], value: Value | Func) -> dict[int, Counter[int]]:
    found: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for rows in parts:
        inner, parameters = rows.annotate(value=value).values_list("value", *_HISTOGRAMS).query.sql_with_params()
        _add(found, _MERGED.format(inner), parameters)
    return dict(found)


def _add(found: defaultdict[int, Counter[int]], statement: str, parameters: Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        for name, number, requests in cursor.fetchall():
            found[name][number] += requests
