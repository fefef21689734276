"""Write amounts of money in full."""

from __future__ import annotations

from decimal import Decimal

PICO = 10**12


def units(pico: int) -> str:
    """Return pico-units in units of the currency: exact, with two decimals or more."""
    whole, _, decimals = f"{Decimal(pico) / PICO:.12f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"
