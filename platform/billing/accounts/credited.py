"""What credit notes for parts of an invoice made credit, because it had been paid, and what undone payments took back.

A payment that is undone never arrived, so what became credit of it is no credit either, as far as it is left.
"""

from __future__ import annotations

from uuid import UUID

from django.db.models import F, QuerySet, Sum

from billing.accounts import balance, entries
from billing.accounts.balance import Part
from billing.models import CreditEntry, CreditNote, CreditRequest, Invoice, InvoicePayment, PaymentUndone
from billing.pricing.amounts import pico_per_minor


def kept_cents(invoice: Invoice) -> int:
    """Return what became credit by credit notes, without what was taken back."""
    notes = invoice.credit_notes.filter(is_partial=True)
    amount = F("net_cents") + F("tax_cents") - F("settled_cents")
    kept = notes.aggregate(total=Sum(amount, default=0))["total"]
    return int(kept) - taken_cents(invoice)


def keep(invoice: Invoice, note: CreditNote, money_cents: int) -> None:
    """Make credit of what had been paid of a credit note: prepaid of money, and promotions of what they had paid.

    ``money_cents``: what was paid for the invoice and did not go back. Money comes first, then the promotion that paid
    last. One that expired meanwhile expires again. The tenant's credit is locked.
    """
    rest = note.total_cents - note.settled_cents
    sources = [f"credit_note:{each.id}:credit" for each in invoice.credit_notes.filter(is_partial=True)]
    paid = CreditEntry.objects.filter(closing=invoice.closing, kind=entries.Kind.APPLIED)
    one = pico_per_minor(invoice.currency)
    money_cents += _paid_cents(paid.filter(promotion=None), sources, one)
    money_cents += taken_cents(invoice)
    parts: dict[UUID | None, int] = {None: min(rest, max(0, money_cents))}
    rest -= parts[None]
    used = paid.exclude(promotion=None).order_by("-id").values_list("promotion_id", flat=True)
    for each in dict.fromkeys(used):
        of_it = [f"{source}:{each}" for source in sources]
        parts[each] = min(rest, _paid_cents(paid.filter(promotion_id=each), of_it, one))
        rest -= parts[each]
    parts[None] += rest
    request: CreditRequest | None = note.request
    for promotion_id, cents in parts.items():
        if not cents:
            continue
        part, kind = Part(promotion_id=promotion_id, left_pico=0), entries.Kind.OVERPAID
        source = f"credit_note:{note.id}:credit{f':{promotion_id}' if promotion_id else ''}"
        entries.add(invoice.tenant_id, invoice.currency, part, kind, cents * one, source=source, request=request)
        request = None  # it has one entry


def taken_cents(invoice: Invoice) -> int:
    """Return what undone payments took back from credit: so much less is to be paid."""
    undone = PaymentUndone.objects.filter(payment__invoice=invoice)
    return int(undone.aggregate(total=Sum("credit_cents", default=0))["total"])


def _paid_cents(paid: QuerySet[CreditEntry], sources: list[str], one: int) -> int:
    """Return what a part of credit paid of an invoice, without what these postings gave back."""
    back = CreditEntry.objects.filter(kind=entries.Kind.OVERPAID, transaction__source__in=sources)
    total = sum(int(rows.aggregate(total=Sum("amount_pico", default=0))["total"]) for rows in (paid, back))
    return -total // one


def take_back(payment: InvoicePayment, invoice: Invoice, open_cents: int) -> int:
    """Take from prepaid credit what a payment that is being undone had become; return how much, in minor units.

    ``open_cents``: what is to be paid without the payment. What was spent or refunded stays to be paid, and so does
    what payments that were undone before left open. The invoice and its tenant are locked.
    """
    most = min(kept_cents(invoice), open_cents, payment.amount_cents)
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
