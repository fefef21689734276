"""The choice of a country by its name."""

from __future__ import annotations

import unicodedata

from babel import Locale, UnknownLocaleError
from django import forms
from django.utils import translation
from django.utils.translation import gettext_noop as _

from billing.accounts import codes
from portal.forms.base import CHOOSE, Choice


def country(*, required: bool = False) -> forms.ChoiceField:
    """Return a field for a country: its value is the code of ISO 3166-1, its words are the reader's."""
    return forms.ChoiceField(
        label=_("Country"),
        choices=names,
        required=required,
        error_messages={"invalid_choice": CHOOSE, "required": CHOOSE},
    )


def names() -> list[Choice]:
    """Return the code and name of each country in the reader's language, by name, and first that none is chosen."""
    try:
        territories = Locale.parse(translation.get_language() or "en", sep="-").territories
    except UnknownLocaleError:
        territories = Locale("en").territories
    found = [(code, str(territories.get(code, code))) for code in codes.countries()]
    return [("", "—"), *sorted(found, key=lambda each: _sorted_as(each[1]))]


def _sorted_as(name: str) -> str:
    """Return a name without case and accents, so that Österreich stands among the names with O."""
    return "".join(each for each in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(each))
