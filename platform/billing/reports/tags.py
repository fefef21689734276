"""Usage by the values of one of the caller's tags, or by its end users, from single requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import BigIntegerField, Count, F, FloatField, Func, Q, Sum, TextField, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Coalesce

from billing.errors import TooManyRequests
from billing.ledger.rollups import Sums
from billing.reports.usage import CLIENTS, PLATFORMS, Period, records_in, sums_of, totals
from tenants.ids import TenantId

#: Requests of a period that are read: about two seconds of PostgreSQL.
MOST_REQUESTS = 2_000_000
#: Values that are listed; a caller may send a new one with each request. The rest is one group, with this name.
MOST_VALUES = 1000
OTHERS = "(other values)"


def by_value(
    period: Period, tenant_id: TenantId | None, project_id: UUID | None, tag: str | None
) -> tuple[tuple[str, Sums], ...]:
    """Return the sums for each value of a tag, highest amount first; empty for requests without the tag.

    ``tag`` None: for each end user. Raises TooManyRequests.
    """
    known = totals(period, tenant_id, project_id)
    if (requests := known.requests + known.refused_requests) > MOST_REQUESTS:
        raise TooManyRequests(requests, MOST_REQUESTS)
    value: Combinable = Cast(F("end_user"), TextField())
    if tag is not None:
        found = Func(F("tags"), Value(tag), function="jsonb_extract_path_text", output_field=TextField())
        value = Coalesce(found, Value(""), output_field=TextField())
    rows = records_in(period, tenant_id, project_id).annotate(value=value).values("value").annotate(**_AGGREGATES)
    inner, parameters = rows.order_by().values_list("value", *_AGGREGATES).query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_AND_OTHERS.format(inner), [*parameters, MOST_VALUES])
        groups = [(name, dict(zip(_AGGREGATES, sums, strict=True))) for _, name, *sums in cursor.fetchall()]
    return tuple((OTHERS if name is None else name, sums_of(sums)) for name, sums in groups)


def _count(condition: Q) -> Count:
    return Count("id", filter=_RAN & condition)


def _refusals(condition: Q) -> Sum:
    return Sum("refusals", filter=~_RAN & condition, default=0)


def _avoided(*names: str) -> Combinable:
    found: Combinable = Value(0)
    for name in names:
        found += Sum(name, filter=_COMPLETE, default=0)
    return found


_RAN = Q(refusals=0)
_COMPLETE = _RAN & Q(state="complete")
_WHOLE_MS = Cast(Func(F("avoided_engine_ms"), function="round", output_field=FloatField()), BigIntegerField())
#: What ``billing.ledger.rollups`` adds up of each row.
_AGGREGATES: dict[str, Any] = {
    "requests": _count(Q()) + _refusals(PLATFORMS),
    "errors": _count(PLATFORMS) + _refusals(PLATFORMS),
    "refused_requests": _count(CLIENTS) + _refusals(~PLATFORMS),
    "prediction_hits": _count(Q(cache_result="hit")),
    "coalesced_requests": _count(Q(cache_result="coalesced")),
    "bypassed_requests": _count(Q(cache_result="bypass")),
    "prefix_hits": _count(Q(cached_prompt_tokens__gt=0)),
    **{
        name: Sum(name, filter=_RAN, default=0)
        for name in (
            *("prompt_tokens", "cached_prompt_tokens", "predicted_cached_tokens", "completion_tokens"),
            *("cache_write_tokens", "reasoning_tokens"),
        )
    },
    "avoided_tokens": _avoided("avoided_prompt_tokens", "avoided_cached_prompt_tokens", "avoided_completion_tokens"),
    "avoided_engine_ms": Sum(_WHOLE_MS, filter=_COMPLETE, default=0),
    **{name: Sum(name, default=0) for name in ("amount_pico", "saved_prediction_pico", "saved_prefix_pico")},
}
#: The first values with their sums, and the sums of all others, which have no value. Requests are read once.
_FIRST_AND_OTHERS = f"""
    WITH every (value, {", ".join(_AGGREGATES)}) AS ({{0}}),
    numbered AS (SELECT *, row_number() OVER (ORDER BY coalesce(amount_pico, 0) DESC, value) AS place FROM every)
    SELECT least(place, most + 1), CASE WHEN place <= most THEN value END,
        {", ".join(f"coalesce(sum({name}), 0)" for name in _AGGREGATES)}
    FROM numbered, (SELECT %s::bigint AS most) AS bound GROUP BY 1, 2 ORDER BY 1
"""
