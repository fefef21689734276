"""How amounts, rates and prices are written on documents: the same on each, without a locale."""

from __future__ import annotations

from billing.pricing import amounts


def amount(cents: int, currency: str) -> str:
    """Return an amount in its currency's minor units as ``-1,234.50``."""
    return f"{amounts.decimal_of_minor(cents, currency):,f}"


def with_currency(cents: int, currency: str) -> str:
    """Return an amount as ``-1,234.50 EUR``."""
    return f"{amount(cents, currency)} {currency}"


def percent(rate_bp: int) -> str:
    """Return a rate as ``19 %`` or ``5.5 %``."""
    return f"{rate_bp / 100:.2f}".rstrip("0").rstrip(".") + " %"


def price(pico: int, unit: str, currency: str) -> str:
    """Return a price as it is agreed: for a million tokens, or for one request."""
    return (
        f"{amounts.units(pico * 10**6, currency)} / M" if unit == "token" else f"{amounts.units(pico, currency)} each"
    )


def count(value: int) -> str:
    """Return a number with separators."""
    return f"{value:,}"
