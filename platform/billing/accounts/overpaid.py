"""Payments of a month's void invoices: they count for the month's next one, and what that does not need is credit.

What is left over becomes prepaid credit, so it pays for later months, or is refunded.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, Sum

from billing.accounts import balance, entries
from billing.accounts.balance import Part
from billing.models import BillingMonth, CreditEntry, Invoice
from billing.pricing.amounts import pico_per_minor
from tenants import audit
from tenants.audit import Actor
from tenants.models import Tenant

#: What was paid for an invoice, and not undone.
PAID_CENTS = Sum("payments__amount_cents", filter=Q(payments__undone=None), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What was paid for a void invoice and still counts for the next one."""

    number: str
    cents: int


def paid_before(closing: BillingMonth) -> list[Paid]:
    """Return what was paid for the void invoices of a closed month, without what became credit, the last one first."""
    of_month = {"tenant_id": closing.tenant_id, "year": closing.year, "month": closing.month}
    invoices = Invoice.objects.filter(**of_month).order_by("id")
    closings = BillingMonth.objects.filter(**of_month).values_list("id", flat=True)
    kept = _kept_cents([*(each.id for each in invoices), *closings], closing.currency)
    found = []
    for each in invoices.filter(state=Invoice.State.VOID).annotate(paid=PAID_CENTS):
        gone = min(kept, each.paid)
        kept -= gone
        if each.paid > gone:
            found.append(Paid(number=each.number, cents=each.paid - gone))
    return found[::-1]


def keep(actor: Actor, closing: BillingMonth, of: UUID, cents: int) -> None:
    """Make what was paid too much prepaid credit, in the same transaction.

    ``of``: the invoice that does not need it, or the closing if the month has nothing to invoice.
    """
    balance.lock(closing.tenant_id)
    part = Part(promotion_id=None, left_pico=0)
    amount = cents * pico_per_minor(closing.currency)
    entry = entries.add(closing.tenant_id, closing.currency, part, entries.Kind.OVERPAID, amount, source=_source(of))
    audit.record(
        actor,
        "credit.overpaid",
        ("credit", entry.id),
        tenant=Tenant.objects.get(id=closing.tenant_id),
        after={"source": _source(of), "amount_pico": amount, "currency": closing.currency},
    )


def _kept_cents(ids: list[UUID], currency: str) -> int:
    rows = CreditEntry.objects.filter(
        kind=CreditEntry.Kind.OVERPAID, transaction__source__in=[_source(each) for each in ids]
    )
    return int(rows.aggregate(total=Sum("amount_pico", default=0))["total"]) // pico_per_minor(currency)


def _source(of: UUID) -> str:
    return f"overpaid:{of}"
