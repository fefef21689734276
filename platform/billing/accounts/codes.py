"""Codes of countries and currencies, and the form of an e-mail address."""

from __future__ import annotations

from functools import cache

from babel import Locale
from babel.core import get_global
from django.core.exceptions import ValidationError
from django.core.validators import EmailValidator

LONGEST_EMAIL = 254
#: Codes of two letters that CLDR has and ISO 3166-1 has not assigned.
_NO_COUNTRIES = frozenset(["AC", "CP", "CQ", "DG", "EA", "EU", "EZ", "IC", "QO", "TA", "UN", "XA", "XB", "XK", "ZZ"])
_email = EmailValidator()


@cache
def countries() -> frozenset[str]:
    """Return the ISO 3166-1 alpha-2 codes."""
    return frozenset(code for code in map(str, Locale("en").territories) if len(code) == 2) - _NO_COUNTRIES


@cache
def currencies() -> frozenset[str]:
    """Return the ISO 4217 codes of the currencies that are legal tender somewhere today."""
    periods = (period for of_country in get_global("territory_currencies").values() for period in of_country)
    return frozenset(code for code, _, end, is_tender in periods if end is None and is_tender)


def is_email(text: str) -> bool:
    """Return whether a text has the form of one e-mail address."""
    try:
        _email(text)
    except ValidationError:
        return False
    return len(text) <= LONGEST_EMAIL and text.isprintable()
