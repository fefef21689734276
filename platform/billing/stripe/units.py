"""How Stripe counts amounts: as ISO 4217 does, with the exceptions of https://docs.stripe.com/currencies."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from billing.errors import StripeRefused
from billing.pricing import amounts

#: Without decimals, and counted in hundredths that must be 00.
_IN_HUNDREDTHS = frozenset({"ISK", "UGX"})
#: With decimals, and counted in whole units.
_IN_UNITS = frozenset({"MGA"})
#: With three decimals, of which the last must be 0.
_IN_TENS = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
_TEN, _HUNDRED = 10, 100


def check_currency(subject: str, currency: str) -> None:
    """Raise StripeRefused for a currency that Stripe does not have."""
    if amounts.digits(currency) > 2 and currency not in _IN_TENS:
        raise StripeRefused(subject, f"Stripe does not take {currency}", "Let Hearth issue the invoice.")


def step(currency: str) -> int:
    """Return of how many minor units every amount must be a multiple."""
    return _TEN if currency in _IN_TENS else _HUNDRED if currency in _IN_UNITS else 1


def rounded(cents: int, currency: str) -> int:
    """Return the nearest amount that Stripe takes, in minor units, half to even."""
    one = step(currency)
    return int((Decimal(cents) / one).to_integral_value(ROUND_HALF_EVEN)) * one


def theirs(cents: int, currency: str) -> int:
    """Return an amount in minor units as Stripe counts it. Raises StripeRefused for one that it does not take."""
    if cents % step(currency):
        smallest = amounts.of_minor(step(currency), currency)
        written = f"{amounts.of_minor(cents, currency)} {currency}"
        remedy = "Let Hearth issue the invoice."
        raise StripeRefused(written, f"Stripe takes {currency} in steps of {smallest} only", remedy)
    return cents * _HUNDRED if currency in _IN_HUNDREDTHS else cents // _HUNDRED if currency in _IN_UNITS else cents


def ours(amount: int, currency: str) -> Decimal:
    """Return an amount as Stripe counts it in minor units: a fraction for one that our books cannot have."""
    code, exact = currency.upper(), Decimal(amount)
    return exact / _HUNDRED if code in _IN_HUNDREDTHS else exact * _HUNDRED if code in _IN_UNITS else exact


def whole(amount: int, currency: str) -> int:
    """Return an amount as Stripe counts it in minor units. Raises StripeRefused for one that our books cannot have."""
    found = ours(amount, currency)
    if found != int(found):
        raise StripeRefused(text(amount, currency), f"{currency.upper()} has no such amount", "Look at it at Stripe.")
    return int(found)


def text(amount: int, currency: str) -> str:
    """Return an amount as Stripe counts it for people, such as ``12.50 EUR``."""
    found = ours(amount, currency).scaleb(-amounts.digits(currency))
    decimals = max(amounts.digits(currency), -int(found.normalize().as_tuple().exponent))
    return f"{found:.{decimals}f} {currency.upper()}"
