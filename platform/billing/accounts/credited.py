"""What credit notes for parts of an invoice made credit, because it had been paid, and what undone payments took back.

A payment that is undone never arrived, so what became credit of it is no credit either, as far as it is left.
"""

from __future__ import annotations

from django.db.models import F, Sum

from billing.accounts import balance, entries
from billing.accounts.balance import Part
from billing.models import Invoice, InvoicePayment, PaymentUndone
from billing.pricing.amounts import pico_per_minor


def kept_cents(invoice: Invoice) -> int:
    """Return what became credit by credit notes, without what was taken back."""
    notes = invoice.credit_notes.filter(is_partial=True)
    amount = F("net_cents") + F("tax_cents") - F("settled_cents")
    kept = notes.aggregate(total=Sum(amount, default=0))["total"]
    return int(kept) - taken_cents(invoice)


def taken_cents(invoice: Invoice) -> int:
    """Return what undone payments took back from credit: so much less is to be paid."""
    undone = PaymentUndone.objects.filter(payment__invoice=invoice)
    return int(undone.aggregate(total=Sum("credit_cents", default=0))["total"])


def take_back(payment: InvoicePayment, invoice: Invoice, open_cents: int) -> int:
    """Take from prepaid credit what a payment that is being undone had become; return how much, in minor units.

    ``open_cents``: what is to be paid without the payment, which is the most that is taken. What was spent or refunded
    stays to be paid. The invoice and its tenant are locked.
    """
    most = min(kept_cents(invoice), open_cents)
    if most <= 0:
        return 0
    balance.lock(invoice.tenant_id)
    one = pico_per_minor(invoice.currency)
    cents = min(most, balance.of(invoice.tenant_id).prepaid_pico // one)
    if cents:
        part, source = Part(promotion_id=None, left_pico=0), f"payment:{payment.id}:undone:credit"
        kind = entries.Kind.OVERPAID
        entries.add(invoice.tenant_id, invoice.currency, part, kind, -cents * one, source=source)
    return cents
