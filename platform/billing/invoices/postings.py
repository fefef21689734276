"""What an invoice posts: rounding and tax, so that the month's receivable is its total. A void posts the reversal."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import Sum

from billing.ledger import transfers
from billing.ledger.transfers import Transfer
from billing.models import CreditNote, Invoice, InvoicePayment, LedgerAccount, LedgerEntry
from billing.pricing.amounts import pico_per_minor

Kind = LedgerAccount.Kind


def post(invoice: Invoice) -> None:
    """Post what an invoice adds to the month's charges. Call it in the transaction that makes the invoice."""
    transfers.post(_all(invoice))


def reverse(invoice: Invoice) -> None:
    """Take that back. Call it in the transaction that voids the invoice."""
    transfers.post(
        Transfer(
            tenant_id=each.tenant_id,
            currency=each.currency,
            debit=each.debit,
            credit=each.credit,
            amount_pico=-each.amount_pico,
            source=f"{each.source}:reversal",
        )
        for each in _all(invoice)
    )


def credit(invoice: Invoice, note: CreditNote) -> None:
    """Post a credit note for a part of an invoice: less revenue, less tax, less to be paid."""
    one = pico_per_minor(invoice.currency)
    transfers.post(
        Transfer(
            tenant_id=invoice.tenant_id,
            currency=invoice.currency,
            debit=account,
            credit=Kind.RECEIVABLE,
            amount_pico=cents * one,
            source=f"credit_note:{note.id}:{name}",
        )
        for name, account, cents in (("net", Kind.REVENUE, note.net_cents), ("tax", Kind.TAX, note.tax_cents))
        if cents
    )


def pay(invoice: Invoice, payment_id: UUID, amount_cents: int) -> UUID:
    """Post money that arrived; return the transaction's id."""
    source = f"payment:{payment_id}"
    posted = transfers.post(
        [
            Transfer(
                tenant_id=invoice.tenant_id,
                currency=invoice.currency,
                debit=Kind.CASH,
                credit=Kind.RECEIVABLE,
                amount_pico=amount_cents * pico_per_minor(invoice.currency),
                source=source,
            )
        ]
    )
    return posted[source]


def undo_payment(payment: InvoicePayment, currency: str) -> UUID:
    """Take back what a payment posted; return the transaction's id."""
    source = f"payment:{payment.id}:undone"
    posted = transfers.post(
        [
            Transfer(
                tenant_id=payment.tenant_id,
                currency=currency,
                debit=Kind.CASH,
                credit=Kind.RECEIVABLE,
                amount_pico=-payment.amount_cents * pico_per_minor(currency),
                source=source,
            )
        ]
    )
    return posted[source]


def added_pico(invoice: Invoice) -> int:
    """Return what the ledger has for the invoice beside the month's charges."""
    entries = LedgerEntry.objects.filter(
        transaction__tenant_id=invoice.tenant_id,
        transaction__source__startswith=f"invoice:{invoice.id}:",
        account__kind=Kind.RECEIVABLE,
    )
    return int(entries.aggregate(total=Sum("amount_pico", default=0))["total"])


def _all(invoice: Invoice) -> Iterable[Transfer]:
    for name, account, pico in (
        ("rounding", Kind.ROUNDING, int(invoice.rounding_pico)),
        ("tax", Kind.TAX, invoice.tax_cents * pico_per_minor(invoice.currency)),
    ):
        if pico:
            yield Transfer(
                tenant_id=invoice.tenant_id,
                currency=invoice.currency,
                debit=Kind.RECEIVABLE,
                credit=account,
                amount_pico=pico,
                source=f"invoice:{invoice.id}:{name}",
            )
