"""What reserved capacity and the terms of a plan make of a month's usage at list prices. Pure and exact.

Reserved capacity comes first (``billing.plans.reserved``): its price, its credits, and the tokens that it includes. The
order of a plan's terms is fixed: allowances, tiers, discounts, minimum; within each as in the document. Each step
applies to the tokens and charges that the steps before left:

    allowance   pays for tokens, or for charges, as long as it lasts
    tiers       the tokens above a step, up to the next, cost a percentage less
    discount    a percentage less; each usage line gets the first discount that is about it
    minimum     what is missing in what is due, to the cent; it is 0 unless the terms say more, because lines that are
                each rounded to cents may sum to less than nothing

Tokens that an allowance pays for, or that lie above a step, are the same share of every usage line that it is about, so
the result depends neither on the order of lines nor on when in the month a price changed. Shares are exact fractions.
After each step what remains is rounded, half to even, to a pico-unit; the step's line is the difference to what was
there before it. So the lines add up to the exact result, rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

from billing.plans import wording
from billing.plans.reserved import ReservedTime
from billing.plans.terms import HUNDRED_PERCENT, Allowance, Discount, Terms, Tiers, hundredths, pico
from billing.pricing.amounts import minor, pico_per_minor
from billing.pricing.classes import PER_REQUEST, LineClass

Kind = Literal["reserved", "not_available", "reserved_tokens", "allowance", "tier", "discount", "minimum"]
#: Those of reserved capacity, which no plan has.
OF_RESERVATIONS: frozenset[Kind] = frozenset({"reserved", "not_available", "reserved_tokens"})


class UsageLine(Protocol):
    """Tokens or requests of one class of one model at one list price."""

    @property
    def model_name(self) -> str: ...
    @property
    def token_class(self) -> LineClass: ...
    @property
    def quantity(self) -> int: ...
    @property
    def amount_pico(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TermsLine:
    """What one of the terms adds to a month, or takes from it. ``tokens``: for how many, rounded; None: for none."""

    kind: Kind
    text: str
    amount_pico: int
    currency: str
    tokens: int | None = None

    @property
    def source(self) -> str:
        """What it is by: the plan, or reserved capacity."""
        return "Reserved capacity" if self.kind in OF_RESERVATIONS else "Terms of the plan"

    @property
    def amount_cents(self) -> int:
        """The amount in the currency's minor units, half to even."""
        return minor(self.amount_pico, self.currency)


@dataclass(slots=True, kw_only=True)
class _Rest:
    """What the steps so far left of a usage line. Requests that are priced each have no tokens."""

    line: UsageLine
    tokens: Fraction
    pico: Fraction
    has_discount: bool = False


def apply(
    terms: Terms, usage: Sequence[UsageLine], currency: str, reserved: Sequence[ReservedTime] = ()
) -> tuple[TermsLine, ...]:
    """Return the lines that reserved capacity and terms add to these usage lines; none for what changes nothing."""
    rests = [_rest(line) for line in usage]
    lines = [*_of_reserved(reserved), *_reductions(terms, rests, currency, reserved)]
    due = sum(minor(line.amount_pico, currency) for line in usage) + sum(line.amount_cents for line in lines)
    missing = pico(terms.minimum) - due * pico_per_minor(currency)
    if missing > 0:
        text = wording.minimum_line(terms, currency)
        lines.append(TermsLine(kind="minimum", text=text, amount_pico=missing, currency=currency))
    return tuple(lines)


def _rest(line: UsageLine) -> _Rest:
    tokens = 0 if line.token_class in PER_REQUEST else line.quantity
    return _Rest(line=line, tokens=Fraction(tokens), pico=Fraction(line.amount_pico))


def _of_reserved(reserved: Sequence[ReservedTime]) -> Iterator[TermsLine]:
    for each in reserved:
        text = wording.reserved_line(each)
        yield TermsLine(kind="reserved", text=text, amount_pico=each.price_pico, currency=each.currency)
        if each.missing_seconds:
            text = wording.not_available_line(each)
            yield TermsLine(kind="not_available", text=text, amount_pico=-each.credit_pico, currency=each.currency)


def _reductions(
    terms: Terms, rests: list[_Rest], currency: str, reserved: Sequence[ReservedTime]
) -> Iterator[TermsLine]:
    before = _total(rests)
    for kind, text, tokens in _steps(terms, rests, currency, reserved):
        after = _total(rests)
        if after != before:
            yield TermsLine(kind=kind, text=text, tokens=tokens, amount_pico=after - before, currency=currency)
        before = after


def _total(rests: list[_Rest]) -> int:
    return round(sum((rest.pico for rest in rests), Fraction()))


def _steps(
    terms: Terms, rests: list[_Rest], currency: str, reserved: Sequence[ReservedTime]
) -> Iterator[tuple[Kind, str, int | None]]:
    """Take off one step after another; yield its kind, its text and its tokens each time."""
    for each in reserved:
        about = [rest for rest in rests if rest.line.model_name in each.model_names]
        included = _include(each.included_tokens, about)
        yield "reserved_tokens", wording.reserved_tokens_line(each), included
    for allowance in terms.allowances:
        tokens = _allow(allowance, rests)
        yield "allowance", wording.allowance_line(allowance, currency), tokens
    for tiers in terms.tiers:
        yield from _graduate(tiers, rests)
    for discount in terms.discounts:
        _discount(discount, rests)
        yield "discount", wording.discount_line(discount), None


def _about(scope: Allowance | Tiers | Discount, rests: list[_Rest]) -> list[_Rest]:
    return [
        rest
        for rest in rests
        if (not scope.models or rest.line.model_name in scope.models)
        and (not scope.classes or rest.line.token_class in scope.classes)
    ]


def _allow(allowance: Allowance, rests: list[_Rest]) -> int | None:
    """Pay for what the allowance lasts for; return how many tokens, None if it is one of charges."""
    about = _about(allowance, rests)
    if allowance.tokens is not None:
        return _include(allowance.tokens, about)
    assert allowance.amount is not None
    used = sum((rest.pico for rest in about), Fraction())
    _keep(about, used, min(used, Fraction(pico(allowance.amount))))
    return None


def _include(tokens: int, about: list[_Rest]) -> int:
    """Pay for tokens as long as so many last; return how many that were, rounded."""
    about = [rest for rest in about if rest.tokens]
    used = sum((rest.tokens for rest in about), Fraction())
    paid = min(used, Fraction(tokens))
    _keep(about, used, paid)
    return round(paid)


def _keep(about: list[_Rest], used: Fraction, paid: Fraction) -> None:
    left = 1 - paid / used if used else Fraction(1)
    for rest in about:
        rest.tokens *= left
        rest.pico *= left


def _graduate(tiers: Tiers, rests: list[_Rest]) -> Iterator[tuple[Kind, str, int | None]]:
    about = [rest for rest in _about(tiers, rests) if rest.tokens]
    used = sum((rest.tokens for rest in about), Fraction())
    full = [rest.pico for rest in about]
    ends = [*(Fraction(step.above_tokens) for step in tiers.steps[1:]), used]
    for step, end in zip(tiers.steps, ends, strict=True):
        above = min(used, end) - step.above_tokens
        if above <= 0:
            return
        off = above / used * Fraction(hundredths(step.percent), HUNDRED_PERCENT)
        for rest, pico_before in zip(about, full, strict=True):
            rest.pico -= pico_before * off
        yield "tier", wording.step_line(tiers, step), round(above)


def _discount(discount: Discount, rests: list[_Rest]) -> None:
    off = Fraction(hundredths(discount.percent), HUNDRED_PERCENT)
    for rest in _about(discount, rests):
        if not rest.has_discount:
            rest.pico -= rest.pico * off
            rest.has_discount = True
