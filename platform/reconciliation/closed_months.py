"""Compare each closed month with the ledger: its frozen lines, its amount, and the postings on its statement.

What the terms of a plan add is in all three. Its postings name their closing, so one without a line shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

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
        CROSS JOIN (VALUES ('terms:'), ('reserved:')) AS kinds (prefix)
        JOIN billing_ledgertransaction AS posting ON posting.tenant_id = closing.tenant_id
            AND posting.source >= prefix || closing.id AND posting.source < prefix || closing.id || 'g'
        JOIN billing_ledgerentry AS entry ON entry.transaction_id = posting.id
        JOIN billing_ledgeraccount AS account ON account.id = entry.account_id AND account.kind = 'receivable'
        WHERE closing.tenant_id = month.tenant_id AND closing.year = month.year AND closing.month = month.month
    ) AS by_terms ON true
    WHERE month.reopened_at IS NULL AND month.ends_at > %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSums:
    """What a closed month was closed with, what its lines sum to, and what the ledger has, in pico-units."""

    tenant_id: UUID
    month: str
    currency: str
    amount_pico: int
    lines_pico: int
    ledger_pico: int

    @property
    def differs(self) -> bool:
        """Return whether the three are not the same."""
        return not self.amount_pico == self.lines_pico == self.ledger_pico


def sums(since: datetime) -> list[MonthSums]:
    """Return the sums of the closed months that ended after a moment."""
    with connection.cursor() as cursor:
        cursor.execute(_SUMS, [since])
        return [
            MonthSums(
                tenant_id=tenant,
                month=month,
                currency=currency,
                amount_pico=int(amount),
                lines_pico=int(lines),
                ledger_pico=int(ledger),
            )
            for tenant, month, currency, amount, lines, ledger in cursor.fetchall()
        ]


def compare(now: datetime, since: datetime | None = None) -> int:
    """Compare the closed months that ended within COMPARED, or after an earlier ``since``; replace all gaps.

    Returns how many were compared. A month that was reopened has no gap.
    """
    with transaction.atomic():
        found = sums(min(since or now, now - COMPARED))
        BookGap.objects.filter(book=_BOOK).delete()
        BookGap.objects.bulk_create(
            BookGap(
                tenant_id=each.tenant_id,
                month=each.month,
                book=_BOOK,
                currency=each.currency,
                usage_pico=each.ledger_pico,
                book_pico=each.lines_pico,
            )
            for each in found
            if each.differs
        )
    return len(found)
