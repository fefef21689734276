"""Compare usage with the ledger and with the roll-ups: each tenant's month, exact, from one snapshot of the database.

Months are in UTC, by request id, so that only the partitions of their days are read. Months of which a day was retired
are left out: each tenant closed them before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from billing.ledger import daily_rollups, partitions
from billing.ledger.partitions import Month
from billing.models import UsageExport
from reconciliation.models import BookGap
from tenants.ids import first_id_at

_USAGE = """
    SELECT tenant_id, currency, coalesce(sum(amount_pico), 0),
        sum(prompt_tokens::bigint + cached_prompt_tokens + completion_tokens)
    FROM billing_usagerecord WHERE id >= %s AND id < %s AND purpose = 'tenant' GROUP BY tenant_id, currency
"""
_LEDGER = """
    SELECT account.tenant_id, account.currency, sum(entry.amount_pico)
    FROM billing_ledgertransaction posting
    JOIN billing_ledgerentry entry ON entry.transaction_id = posting.id
    JOIN billing_ledgeraccount account ON account.id = entry.account_id AND account.kind = 'receivable'
    WHERE posting.source >= %s AND posting.source < %s GROUP BY account.tenant_id, account.currency
"""
_ROLLUPS = """
    SELECT tenant_id, sum(amount_pico), sum(prompt_tokens + cached_prompt_tokens + completion_tokens)
    FROM billing_usagerollup WHERE starts_at >= %s AND starts_at < %s GROUP BY tenant_id
"""

log = logging.getLogger(__name__)

#: The books that are compared here.
_BOOKS = (BookGap.Book.LEDGER, BookGap.Book.ROLLUPS, BookGap.Book.DAYS, BookGap.Book.BYPASSES)


def compare(now: datetime, since: datetime | None = None) -> int:
    """Compare the months from ``since`` on, else this one, and in its first days the one before; replace their gaps.

    Returns how many sums were compared.
    """
    first = partitions.month_of(since) if since is not None else first_month(now)
    whole = _whole_months()
    months = [month for month in whole if first <= month <= partitions.month_of(now)]
    compared = 0
    # Of a month that was retired in part nothing can be compared any more.
    BookGap.objects.filter(book__in=_BOOKS).exclude(month__in=[str(month) for month in whole]).delete()
    for month in months:
        sums, gaps = _compare(month)
        compared += sums
        with transaction.atomic():
            BookGap.objects.filter(month=str(month), book__in=_BOOKS).delete()
            BookGap.objects.bulk_create(gaps)
    return compared


def _whole_months() -> list[Month]:
    """Return the months that have partitions and of which none was retired."""
    retired = UsageExport.objects.exclude(retired_at=None).values_list("partition", flat=True).distinct()
    gone = {each.month for each in partitions.named(retired)}
    return sorted({each.month for each in partitions.existing()} - gone)


def first_month(now: datetime) -> Month:
    """Return the first month that an hourly comparison reads."""
    month = partitions.month_of(now)
    return month.before(1) if now.day <= 3 else month


def _compare(month: Month) -> tuple[int, list[BookGap]]:
    alone = not connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if alone:
            # What drains store meanwhile changes all sums or none.
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ids = [first_id_at(each) for each in (month.begin, month.next.begin)]
        cursor.execute(_USAGE, ids)
        usage = {(tenant, currency): (int(pico), int(tokens)) for tenant, currency, pico, tokens in cursor.fetchall()}
        cursor.execute(_LEDGER, [f"usage:{each}" for each in ids])
        posted = {(tenant, currency): int(pico) for tenant, currency, pico in cursor.fetchall()}
        cursor.execute(_ROLLUPS, [month.begin, month.next.begin])
        rollups = {tenant: (int(pico), int(tokens)) for tenant, pico, tokens in cursor.fetchall()}
        folded = daily_rollups.compared(month.begin, month.next.begin)
        bypasses = daily_rollups.compared_bypasses(month.begin, month.next.begin)
    keys = usage.keys() | posted.keys()
    tenants = {tenant for tenant, _ in usage} | rollups.keys()
    gaps = [*_ledger_gaps(month, usage, posted), *_rollup_gaps(month, _by_tenant(usage), rollups)]
    differing = [*_folded_gaps(month, folded), *_bypass_gaps(month, *bypasses)]
    if differing:
        daily_rollups.forget(month.begin, month.next.begin)  # they are folded again within minutes
    sums = sum(len(fine.keys() | found.keys()) for fine, found in folded.values())
    reasons = bypasses[0].keys() | bypasses[1].keys()
    return len(keys) + len(tenants) + sums + len(reasons), [*gaps, *differing]


def _folded_gaps(month: Month, folded: Mapping[str, tuple[daily_rollups.Sums, daily_rollups.Sums]]) -> list[BookGap]:
    """Return a gap for each tenant of which a table of days or half-hours differs from the roll-ups, and for all."""
    gaps: dict[UUID, BookGap] = {}
    for table, (fine, found) in folded.items():
        differing = list(_rollup_gaps(month, fine, found, "daily roll-ups"))
        if differing:
            log.error("%s differs from its roll-ups in %s, for %s tenants", table, month, len(differing))
        for gap in differing:
            gaps.setdefault(gap.tenant_id, gap)
    return list(gaps.values())


def _bypass_gaps(month: Month, fine: Mapping[str, int], found: Mapping[str, int]) -> Iterator[BookGap]:
    """Yield a gap, with its requests as tokens, if daily counts of bypasses differ from the roll-ups for a reason."""
    reasons = [each for each in sorted(fine.keys() | found.keys()) if fine.get(each, 0) != found.get(each, 0)]
    if reasons:
        log.error("daily bypasses differ from their roll-ups in %s, for %s", month, ", ".join(reasons))
        usage, booked = (sum(each.get(reason, 0) for reason in reasons) for each in (fine, found))
        money = {"usage_pico": 0, "book_pico": 0}
        yield _gap(month, daily_rollups.ALL, "daily bypasses", "", **money, usage_tokens=usage, book_tokens=booked)


_Usage = dict[tuple[UUID, str], tuple[int, int]]


def _ledger_gaps(month: Month, usage: _Usage, booked: dict[tuple[UUID, str], int]) -> Iterator[BookGap]:
    for key in sorted(usage.keys() | booked.keys(), key=str):
        charged, posted = usage.get(key, (0, 0))[0], booked.get(key, 0)
        if charged != posted:
            yield _gap(month, key[0], "ledger", key[1], usage_pico=charged, book_pico=posted)


def _by_tenant(usage: _Usage) -> dict[UUID, daily_rollups.Compared]:
    sums: dict[UUID, daily_rollups.Compared] = {}
    for (tenant, _), (pico, tokens) in usage.items():
        before = sums.get(tenant, (0, 0))
        sums[tenant] = before[0] + pico, before[1] + tokens
    return sums


def _rollup_gaps(
    month: Month,
    usage: Mapping[UUID, daily_rollups.Compared],
    rollups: Mapping[UUID, daily_rollups.Compared],
    book: str = "roll-ups",
) -> Iterator[BookGap]:
    for tenant in sorted(usage.keys() | rollups.keys()):
        (pico, tokens), rolled = usage.get(tenant, (0, 0)), rollups.get(tenant, (0, 0))
        if (pico, tokens) != rolled:
            yield _gap(
                month,
                tenant,
                book,
                "",
                usage_pico=pico,
                book_pico=rolled[0],
                usage_tokens=tokens,
                book_tokens=rolled[1],
            )


def _gap(month: Month, tenant: UUID, book: str, currency: str, **sums: Any) -> BookGap:
    return BookGap(tenant_id=tenant, month=str(month), book=book, currency=currency, **sums)
