"""Terms in plain words: one sentence each for tenants, and the text of the lines that they make on a statement."""

from __future__ import annotations

from collections.abc import Iterator

from billing.plans.reserved import HOUR_SECONDS, ReservedTime
from billing.plans.terms import Allowance, Discount, Step, Terms, Tiers, hundredths, pico
from billing.pricing import amounts

#: Models that a text names.
NAMED = 2
LONGEST_NAME = 60


def sentences(terms: Terms, currency: str) -> tuple[str, ...]:
    """Return what the terms say, in the order in which they apply."""
    return tuple(_sentences(terms, currency))


def allowance_line(allowance: Allowance, currency: str) -> str:
    """Return the text of an allowance's line."""
    if allowance.tokens is not None:
        return f"{allowance.tokens:,} tokens included{_scope(allowance)}"
    return f"{_amount(allowance.amount or 0, currency)} included{_scope(allowance)}"


def step_line(tiers: Tiers, step: Step) -> str:
    """Return the text of the line of one step of tiers."""
    return f"{_percent(step.percent)} less above {step.above_tokens:,} tokens{_scope(tiers)}"


def discount_line(discount: Discount) -> str:
    """Return the text of a discount's line."""
    return f"{_percent(discount.percent)} less{_scope(discount)}"


def minimum_line(terms: Terms, currency: str) -> str:
    """Return the text of the line that brings a month to its minimum."""
    return f"Up to the minimum of {_amount(terms.minimum, currency)}"


def reserved_line(reserved: ReservedTime) -> str:
    """Return the text of the line of reserved slot hours."""
    slots = f"{reserved.slots:,} {'slot' if reserved.slots == 1 else 'slots'}"
    each = amounts.units(reserved.slot_hour_pico, reserved.currency)
    return f"{reserved.hours:,} hours of {slots} of {reserved.deployment} reserved, {each} a slot and hour"


def not_available_line(reserved: ReservedTime) -> str:
    """Return the text of the credit for slots that were not available."""
    hours = f"{reserved.missing_seconds / HOUR_SECONDS:,.2f}"
    return f"Credit for {hours} slot hours of {reserved.deployment} that were not available"


def reserved_tokens_line(reserved: ReservedTime) -> str:
    """Return the text of the line of the tokens that reserved slot hours include."""
    return f"{reserved.included_tokens:,} tokens included in the slot hours of {reserved.deployment}"


def _sentences(terms: Terms, currency: str) -> Iterator[str]:
    for allowance in terms.allowances:
        if allowance.tokens is not None:
            yield f"{allowance.tokens:,} tokens of each month are included{_scope(allowance)}."
        else:
            amount = f"{_amount(allowance.amount or 0, currency)} {currency}"
            yield f"Charges of {amount} of each month are included{_scope(allowance)}."
    for tiers in terms.tiers:
        for step in tiers.steps:
            above = f"above {step.above_tokens:,} tokens of a month" if step.above_tokens else "from the first token on"
            yield f"{_percent(step.percent)} less {above}{_scope(tiers)}."
    for discount in terms.discounts:
        yield f"{_percent(discount.percent)} less{_scope(discount)}."
    if pico(terms.minimum):
        yield f"A month costs at least {_amount(terms.minimum, currency)} {currency}."


def _scope(scoped: Allowance | Tiers | Discount) -> str:
    models = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in scoped.models[:NAMED]]
    if len(scoped.models) > NAMED:
        models.append(f"{len(scoped.models) - NAMED} more models")
    parts = [", ".join(part) for part in (models, [name.replace("_", " ") for name in scoped.classes]) if part]
    return f" ({'; '.join(parts)})" if parts else ""


def _percent(percent: str | float) -> str:
    whole, rest = divmod(hundredths(percent), 100)
    return f"{whole}.{rest:02}".rstrip("0").rstrip(".") + " %"


def _amount(amount: str | float, currency: str) -> str:
    return amounts.units(pico(amount), currency)
