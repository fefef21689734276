"""Store a batch of usage rows with everything that follows from it, in one transaction.

Whatever is killed and wherever: either the rows, their roll-ups, their postings, what they add to budgets and the
position in the log are all there, or none of it. A batch that comes again adds nothing, because only rows that were
really inserted count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.utils import timezone

from billing import ledger, prices, rollups, spending
from billing.models import UsageRecord, WalOffset
from billing.usage import COLUMNS, UsageRow, bucket_of, moment_of, rated
from tenants import keys

#: Rows of one transaction of :func:`rate_unrated`.
PAGE_ROWS = 500
_CHARGED = ("price_version_id", "currency", "amount_pico", "saved_prediction_pico", "saved_prefix_pico")
_INSERT = f"""
    INSERT INTO billing_usagerecord ({", ".join(COLUMNS)})
    SELECT {", ".join(COLUMNS)} FROM json_populate_recordset(NULL::billing_usagerecord, %s)
    ON CONFLICT (id) DO NOTHING RETURNING id
"""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """How far a writer's log is stored: up to ``offset`` bytes into its segment ``number``."""

    number: int
    offset: int


def store(rows: Sequence[UsageRow], positions: dict[UUID, Position], *, node: str) -> int:
    """Insert, rate, roll up and post the rows, and move the positions; return how many rows were new."""
    with transaction.atomic():
        prices.exclude_changes()
        spending.exclude_counting()
        new = _insert(_rated(rows))
        _post(new)
        spending.add(new)
        rollups.add([row for row in new if row.purpose == UsageRecord.Purpose.TENANT])
        _move(positions, node)
        keys.note_used(_used(new))
    return len(new)


def rate_unrated() -> int:
    """Rate every row that waited for a price which exists now; return how many. Any number may run at once."""
    total, after = 0, UUID(int=0)
    while True:
        with transaction.atomic():
            prices.exclude_changes()
            spending.exclude_counting()
            waiting = UsageRecord.objects.select_for_update(skip_locked=True).filter(amount_pico=None, id__gt=after)
            page = [_row(record) for record in waiting.order_by("id")[:PAGE_ROWS]]
            new = [row for row in _rated(page) if row.amount_pico is not None]
            UsageRecord.objects.bulk_update([UsageRecord(**_charge(row)) for row in new], _CHARGED)
            _post(new)
            spending.add(new)
            rollups.add_money(row for row in new if row.purpose == UsageRecord.Purpose.TENANT)
        total += len(new)
        if len(page) < PAGE_ROWS:
            return total
        after = page[-1].id


def _used(rows: Iterable[UsageRow]) -> dict[UUID, datetime]:
    """Return when each key was last used."""
    used: dict[UUID, datetime] = {}
    for row in rows:
        if row.purpose == UsageRecord.Purpose.TENANT:
            used[row.key_id] = max(row.finished_at, used.get(row.key_id, row.finished_at))
    return used


def _insert(rows: Sequence[UsageRow]) -> list[UsageRow]:
    """Insert the rows and return those that were not there."""
    if not rows:
        return []
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, [msgspec.json.encode(rows).decode()])
        new = {identity for (identity,) in cursor.fetchall()}
    return [row for row in {row.id: row for row in rows}.values() if row.id in new]


def _rated(rows: Sequence[UsageRow]) -> list[UsageRow]:
    if not rows:
        return []
    table = prices.table_for({row.tenant_id for row in rows}, {row.model_name for row in rows})
    now = timezone.now()
    return [rated(row, table.charged(row.tenant_id, row.model_name, moment_of(row.id), now)) for row in rows]


def _post(rows: Iterable[UsageRow]) -> None:
    """Post what tenants owe: one transaction for each tenant, currency and quarter of an hour."""
    groups: dict[tuple[UUID, str, datetime], list[UsageRow]] = {}
    for row in rows:
        if row.purpose == UsageRecord.Purpose.TENANT and row.amount_pico:
            groups.setdefault((row.tenant_id, row.currency, bucket_of(row.id)), []).append(row)
    ledger.post(
        ledger.Posting(
            tenant_id=tenant_id,
            currency=currency,
            amount_pico=sum(row.amount_pico or 0 for row in group),
            usage_ids=tuple(sorted(row.id for row in group)),
        )
        for (tenant_id, currency, _), group in groups.items()
    )


def _move(positions: dict[UUID, Position], node: str) -> None:
    WalOffset.objects.bulk_create(
        [
            WalOffset(writer_id=writer_id, node=node, segment=position.number, offset=position.offset)
            for writer_id, position in sorted(positions.items())
        ],
        update_conflicts=True,
        unique_fields=["writer_id"],
        update_fields=["node", "segment", "offset", "updated_at"],
    )


def _row(record: UsageRecord) -> UsageRow:
    return UsageRow(**{name: getattr(record, name) for name in COLUMNS})


def _charge(row: UsageRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("id", *_CHARGED)}
