"""Credit pays for closed months: promotions first, the one that expires next before others, then what is prepaid.

It pays what is due, before tax, and each part pays whole cents, or what the currency has instead, by an entry of its
own (a ledger posting of
the kind ``credit_applied``). Reopening the month takes each back by another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from billing.accounts import balance, entries
from billing.models import BillingMonth, CreditEntry
from billing.pricing.amounts import pico_per_minor


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one kind of credit paid of a closed month."""

    text: str
    amount_pico: int


def apply(closing: BillingMonth, due_cents: int) -> int:
    """Pay a month that is being closed from the tenant's credit, in the same transaction; return how much, pico.

    What expired must be gone by then (``promotions.expire_of``), while the month still counts as open.
    """
    balance.lock(closing.tenant_id)
    found = balance.of(closing.tenant_id)
    one = pico_per_minor(closing.currency)
    due = rest = max(0, due_cents) * one
    for part in found.parts:
        amount = min(rest, part.left_pico // one * one)
        if amount:
            kind = entries.Kind.APPLIED
            entries.add(closing.tenant_id, closing.currency, part, kind, -amount, closing=closing)
            rest -= amount
    return due - rest


def reverse(closing: BillingMonth) -> int:
    """Give back what paid for a month that is being reopened, in the same transaction; return how much, pico."""
    balance.lock(closing.tenant_id)
    rows = closing.credit_entries.filter(kind=CreditEntry.Kind.APPLIED).order_by("id")
    return sum(int(entries.reverse(row, entries.Kind.UNAPPLIED, closing=closing).amount_pico) for row in list(rows))


def applied(closing: BillingMonth) -> tuple[Applied, ...]:
    """Return what paid for a closed month: promotions together, then what was prepaid."""
    rows = closing.credit_entries.filter(kind=CreditEntry.Kind.APPLIED).values_list("promotion_id", "amount_pico")
    sums = {"Promotional credit": 0, "Prepaid credit": 0}
    for promotion_id, amount in rows:
        sums["Prepaid credit" if promotion_id is None else "Promotional credit"] -= int(amount)
    return tuple(Applied(text=text, amount_pico=pico) for text, pico in sums.items() if pico)
