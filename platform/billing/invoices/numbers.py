"""How numbers of invoices are compared with what payers and banks write."""

from __future__ import annotations

import re

_NO_SIGNS = re.compile(r"[\W_]+")


def compact(text: str) -> str:
    """Return the letters and digits of a text, in capitals."""
    return _NO_SIGNS.sub("", text).upper()
