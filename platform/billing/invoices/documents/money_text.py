"""How amounts, rates and prices are written on documents: the same on each, without a locale."""

from __future__ import annotations

from billing.pricing import amounts


def cents(value: int, currency: str = "") -> str:
    """Return an amount as ``-1,234.50 EUR``."""
    sign = "-" if value < 0 else ""
    whole, rest = divmod(abs(value), 100)
    return f"{sign}{whole:,}.{rest:02} {currency}".rstrip()


def exact(pico: int) -> str:
    """Return an amount in full, with two decimals or more."""
    return amounts.units(pico)


def percent(rate_bp: int) -> str:
    """Return a rate as ``19 %`` or ``5.5 %``."""
    return f"{rate_bp / 100:.2f}".rstrip("0").rstrip(".") + " %"


def price(pico: int, unit: str) -> str:
    """Return a price as it is agreed: for a million tokens, or for one request."""
    return f"{amounts.units(pico * 10**6)} / M" if unit == "token" else f"{amounts.units(pico)} each"


def count(value: int) -> str:
    """Return a number with separators."""
    return f"{value:,}"
