"""Write amounts of money in full, and round them to the smallest amount of their currency.

An amount in ``…_cents`` counts its currency's minor units as ISO 4217 has them: 1234 is 12.34 EUR, 1234 JPY, 1.234 BHD.
"""

from __future__ import annotations

import re
from decimal import Decimal

PICO = 10**12
#: Decimals of currencies that do not have two, from ISO 4217's list one, column "minor unit"
#: (https://www.six-group.com/en/products-services/financial-information/data-standards.html).
#: Not from Unicode's CLDR, which babel has: that is what cash is counted in, such as 0 for IQD.
_WITHOUT = (
    *("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF"),
    *("UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF"),
)
_DIGITS = {
    **dict.fromkeys(_WITHOUT, 0),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}
_TWO = 2
#: The most decimals of any currency.
MOST_DIGITS = max(_DIGITS.values())
_MOST_PLACES = 15
#: What an amount is written as. Decimal reads more: ``1_000``, and ``9e999999``, which takes forever.
_AMOUNT = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,12})?")


def digits(currency: str) -> int:
    """Return how many decimals an amount in a currency has; the code's case does not matter."""
    return _DIGITS.get(currency.upper(), _TWO)


def pico_per_minor(currency: str) -> int:
    """Return a currency's minor unit, such as a cent, in pico-units."""
    return int(PICO // 10 ** digits(currency))


def units(pico: int, currency: str) -> str:
    """Return pico-units in units of the currency: exact, with its decimals or more."""
    whole, _, decimals = f"{Decimal(pico) / PICO:.12f}".partition(".")
    found = decimals.rstrip("0").ljust(digits(currency), "0")
    return f"{whole}.{found}" if found else whole


def minor(pico: int, currency: str) -> int:
    """Return pico-units as minor units of the currency, rounded half to even, in integer arithmetic."""
    one = pico_per_minor(currency)
    whole, rest = divmod(pico, one)
    if 2 * rest > one or (2 * rest == one and whole % 2):
        return whole + 1
    return whole


def decimal_of_minor(amount: int, currency: str) -> Decimal:
    """Return minor units as a decimal number of units, with the currency's decimals."""
    return Decimal(amount).scaleb(-digits(currency))


def of_minor(amount: int, currency: str) -> str:
    """Return minor units in units of the currency, such as ``-12.50``."""
    return f"{decimal_of_minor(amount, currency):f}"


def to_minor(text: str | Decimal, currency: str) -> int:
    """Return an amount in units as minor units. Raises ValueError for what is no amount or has more decimals."""
    given = f"{text:f}" if isinstance(text, Decimal) and abs(text.adjusted()) < _MOST_PLACES else str(text)
    if not _AMOUNT.fullmatch(given):
        raise ValueError(text)
    exact = Decimal(given).scaleb(digits(currency))
    found = int(exact)
    if found != exact:
        raise ValueError(text)
    return found


def example(currency: str) -> str:
    """Return what an amount of the currency looks like, for errors: ``12.50``, in yen ``12``."""
    return of_minor(int(Decimal("12.5").scaleb(digits(currency))), currency)


def precision(currency: str) -> str:
    """Return how many decimals an amount may have, for errors: ``at most 2 decimals``."""
    count = digits(currency)
    return f"at most {count} decimals" if count else "no decimals"
