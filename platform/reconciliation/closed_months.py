"""Compare each closed month with the ledger: its frozen lines, its amount, and the postings on its statement.

What the terms of a plan add is in all three. Its postings name their closing, so one without a line shows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection, transaction

from reconciliation.models import BookGap

#: Months that ended longer ago are compared only when they are asked for.
COMPARED = timedelta(days=100)
_BOOK = BookGap.Book.MONTHS.value

#: As ``billing.ledger.ledger.BilledMonth`` has it: its own postings but late ones, the late ones that it adjusts, and
#: those by terms, whose source is ``terms:`` with the id of any closing of the month and a colon, which is below ``g``.
_SUMS = """
    SELECT month.tenant_id, to_char(make_date(month.year, month.month, 1), 'YYYY-MM'), month.currency,
        month.amount_pico, coalesce(lines.pico, 0) + coalesce(terms.pico, 0),
        coalesce(own.pico, 0) + coalesce(adjusted.pico, 0) + coalesce(by_terms.pico, 0)
    FROM billing_billingmonth AS month
    LEFT JOIN LATERAL (
        SELECT sum(amount_pico) AS pico FROM billing_monthline WHERE closing_id = month.id
    ) AS lines ON true
    LEFT JOIN LATERAL (
        SELECT sum(amount_pico) AS pico FROM billing_monthtermsline WHERE closing_id = month.id
    ) AS terms ON true
    LEFT JOIN LATERAL (
        SELECT sum(entry.amount_pico) AS pico FROM billing_ledgertransaction AS posting
        JOIN billing_ledgerentry AS entry ON entry.transaction_id = posting.id
        JOIN billing_ledgeraccount AS account ON account.id = entry.account_id AND account.kind = 'receivable'
        WHERE posting.tenant_id = month.tenant_id
        AND posting.source >= 'usage:' || month.first_id AND posting.source < 'usage:' || month.behind_id
        AND NOT EXISTS (SELECT FROM billing_lateposting WHERE transaction_id = posting.id)
    ) AS own ON true
    LEFT JOIN LATERAL (
        SELECT sum(entry.amount_pico) AS pico FROM billing_lateposting AS late
        JOIN billing_ledgerentry AS entry ON entry.transaction_id = late.transaction_id
        JOIN billing_ledgeraccount AS account ON account.id = entry.account_id AND account.kind = 'receivable'
        WHERE late.tenant_id = month.tenant_id
        AND late.billed_month = to_char(make_date(month.year, month.month, 1), 'YYYY-MM')
    ) AS adjusted ON true
    LEFT JOIN LATERAL (
        SELECT sum(entry.amount_pico) AS pico FROM billing_billingmonth AS closing
        JOIN billing_ledgertransaction AS posting ON posting.tenant_id = closing.tenant_id
            AND posting.source >= 'terms:' || closing.id AND posting.source < 'terms:' || closing.id || 'g'
        JOIN billing_ledgerentry AS entry ON entry.transaction_id = posting.id
        JOIN billing_ledgeraccount AS account ON account.id = entry.account_id AND account.kind = 'receivable'
        WHERE closing.tenant_id = month.tenant_id AND closing.year = month.year AND closing.month = month.month
    ) AS by_terms ON true
    WHERE month.reopened_at IS NULL AND month.ends_at > %s
"""


def compare(now: datetime, since: datetime | None = None) -> int:
    """Compare the closed months that ended within COMPARED, or after an earlier ``since``; replace all gaps.

    Returns how many were compared. A month that was reopened has no gap.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_SUMS, [min(since or now, now - COMPARED)])
        rows = cursor.fetchall()
        BookGap.objects.filter(book=_BOOK).delete()
        BookGap.objects.bulk_create(
            BookGap(tenant_id=tenant, month=month, book=_BOOK, currency=currency, usage_pico=ledger, book_pico=lines)
            for tenant, month, currency, amount, lines, ledger in rows
            if not amount == lines == ledger
        )
    return len(rows)
