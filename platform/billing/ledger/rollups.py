"""Roll-ups: sums of tenants' requests by quarter of an hour, tenant, project, key and model.

Canaries, retries and pre-warming have usage rows but appear in no roll-up and not in the ledger.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Self
from uuid import UUID

import msgspec

from billing.ledger import bulk_insert, latency_buckets
from billing.ledger.usage_rows import Bucket, Buckets, UsageRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Totals of a bucket or a period.

    ``prompt_tokens`` leaves out the cached ones; ``prefix_hits`` are requests with any of those. ``doc`` is the API's
    description of a sum.
    """

    requests: int = 0
    errors: int = field(
        default=0, metadata={"doc": "Requests that the platform failed: engine errors and interrupted requests."}
    )
    refused_requests: int = field(
        default=0,
        metadata={
            "doc": "Refused for a reason that the client can change (HTTP 4xx): body, model, limit, budget. "
            "Not in `errors`; those refused before they ran are not in `requests` either."
        },
    )
    prediction_hits: int = 0
    coalesced_requests: int = field(default=0, metadata={"doc": "Received another running request's response."})
    bypassed_requests: int = field(
        default=0, metadata={"doc": "Not looked up in the prediction cache; each request has its reason."}
    )
    prefix_hits: int = field(default=0, metadata={"doc": "Requests with any cached prompt token."})
    prompt_tokens: int = field(default=0, metadata={"doc": "Uncached prompt tokens."})
    cached_prompt_tokens: int = field(default=0, metadata={"doc": "Prompt tokens from engines' prefix caches."})
    predicted_cached_tokens: int = field(
        default=0,
        metadata={"doc": "Prompt tokens that routing expected in engines' prefix caches; 0 for earlier releases."},
    )
    completion_tokens: int = 0
    cache_write_tokens: int = field(
        default=0, metadata={"doc": "Those of `prompt_tokens` that engines wrote to their prefix caches."}
    )
    reasoning_tokens: int = field(default=0, metadata={"doc": "Those of `completion_tokens` that were reasoning."})
    avoided_tokens: int = field(
        default=0, metadata={"doc": "Prompt and completion tokens of hits and coalesced responses."}
    )
    avoided_engine_ms: int = field(default=0, metadata={"doc": "Engine time that hits and coalesced responses saved."})
    amount_pico: int = 0
    saved_prediction_pico: int = 0
    saved_prefix_pico: int = 0

    def __add__(self, other: Self) -> Self:
        """Return both together."""
        return type(self)(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


#: As JSON's encoder writes it.
LARGEST_INTEGER = 2**63 - 1
#: The columns that sum, in order.
SUMS = tuple(each.name for each in fields(Sums))
ERROR_STATES = frozenset({"engine_error", "interrupted"})
#: The statuses of requests that their client has to change.
REFUSED_STATUSES = range(400, 500)
_KEYS = Bucket._fields
_HISTOGRAM = ("latency_buckets", "latency_counts")
_COLUMNS = ", ".join((*_KEYS, *SUMS, *_HISTOGRAM))
#: A row of the table, encoded as JSON. With traffic of 400 tenants nearly every request produces one.
_Document = msgspec.defstruct(
    "_Document",
    (*_KEYS, *((name, Any, 0) for name in SUMS), *((name, str, "{}") for name in _HISTOGRAM)),
    omit_defaults=True,
)
#: What JSON leaves out.
_NOTHING = json.dumps(dict.fromkeys(SUMS, 0) | dict.fromkeys(_HISTOGRAM, "{}"))
#: Histograms are appended up to so many buckets in all, in which a number may be repeated, and merged beyond.
APPENDED_BUCKETS = 128


def _merged(aggregate: str) -> str:
    """Return SQL for a column of the old and the new histogram of a roll-up: appended, or merged by ``aggregate``."""
    column = _HISTOGRAM[0] if aggregate == "number" else _HISTOGRAM[1]
    return f"""{column} = CASE
        WHEN EXCLUDED.latency_buckets = '{{}}' THEN billing_usagerollup.{column}
        WHEN cardinality(billing_usagerollup.latency_buckets) + cardinality(EXCLUDED.latency_buckets)
            <= {APPENDED_BUCKETS} THEN billing_usagerollup.{column} || EXCLUDED.{column}
        ELSE (
            SELECT array_agg({aggregate} ORDER BY number) FROM (
                SELECT number, sum(requests)::integer AS requests FROM unnest(
                    billing_usagerollup.latency_buckets || EXCLUDED.latency_buckets,
                    billing_usagerollup.latency_counts || EXCLUDED.latency_counts
                ) AS both_of_them(number, requests) GROUP BY number
            ) AS merged
        ) END"""


_ADD = f"""
    INSERT INTO billing_usagerollup ({_COLUMNS})
    SELECT {_COLUMNS} FROM json_populate_recordset(
        json_populate_record(NULL::billing_usagerollup, '{_NOTHING}'), %s
    )
    ON CONFLICT ({", ".join(_KEYS)}) DO UPDATE
    SET {", ".join(f"{name} = billing_usagerollup.{name} + EXCLUDED.{name}" for name in SUMS)},
        {_merged("number")},
        {_merged("requests")}
"""
_ADD_BYPASSES = """
    INSERT INTO billing_bypassrollup (starts_at, tenant_id, reason, requests)
    SELECT starts_at, tenant_id, reason, requests FROM json_populate_recordset(NULL::billing_bypassrollup, %s)
    ON CONFLICT (tenant_id, starts_at, reason) DO UPDATE
    SET requests = billing_bypassrollup.requests + EXCLUDED.requests
"""


def add(buckets: Buckets) -> None:
    """Add new rows to their buckets."""
    _upsert(buckets, _figures, _histogram)
    counts: Counter[tuple[datetime, UUID, str]] = Counter()
    for bucket, rows in buckets:
        for reason, requests in Counter(row.cache_reason for row in rows if _bypassed(row)).items():
            counts[bucket.starts_at, bucket.tenant_id, reason] += requests
    _add_bypasses(counts)


def add_money(buckets: Buckets) -> None:
    """Add only the money of these rows to their buckets: the rows were counted before they had a price."""
    _upsert(buckets, lambda row: (0,) * (len(SUMS) - 3) + _money(row), lambda _: {})


def is_error(state: str, http_status: int) -> bool:
    """Return whether the platform failed a request. Refusals and clients that disconnect are no such errors."""
    return state in ERROR_STATES and http_status not in REFUSED_STATUSES


def is_refused(state: str, http_status: int) -> bool:
    """Return whether a request was refused for a reason that its client can change."""
    return state == "refused" or (state in ERROR_STATES and http_status in REFUSED_STATUSES)


def _upsert(
    buckets: Buckets,
    figures: Callable[[UsageRow], tuple[int, ...]],
    histogram: Callable[[Sequence[UsageRow]], Mapping[int, int]],
) -> None:
    """Sum the rows of each bucket and write it once."""
    if not buckets:
        return
    documents = []
    for bucket, rows in buckets:
        *sums, first, second, third = (
            map(sum, zip(*map(figures, rows), strict=True)) if len(rows) > 1 else figures(rows[0])
        )
        counts = histogram(rows)
        money = _number(first), _number(second), _number(third)
        documents.append(_Document(*bucket, *sums, *money, _array(counts), _array(counts.values())))
    bulk_insert.execute(_ADD, documents)


def _number(number: int) -> int | str:
    """Return a number as JSON may have it: money may exceed the integers that the encoder writes."""
    return number if -LARGEST_INTEGER <= number <= LARGEST_INTEGER else str(number)


def _array(numbers: Collection[int]) -> str:
    """Return an array as PostgreSQL writes it, which it reads faster than one of JSON."""
    return f"{{{','.join(map(str, numbers))}}}" if numbers else "{}"


def _add_bypasses(counts: Mapping[tuple[datetime, UUID, str], int]) -> None:
    """Add these counts, always in the same order."""
    if not counts:
        return
    documents = [
        {"starts_at": starts_at, "tenant_id": tenant_id, "reason": reason, "requests": requests}
        for (starts_at, tenant_id, reason), requests in sorted(counts.items())
    ]
    bulk_insert.execute(_ADD_BYPASSES, documents)


def _bypassed(row: UsageRow) -> bool:
    return row.cache_result == "bypass"


def row_sums(row: UsageRow) -> Sums:
    """Return what one row adds to its roll-up."""
    return Sums(**dict(zip(SUMS, _figures(row), strict=True)))


def _figures(row: UsageRow) -> tuple[int, ...]:
    """Return what a row adds to its bucket, in the order of SUMS."""
    if row.refusals:
        failed = row.refusals if is_error(row.state, row.http_status) else 0
        return (failed, failed, row.refusals - failed, *(0,) * (len(SUMS) - 3))
    return (
        1,
        int(is_error(row.state, row.http_status)),
        int(is_refused(row.state, row.http_status)),
        int(row.cache_result == "hit"),
        int(row.cache_result == "coalesced"),
        int(_bypassed(row)),
        int(row.cached_prompt_tokens > 0),
        row.prompt_tokens,
        row.cached_prompt_tokens,
        row.predicted_cached_tokens or 0,
        row.completion_tokens,
        row.cache_write_tokens,
        row.reasoning_tokens,
        *(_avoided(row) if row.state == "complete" else (0, 0)),
        *_money(row),
    )


def _histogram(rows: Sequence[UsageRow]) -> dict[int, int]:
    """Return the histogram of these rows. A refused request has no times."""
    ran = [row for row in rows if not row.refusals]
    return latency_buckets.of_times([row.ttft_ms for row in ran], [row.tpot_ms for row in ran])


def _avoided(row: UsageRow) -> tuple[int, int]:
    """Return the tokens and whole milliseconds that a cached response saved."""
    tokens = row.avoided_prompt_tokens + row.avoided_cached_prompt_tokens + row.avoided_completion_tokens
    return tokens, round(row.avoided_engine_ms)


def _money(row: UsageRow) -> tuple[int, int, int]:
    return row.amount_pico or 0, row.saved_prediction_pico, row.saved_prefix_pico
