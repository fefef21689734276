"""Usage by tenant, project, key, model, day or cost centre as CSV: a row for the total, then one for each group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from billing.ledger.rollups import Sums
from billing.reports.breakdown import Group
from portal.formats import money

_MONEY = {
    "amount_pico": "billed",
    "saved_prediction_pico": "saved_by_prediction",
    "saved_prefix_pico": "saved_by_prefix",
}
_SUMS = tuple(each.name for each in fields(Sums))
CSV_HEADER = ("by", "id", "name", *(_MONEY.get(name, name) for name in _SUMS))


def csv_rows(by: str, total: Sums, groups: Iterable[Group]) -> Iterator[tuple[str, ...]]:
    """Yield the rows: whole tokens and milliseconds, money with twelve decimals."""
    yield ("total", "", "", *_cells(total))
    for group in groups:
        yield (by, "" if group.id is None else str(group.id), group.name, *_cells(group.sums))


def _cells(sums: Sums) -> tuple[str, ...]:
    values = ((name, getattr(sums, name)) for name in _SUMS)
    return tuple(money.exact(value) if name in _MONEY else str(value) for name, value in values)
