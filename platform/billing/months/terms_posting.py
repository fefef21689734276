"""Post what reserved capacity and a tenant's plan add to a closed month; reopening the month posts the reversal."""

from __future__ import annotations

from collections.abc import Sequence

from billing.ledger import ledger
from billing.ledger.ledger import Posting
from billing.models import BillingMonth, MonthTermsLine
from billing.plans.calculation import OF_RESERVATIONS, TermsLine
from tenants.ids import new_id


def post(closing: BillingMonth, lines: Sequence[TermsLine]) -> None:
    """Post each line and freeze it. Call it in the transaction that closes the month."""
    rows = [
        MonthTermsLine(
            closing=closing,
            tenant_id=closing.tenant_id,
            billed_month=closing.name,
            position=position,
            kind=line.kind,
            text=line.text,
            tokens=line.tokens,
            amount_pico=line.amount_pico,
        )
        for position, line in enumerate(lines)
    ]
    _post(closing, rows)


def reverse(closing: BillingMonth) -> None:
    """Post the reversal of each line. Call it in the transaction that reopens the month."""
    rows = list(closing.terms_lines.filter(is_reversal=False).order_by("position"))
    for row in rows:
        row.id = new_id()
        row.is_reversal = True
        row.amount_pico = -row.amount_pico
    _post(closing, rows)


def _post(closing: BillingMonth, rows: Sequence[MonthTermsLine]) -> None:
    postings = [
        Posting(
            tenant_id=row.tenant_id,
            currency=closing.currency,
            amount_pico=int(row.amount_pico),
            terms=f"{closing.id}:{row.position}{':reversal' if row.is_reversal else ''}",
            terms_kind=ledger.RESERVED if row.kind in OF_RESERVATIONS else ledger.TERMS,
        )
        for row in rows
    ]
    ids = ledger.post(postings)
    for row, posting in zip(rows, postings, strict=True):
        row.transaction_id = ids[posting.source]
    MonthTermsLine.objects.bulk_create(rows)
