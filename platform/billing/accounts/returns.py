"""Money of a paid invoice that went back, as by a refund or a dispute: less revenue, less tax, less cash.

A return becomes credit that is paid out at once, so credit stays as it is. Taking it back, as when a dispute is won,
reverses both entries and the tax.
"""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet, Sum

from billing.accounts import credited, entries, overpaid
from billing.accounts.balance import Part
from billing.errors import BadCredit
from billing.ledger import transfers
from billing.ledger.transfers import Transfer
from billing.models import CreditEntry, CreditRequest, Invoice, LedgerAccount
from billing.pricing import amounts
from tenants.errors import NotFound

Kind = CreditEntry.Kind
#: How the tax of a return is called in the ledger.
POSTING = "return_tax"


def standing(rows: QuerySet[CreditRequest]) -> QuerySet[CreditRequest]:
    """Return the returns that are posted, or wait, and were not taken back."""
    taken_back = CreditEntry.objects.filter(kind=Kind.REVERSAL, refers_to__request__kind=CreditRequest.Kind.RETURN)
    found = rows.filter(kind=CreditRequest.Kind.RETURN).exclude(state=CreditRequest.State.REJECTED)
    return found.exclude(entry__in=taken_back.values("refers_to"))


def returned_cents(invoice: Invoice) -> int:
    """Return how much of what was paid for an invoice went back."""
    return _sums(invoice)[0]


def paid_cents(invoice: Invoice) -> int:
    """Return what was paid for an invoice, with what it took over from void ones of its month."""
    own = sum(invoice.payments.filter(undone=None).values_list("amount_cents", flat=True))
    if invoice.state == Invoice.State.VOID:
        return own
    return own + sum(each.cents for each in overpaid.paid_before(invoice.closing))


def returned_tax_cents(invoice: Invoice) -> int:
    """Return the tax within it."""
    return _sums(invoice)[1]


def lock(tenant_id: UUID, invoice_id: UUID) -> Invoice:
    """Return an invoice as it is now, locked until the transaction ends. Call it before the tenant is locked.

    Raises NotFound.
    """
    found = Invoice.objects.select_for_update().filter(tenant_id=tenant_id, id=invoice_id).first()
    if found is None:
        raise NotFound("invoice", str(invoice_id))
    return found


def tax_of(invoice: Invoice, amount_pico: int) -> int:
    """Return the tax in pico-units within an amount of a locked invoice that goes back.

    It is the invoice's tax by the share of its total, rounded half up with what went back or was credited before: once
    that is all of it, it is all of the tax, exactly. Raises BadCredit for a void invoice, and for more than what was
    paid and is still here.
    """
    if invoice.state == Invoice.State.VOID:
        raise BadCredit(
            "invoice", f"{invoice.number} is void: give the one that replaces it, for which its payments count"
        )
    per_cent = amounts.pico_per_minor(invoice.currency)
    before = returned_cents(invoice)
    left_cents = max(0, paid_cents(invoice) - before - credited.kept_cents(invoice))
    cents = amount_pico // per_cent
    if cents > left_cents:
        left = f"{amounts.of_minor(left_cents, invoice.currency)} {invoice.currency}"
        raise BadCredit(
            "amount_pico",
            f"use at most {left}, which was paid for {invoice.number} and neither went back nor became credit",
        )
    notes = invoice.returns.filter(kind=CreditRequest.Kind.CREDIT_NOTE).exclude(state=CreditRequest.State.REJECTED)
    credited_sum, tax_credited = _totals(notes, invoice.currency)
    total, gone = invoice.total_cents, before + credited_sum + cents
    tax = (2 * invoice.tax_cents * gone + total) // (2 * total) - returned_tax_cents(invoice) - tax_credited
    return max(0, min(tax, cents)) * per_cent


def post(request: CreditRequest, part: Part) -> None:
    """Post a return: a correction that is refunded at once, and its tax."""
    amount = int(request.amount_pico)
    first = entries.add(request.tenant_id, request.currency, part, Kind.CORRECTION, amount, request=request)
    entries.add(request.tenant_id, request.currency, part, Kind.REFUND, -amount, refers_to=first)
    _post_tax(request, int(request.tax_pico))


def first_of(entry: CreditEntry) -> CreditEntry | None:
    """Return the first entry of the return that an entry is one of the two of; None for any other entry."""
    own = entry.request_id is not None or entry.kind != Kind.REFUND
    first = entry if own else entry.refers_to
    is_return = first is not None and first.request is not None and first.request.kind == CreditRequest.Kind.RETURN
    return first if is_return else None


def take_back(first: CreditEntry, request: CreditRequest) -> None:
    """Post the reversal of a return, all of it. ``request`` is that of the reversal."""
    assert first.request is not None
    second = CreditEntry.objects.get(refers_to=first, kind=Kind.REFUND, request=None)
    entries.reverse(second, Kind.REVERSAL)
    entries.reverse(first, Kind.REVERSAL, request=request)
    _post_tax(first.request, -int(first.request.tax_pico), ":reversal")


def _sums(invoice: Invoice) -> tuple[int, int]:
    """Return what went back of an invoice, and the tax within it, in minor units."""
    rows = standing(CreditRequest.objects.filter(tenant_id=invoice.tenant_id, invoice=invoice))
    return _totals(rows, invoice.currency)


def _totals(rows: QuerySet[CreditRequest], currency: str) -> tuple[int, int]:
    """Return the sum of requests and of their tax, in minor units."""
    found = rows.aggregate(amount=Sum("amount_pico", default=0), tax=Sum("tax_pico", default=0))
    per_cent = amounts.pico_per_minor(currency)
    return int(found["amount"]) // per_cent, int(found["tax"]) // per_cent


def _post_tax(request: CreditRequest, tax_pico: int, suffix: str = "") -> None:
    if not tax_pico:
        return
    transfers.post(
        [
            Transfer(
                tenant_id=request.tenant_id,
                currency=request.currency,
                debit=LedgerAccount.Kind.TAX,
                credit=LedgerAccount.Kind.REVENUE,
                amount_pico=tax_pico,
                source=f"{POSTING}:{request.id}{suffix}",
            )
        ]
    )
