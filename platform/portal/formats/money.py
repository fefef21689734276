"""Write pico-units of a currency for people and for spreadsheets."""

from __future__ import annotations

from decimal import Decimal

from billing.pricing import amounts

PICO = amounts.PICO
CENT_PICO = PICO // 100
#: Significant digits of an amount under one cent.
SMALL_DIGITS = 3
_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}


def shown(amount_pico: int | Decimal | None, currency: str = "USD") -> str:
    """Return an amount for a page: to the cent, or with three significant digits under one cent.

    ``$0.00`` therefore means exactly zero. None, a row without a price, is ``unrated``.
    """
    if amount_pico is None:
        return "unrated"
    whole = int(amount_pico)
    sign = "−" if whole < 0 else ""
    mark = sign_of(currency)
    magnitude = abs(whole)
    if magnitude == 0 or magnitude >= CENT_PICO:
        return f"{sign}{mark}{Decimal(magnitude) / PICO:,.2f}"
    digits = len(str(magnitude))
    rounded = round(magnitude, SMALL_DIGITS - digits) if digits > SMALL_DIGITS else magnitude
    return f"{sign}{mark}{f'{Decimal(rounded) / PICO:.12f}'.rstrip('0')}"


def in_full(amount_pico: int, currency: str = "USD") -> str:
    """Return an amount for a page: exact, with two decimals or more."""
    return f"{'−' if amount_pico < 0 else ''}{sign_of(currency)}{amounts.units(abs(amount_pico))}"


def sign_of(currency: str) -> str:
    """Return a currency's prefix: its sign, or its code and a space."""
    return _SIGNS.get(currency, f"{currency} ")


def exact(amount_pico: int | Decimal | None) -> str:
    """Return an amount with twelve decimals, for CSV; empty for None."""
    return "" if amount_pico is None else f"{Decimal(int(amount_pico)) / PICO:.12f}"


def per_million(price_pico: int) -> str:
    """Return a price per token as an amount per million tokens, without trailing zeros after the cents."""
    amount = f"{Decimal(price_pico) * 10**6 / PICO:,.6f}"
    units, _, decimals = amount.partition(".")
    return f"{units}.{decimals.rstrip('0').ljust(2, '0')}"
