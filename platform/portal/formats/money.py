"""Write pico-units of a currency for people and for spreadsheets."""

from __future__ import annotations

from decimal import Decimal

from billing.pricing import amounts

PICO = amounts.PICO
_PICO = int(PICO)
#: Significant digits of an amount under one cent, or what its currency has instead.
SMALL_DIGITS = 3
_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£"}


def shown(amount_pico: int | Decimal | None, currency: str = "USD") -> str:
    """Return an amount for a page: to the cent, or with three significant digits under one cent; to the yen in yen.

    ``$0.00`` therefore means exactly zero. None, a row without a price, is ``unrated``.
    """
    if amount_pico is None:
        return "unrated"
    whole = int(amount_pico)
    sign = "−" if whole < 0 else ""
    mark = sign_of(currency)
    magnitude = abs(whole)
    if magnitude == 0 or magnitude >= amounts.pico_per_minor(currency):
        return f"{sign}{mark}{Decimal(magnitude) / PICO:,.{amounts.digits(currency)}f}"
    digits = len(str(magnitude))
    rounded = round(magnitude, SMALL_DIGITS - digits) if digits > SMALL_DIGITS else magnitude
    return f"{sign}{mark}{f'{Decimal(rounded) / PICO:.12f}'.rstrip('0')}"


def of_minor(amount: int, currency: str) -> str:
    """Return an amount in its currency's minor units, such as cents, for a page."""
    return shown(amount * amounts.pico_per_minor(currency), currency)


def in_full(amount_pico: int, currency: str = "USD") -> str:
    """Return an amount for a page: exact, with its currency's decimals or more."""
    return f"{'−' if amount_pico < 0 else ''}{sign_of(currency)}{amounts.units(abs(amount_pico), currency)}"


def sign_of(currency: str) -> str:
    """Return a currency's prefix: its sign, or its code and a space."""
    return _SIGNS.get(currency, f"{currency} ")


def exact(amount_pico: int | Decimal | None) -> str:
    """Return an amount with twelve decimals, for CSV; empty for None."""
    if amount_pico is None:
        return ""
    whole, rest = divmod(abs(int(amount_pico)), _PICO)
    return f"{'-' if amount_pico < 0 else ''}{whole}.{rest:012}"


def per_million(price_pico: int, currency: str = "USD") -> str:
    """Return a price per token as an amount per million tokens, without zeros after the currency's decimals."""
    whole, _, decimals = f"{Decimal(price_pico) * 10**6 / PICO:,.6f}".partition(".")
    found = decimals.rstrip("0").ljust(amounts.digits(currency), "0")
    return f"{whole}.{found}" if found else whole


def price(price_pico: int, unit: str, currency: str = "USD") -> str:
    """Return a price as it is agreed: for a million tokens, ``$0.20 / M``, or for one request, ``$0.01 each``."""
    if unit == "token":
        return f"{sign_of(currency)}{per_million(price_pico, currency)} / M"
    return f"{shown(price_pico, currency)} each"
