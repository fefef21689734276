"""Closings of months, as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from billing.models import BillingMonth
from billing.months.overview import Standing
from billing.pricing import amounts
from portal.formats.csv_export import cell

CSV_HEADER = (
    *("month", "state", "revision", "timezone", "start", "end", "currency", "amount_pico", "amount", "closed_at"),
    *("closed_by", "reopen_reason", "reopen_requested_by", "reopen_requested_at", "reopened_by", "reopened_at"),
)
_PEOPLE = ("closed_by", "reopen_reason", "reopen_requested_by", "reopened_by")
STANDINGS_HEADER = ("tenant", *CSV_HEADER, "closes_at")


def csv_rows(closings: Iterable[BillingMonth], *, for_operator: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each closing. What people wrote and their names are for operators."""
    for each in closings:
        yield _row(each, for_operator=for_operator)


def standings_rows(standings: Iterable[Standing]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each tenant's month, with its last closing if it has one."""
    for each in standings:
        closed = _row(each.last, for_operator=True) if each.last else (each.month.name, "open", *[""] * 14)
        yield (each.month.tenant.slug, *closed, cell(each.closes_at))


def _row(each: BillingMonth, *, for_operator: bool) -> tuple[str, ...]:
    found: dict[str, str] = {
        "month": each.name,
        "start": cell(each.starts_at),
        "end": cell(each.ends_at),
        "amount_pico": str(int(each.amount_pico)),
        "amount": amounts.units(int(each.amount_pico), each.currency),
    }
    if not for_operator:
        found |= dict.fromkeys(_PEOPLE, "")
    return tuple(found[name] if name in found else cell(getattr(each, name)) for name in CSV_HEADER)
