"""Regular expressions that answers are compared with: RE2's, which take time linear in the text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

#: Of one pattern; RE2 itself bounds the memory of what it compiles.
MOST_CHARACTERS = 1000


class BadPattern(ValueError):
    """RE2 does not take the pattern; the text says why."""


def check(pattern: str) -> None:
    """Raise BadPattern if RE2 does not take the pattern: back references and lookarounds are no part of it."""
    _compiled(pattern)


def is_found(pattern: str, text: str) -> bool:
    """Return whether the pattern matches somewhere in the text. Raises BadPattern."""
    return _compiled(pattern).search(text) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    import re2  # only for those who have a pattern

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        why = error.args[0] if error.args else b"it is no pattern"
        said = why.decode(errors="replace") if isinstance(why, bytes) else str(why)
        raise BadPattern(f"{pattern[:100]!r} is no regular expression of RE2: {said}") from None
