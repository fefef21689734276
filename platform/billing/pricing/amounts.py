"""Write amounts of money in full, and round them to cents."""

from __future__ import annotations

from decimal import Decimal

PICO = 10**12
PICO_PER_CENT = 10**10


def units(pico: int) -> str:
    """Return pico-units in units of the currency: exact, with two decimals or more."""
    whole, _, decimals = f"{Decimal(pico) / PICO:.12f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(2, '0')}"


def cents(pico: int) -> int:
    """Return pico-units as cents, rounded half to even, in integer arithmetic."""
    whole, rest = divmod(pico, PICO_PER_CENT)
    if 2 * rest > PICO_PER_CENT or (2 * rest == PICO_PER_CENT and whole % 2):
        return whole + 1
    return whole
