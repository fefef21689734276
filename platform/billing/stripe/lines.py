"""What Stripe's invoice says: our lines, within Stripe's limits. Amounts are in minor units."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from billing.invoices.content import Content, Line, tax_of
from billing.stripe import units

#: Of one invoice. https://docs.stripe.com/changelog/2016-02-22/no-more-than-250-invoice-items
MOST_ITEMS = 250
#: As texts are cut here; Stripe's own limit is longer.
LONGEST_DESCRIPTION = 500
#: Of a custom field of an invoice: its value. https://docs.stripe.com/api/invoices/create
LONGEST_FIELD = 140


def as_stripe_takes(content: Content) -> Content:
    """Return what an invoice says with each line, and the tax, rounded to an amount that Stripe takes."""
    currency = content.currency
    if units.step(currency) == 1:
        return content
    lines = tuple(replace(each, amount_cents=units.rounded(each.amount_cents, currency)) for each in content.lines)
    net = sum(each.amount_cents for each in lines)
    tax = units.rounded(tax_of(net, content.tax_rate_bp), currency)
    return replace(content, lines=lines, net_cents=net, tax_cents=tax)


def items(content: Content, *, taxed_by_stripe: bool) -> list[dict[str, Any]]:
    """Return the items of an invoice as ``{"description", "cents"}``, which sum to its net amount exactly.

    Where Stripe does not compute the tax it is the last item, and the sum is the total. Lines beyond Stripe's limit,
    those with the smallest amounts, become one item.
    """
    tax = [] if taxed_by_stripe or not content.tax_cents else [_tax(content)]
    return [*_within(list(content.lines), MOST_ITEMS - len(tax)), *tax]


def heading(content: Content, *, taxed_by_stripe: bool) -> dict[str, Any]:
    """Return what else the invoice says."""
    replaces = f" It replaces invoice {content.refers_to}." if content.refers_to else ""
    return {
        "description": f"Usage of {content.month}, {content.period_start} to {content.period_end} "
        f"({content.timezone}).{replaces}",
        "footer": content.tax_note,
        "tax_id": content.buyer.tax_id[:LONGEST_FIELD],
        "tax_rate_bp": content.tax_rate_bp if taxed_by_stripe else None,
    }


def _within(lines: list[Line], most: int) -> list[dict[str, Any]]:
    if len(lines) <= most:
        return [_item(each.description, each.amount_cents) for each in lines]
    largest = sorted(range(len(lines)), key=lambda at: (-abs(lines[at].amount_cents), at))
    kept = set(largest[: most - 1])
    rest = [line for at, line in enumerate(lines) if at not in kept]
    text = f"{len(rest)} further lines; the statement of the month has each"
    return [
        *(_item(line.description, line.amount_cents) for at, line in enumerate(lines) if at in kept),
        _item(text, sum(each.amount_cents for each in rest)),
    ]


def _tax(content: Content) -> dict[str, Any]:
    percent = f"{content.tax_rate_bp / 100:.2f}".rstrip("0").rstrip(".")
    return _item(f"Tax, {percent} %", content.tax_cents)


def _item(description: str, cents: int) -> dict[str, Any]:
    return {"description": description[:LONGEST_DESCRIPTION], "cents": cents}
