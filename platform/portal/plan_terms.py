"""The terms of a plan as text: read from YAML or JSON, and written as YAML. An error names the line and the field."""

from __future__ import annotations

import yaml

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


def text(found: Terms) -> str:
    """Return terms as YAML."""
    written: str = yaml.safe_dump(terms.document(found), sort_keys=False)
    return written
