"""Compare each invoice with its closed month and the ledger: usage = ledger = closed months = invoices.

An invoice that is not void must have the month's present closing, lines that sum to it exactly and in cents to its own
net amount, and a total that the month's receivable equals. A void one must have nothing in the ledger.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection, transaction

from billing.pricing.amounts import pico_per_minor
from reconciliation.closed_months import COMPARED
from reconciliation.models import BookGap

_BOOK = BookGap.Book.INVOICES.value

#: What the invoice says, in minor units, and what the ledger has for it, in pico-units; that month's charges are
#: ``month.amount_pico``, which ``closed_months`` compares with the ledger. One of another system has no lines of ours.
_SUMS = """
    SELECT invoice.tenant_id, to_char(make_date(invoice.year, invoice.month, 1), 'YYYY-MM'), invoice.currency,
        CASE WHEN invoice.state = 'void' THEN 0 ELSE invoice.total_cents END,
        coalesce(posted.pico, 0) + CASE WHEN invoice.state = 'void' THEN 0 ELSE month.amount_pico END,
        invoice.state = 'void' OR (
            month.reopened_at IS NULL AND invoice.exact_pico = month.amount_pico
            AND (invoice.channel <> 'hearth'
                OR coalesce(lines.pico, 0) = month.amount_pico AND coalesce(lines.cents, 0) = invoice.net_cents))
    FROM billing_invoice AS invoice
    JOIN billing_billingmonth AS month ON month.id = invoice.closing_id
    LEFT JOIN LATERAL (
        SELECT sum(amount_pico) AS pico, sum(amount_cents) AS cents
        FROM billing_invoiceline WHERE invoice_id = invoice.id
    ) AS lines ON true
    LEFT JOIN LATERAL (
        SELECT sum(entry.amount_pico) AS pico FROM billing_ledgertransaction AS posting
        JOIN billing_ledgerentry AS entry ON entry.transaction_id = posting.id
        JOIN billing_ledgeraccount AS account ON account.id = entry.account_id AND account.kind = 'receivable'
        WHERE posting.tenant_id = invoice.tenant_id AND posting.source IN (
            'invoice:' || invoice.id || ':rounding', 'invoice:' || invoice.id || ':rounding:reversal',
            'invoice:' || invoice.id || ':tax', 'invoice:' || invoice.id || ':tax:reversal')
    ) AS posted ON true
    WHERE month.ends_at > %s
    ORDER BY invoice.id
"""


def compare(now: datetime, since: datetime | None = None) -> int:
    """Compare the invoices of months that ended within COMPARED, or after an earlier ``since``; replace all gaps.

    Returns how many were compared.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_SUMS, [min(since or now, now - COMPARED)])
        rows = cursor.fetchall()
        gaps = {
            (tenant, month, currency): BookGap(
                tenant_id=tenant,
                month=month,
                book=_BOOK,
                currency=currency,
                usage_pico=ledger,
                book_pico=cents * pico_per_minor(currency),
            )
            for tenant, month, currency, cents, ledger, fits in rows
            if cents * pico_per_minor(currency) != ledger or not fits
        }
        BookGap.objects.filter(book=_BOOK).delete()
        BookGap.objects.bulk_create(gaps.values())
    return len(rows)
