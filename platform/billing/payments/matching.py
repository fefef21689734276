"""Which invoices a line of a bank statement pays: those whose numbers its text has, exactly.

Payers write ``inv 000123`` for ``INV-000123``, and banks replace characters that SEPA does not have. So case, spaces
and punctuation do not count; every letter and digit does. Nothing is guessed from amounts or names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

from billing.invoices.numbers import compact
from billing.models import Invoice

#: What may stand between two characters of a number, and where a payer or a bank left one out.
_BETWEEN = r"[\W_]{0,3}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An invoice that is to be paid, by its number as texts are compared."""

    id: UUID
    currency: str
    compact: str


def candidates() -> list[Candidate]:
    """Return the invoices that are to be paid to the provider's bank."""
    rows = Invoice.objects.filter(
        state__in=(Invoice.State.FINAL, Invoice.State.SENT), channel=Invoice.Channel.HEARTH
    ).values_list("id", "currency", "number")
    return [Candidate(id=identity, currency=currency, compact=compact(number)) for identity, currency, number in rows]


def replaced() -> list[tuple[Candidate, Candidate]]:
    """Return void invoices, each with the one that replaces it and is to be paid."""
    by_id = {each.id: each for each in candidates()}
    rows = Invoice.objects.filter(state=Invoice.State.VOID, replaced_by__in=by_id)
    return [
        (Candidate(id=identity, currency=currency, compact=compact(number)), by_id[by])
        for identity, currency, number, by in rows.values_list("id", "currency", "number", "replaced_by")
    ]


def named(text: str, among: Iterable[Candidate]) -> list[Candidate]:
    """Return those whose number the text has, in the order of their ids."""
    squeezed = compact(text)
    found = [each for each in among if each.compact in squeezed and _pattern(each.compact).search(text.upper())]
    return sorted(found, key=lambda each: each.id)


@lru_cache(maxsize=4096)
def _pattern(number: str) -> re.Pattern[str]:
    """Return what finds a number that is no part of a longer one."""
    return re.compile(rf"(?<![^\W_]){_BETWEEN.join(map(re.escape, number))}(?![^\W_])")
