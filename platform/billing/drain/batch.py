"""Store a batch of usage rows and everything derived from them, in one transaction.

Rows, roll-ups, postings, additions to budgets and the position in the log are either all stored or none, no matter when
a process is killed. A batch stored twice adds nothing, because only newly inserted rows count.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from billing.budgets import spending
from billing.ledger import boot_usage, bulk_insert, daily_rollups, ledger, partitions, rollups
from billing.ledger.usage_rows import COLUMNS, DEFAULTS, NUMBER, Buckets, UsageRow, buckets, moment_of, rated, stored
from billing.models import UsageRecord, WalOffset
from billing.pricing import prices
from billing.pricing.rating import Price
from tenants.keys import keys

#: Rows of one transaction of :func:`rate_unrated`.
PAGE_ROWS = 500
_CHARGED = ("price_version_id", "currency", "amount_pico", "saved_prediction_pico", "saved_prefix_pico")
#: Returns how many rows are new, and their ids if not all are.
_INSERT = f"""
    WITH new AS (
        INSERT INTO billing_usagerecord ({", ".join(COLUMNS)})
        SELECT {", ".join(COLUMNS)} FROM json_populate_recordset(
            json_populate_record(NULL::billing_usagerecord, '{msgspec.json.encode(DEFAULTS).decode()}'), %s
        )
        ON CONFLICT (id) DO NOTHING RETURNING id
    ) SELECT count(*), CASE WHEN count(*) < %s THEN array_agg(id) END FROM new
"""


class Position(msgspec.Struct, frozen=True, order=True):
    """How far a writer's log is stored: up to ``offset`` bytes into its segment ``number``."""

    number: int
    offset: int


def store(rows: Sequence[UsageRow], positions: dict[UUID, Position], *, node: str) -> int:
    """Insert, rate, roll up and post the rows, and move the positions; return how many rows were new."""
    with transaction.atomic():
        prices.exclude_changes()
        spending.exclude_counting()
        new = _insert(_rated(rows))
        of_tenants = buckets(new)
        _post(of_tenants)
        spending.add(of_tenants)
        rollups.add(of_tenants)
        daily_rollups.outdate(of_tenants)
        boot_usage.add(new)
        _move(positions, node)
        keys.note_used(_used(of_tenants))
    return len(new)


def rate_unrated() -> int:
    """Rate every row whose price was missing and exists now; return how many. Safe to run concurrently."""
    total, after = 0, UUID(int=0)
    within = partitions.that_had_unrated()
    while within is not None:
        with transaction.atomic():
            prices.exclude_changes()
            spending.exclude_counting()
            waiting = UsageRecord.objects.select_for_update(skip_locked=True).filter(within, amount_pico=None)
            page = [stored(record) for record in waiting.filter(id__gt=after).order_by("id")[:PAGE_ROWS]]
            new = [row for row in _rated(page) if row.amount_pico is not None]
            UsageRecord.objects.bulk_update([UsageRecord(**_charge(row)) for row in new], _CHARGED)
            of_tenants = buckets(new)
            _post(of_tenants)
            spending.add(of_tenants)
            rollups.add_money(of_tenants)
            daily_rollups.outdate(of_tenants)
        total += len(new)
        if len(page) < PAGE_ROWS:
            break
        after = page[-1].id
    return total


def _used(of_tenants: Buckets) -> dict[UUID, datetime]:
    """Return when each key was last used."""
    used: dict[UUID, datetime] = {}
    for bucket, rows in of_tenants:
        last = max(row.finished_at for row in rows)
        used[bucket.key_id] = max(last, used.get(bucket.key_id, last))
    return used


def _insert(rows: Sequence[UsageRow]) -> list[UsageRow]:
    """Insert the rows and return the new ones."""
    if not rows:
        return []
    once = {row.id.int: row for row in rows}
    [(count, some)] = bulk_insert.execute(_INSERT, list(once.values()), len(once))
    return list(once.values()) if count == len(once) else [once[identity.int] for identity in some or ()]


def _rated(rows: Sequence[UsageRow]) -> list[UsageRow]:
    groups: dict[tuple[int, str], list[UsageRow]] = {}
    for row in rows:
        groups.setdefault((row.tenant_id.int, row.model_name), []).append(row)
    if not groups:
        return []
    table = prices.table_for({group[0].tenant_id for group in groups.values()}, {model for _, model in groups})
    now = timezone.now()
    return [each for group in groups.values() for each in _rated_alike(group, table, now)]


def _rated_alike(group: Sequence[UsageRow], table: prices.PriceTable, now: datetime) -> list[UsageRow]:
    """Rate rows of one tenant and model. A replaced price never returns: one price at both ends applies to all."""
    tenant_id, model_name = group[0].tenant_id, group[0].model_name

    def price(identity: int) -> Price | None:
        return table.charged(tenant_id, model_name, moment_of(UUID(int=identity)), now)

    numbers = [row.id.int for row in group]
    first, last = price(min(numbers)), price(max(numbers))
    return [rated(row, first if first is last else price(row.id.int)) for row in group]


def _post(of_tenants: Buckets) -> None:
    """Post what tenants owe: one transaction per tenant, currency and quarter of an hour."""
    groups: dict[tuple[UUID, str, datetime], list[UsageRow]] = {}
    for bucket, rows in of_tenants:
        charged = [row for row in rows if row.amount_pico]
        for currency in sorted({row.currency for row in charged}):
            group = groups.setdefault((bucket.tenant_id, currency, bucket.starts_at), [])
            group += [row for row in charged if row.currency == currency]
    ledger.post(
        ledger.Posting(
            tenant_id=tenant_id,
            currency=currency,
            amount_pico=sum(row.amount_pico or 0 for row in group),
            usage_ids=tuple(sorted((row.id for row in group), key=NUMBER)),
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


def _charge(row: UsageRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("id", *_CHARGED)}
