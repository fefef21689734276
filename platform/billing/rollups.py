"""Roll-ups: sums by quarter of an hour, tenant, project, key and model, of what tenants asked for.

Canaries, retries and pre-warming have usage rows but are in no roll-up and no ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from django.db import connection

from billing.usage import UsageRow, bucket_of

Key = tuple[datetime, UUID, UUID, UUID, str]

#: What is added to a bucket, in the order of the columns.
SUMS = (
    "requests",
    "errors",
    "prediction_hits",
    "coalesced_requests",
    "bypassed_requests",
    "prefix_hits",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "avoided_tokens",
    "avoided_engine_ms",
    "amount_pico",
    "saved_prediction_pico",
    "saved_prefix_pico",
)
ERROR_STATES = frozenset({"engine_error", "interrupted"})
FIRST_ERROR_STATUS = 400
_KEYS = ("starts_at", "tenant_id", "project_id", "key_id", "model_name")
_COLUMNS = ", ".join((*_KEYS, *SUMS))
_ADD = f"""
    INSERT INTO billing_usagerollup ({_COLUMNS})
    SELECT {_COLUMNS} FROM json_populate_recordset(NULL::billing_usagerollup, %s)
    ON CONFLICT ({", ".join(_KEYS)}) DO UPDATE
    SET {", ".join(f"{name} = billing_usagerollup.{name} + EXCLUDED.{name}" for name in SUMS)}
"""
_ADD_BYPASSES = """
    INSERT INTO billing_bypassrollup (starts_at, tenant_id, reason, requests)
    SELECT starts_at, tenant_id, reason, requests FROM json_populate_recordset(NULL::billing_bypassrollup, %s)
    ON CONFLICT (tenant_id, starts_at, reason) DO UPDATE
    SET requests = billing_bypassrollup.requests + EXCLUDED.requests
"""


def add(rows: Sequence[UsageRow]) -> None:
    """Add new rows to their buckets."""
    _upsert((_key(row), _counts(row) + _money(row)) for row in rows)
    _add_bypasses(Counter((bucket_of(row.id), row.tenant_id, row.cache_reason) for row in rows if _bypassed(row)))


def add_money(rows: Iterable[UsageRow]) -> None:
    """Add to their buckets only the money of rows that were counted before they had a price."""
    _upsert((_key(row), (0,) * (len(SUMS) - 3) + _money(row)) for row in rows)


def is_error(state: str, http_status: int) -> bool:
    """Say whether a request failed by the platform's doing or was refused; a client that left is none."""
    return state in ERROR_STATES or http_status >= FIRST_ERROR_STATUS


def _upsert(parts: Iterable[tuple[Key, tuple[int, ...]]]) -> None:
    """Add the parts up and write each bucket once, sorted: two drains then never wait for each other in a ring."""
    groups: dict[Key, list[tuple[int, ...]]] = {}
    for key, values in parts:
        groups.setdefault(key, []).append(values)
    if not groups:
        return
    # Numbers as text: money may outgrow what JSON writers take for an integer.
    documents = [
        dict(zip((*_KEYS, *SUMS), (*key, *(str(sum(column)) for column in zip(*group, strict=True))), strict=True))
        for key, group in sorted(groups.items())
    ]
    with connection.cursor() as cursor:
        cursor.execute(_ADD, [msgspec.json.encode(documents).decode()])


def _add_bypasses(counts: Mapping[tuple[datetime, UUID, str], int]) -> None:
    """Count them by reason, sorted as above."""
    if not counts:
        return
    documents = [
        {"starts_at": starts_at, "tenant_id": tenant_id, "reason": reason, "requests": requests}
        for (starts_at, tenant_id, reason), requests in sorted(counts.items())
    ]
    with connection.cursor() as cursor:
        cursor.execute(_ADD_BYPASSES, [msgspec.json.encode(documents).decode()])


def _bypassed(row: UsageRow) -> bool:
    return row.cache_result == "bypass"


def _key(row: UsageRow) -> Key:
    return bucket_of(row.id), row.tenant_id, row.project_id, row.key_id, row.model_name


def _counts(row: UsageRow) -> tuple[int, ...]:
    return (
        1,
        int(is_error(row.state, row.http_status)),
        int(row.cache_result == "hit"),
        int(row.cache_result == "coalesced"),
        int(_bypassed(row)),
        int(row.cached_prompt_tokens > 0),
        row.prompt_tokens,
        row.cached_prompt_tokens,
        row.completion_tokens,
        *(_avoided(row) if row.state == "complete" else (0, 0)),
    )


def _avoided(row: UsageRow) -> tuple[int, int]:
    """Return the tokens and whole milliseconds that an answer saved. One that was cut has only what was heard of it."""
    tokens = row.avoided_prompt_tokens + row.avoided_cached_prompt_tokens + row.avoided_completion_tokens
    return tokens, round(row.avoided_engine_ms)


def _money(row: UsageRow) -> tuple[int, int, int]:
    return row.amount_pico or 0, row.saved_prediction_pico, row.saved_prefix_pico
