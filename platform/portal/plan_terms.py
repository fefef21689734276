"""Read the terms of a plan from YAML or JSON text. An error names the line and the field."""

from __future__ import annotations

from billing.errors import BadTerms
from billing.plans import terms
from billing.plans.terms import Terms
from portal.fleet.document import reading
from portal.fleet.document.reading import BadDocument

_KEYS = "`allowances`, `tiers`, `discounts` or `minimum`"


def read(text: str) -> Terms:
    """Return the terms. Raises BadDocument."""
    if not text.strip():
        raise BadDocument(f"The terms are empty: give {_KEYS}, or `{{}}` for list prices alone.")
    try:
        return terms.read(reading.values(text, _KEYS))
    except BadTerms as error:
        raise reading.locate(text, BadDocument(f"{error.problem}.", error.field)) from None
