"""The monthly journal: closed months as bookings from cost centres to the platform, in cents.

Each tenant's bookings balance: what its cost centres are debited is what the platform is credited, and that is what the
statement says is due. Amounts are summed exactly by cost centre and code and rounded once, half to even; what that
differs from the statement is a booking of its own.
"""

from __future__ import annotations

import calendar
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from billing.chargeback import closed_months, gl_codes
from billing.chargeback.closed_months import ClosedMonth
from billing.chargeback.gl_codes import CREDIT, ROUNDING, TERMS, Codes
from billing.errors import GlCodeMissing
from billing.pricing.amounts import minor, of_minor
from tenants.models import Tenant

CSV_HEADER = ("date", "tenant", "cost_centre", "gl_code", "debit", "credit", "currency", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """One row: ``cents`` are debited, or credited if negative."""

    date: date
    tenant: str
    cost_centre: str
    gl_code: str
    cents: int
    currency: str
    text: str

    @property
    def debit_cents(self) -> int:
        """What is debited."""
        return max(0, self.cents)

    @property
    def credit_cents(self) -> int:
        """What is credited."""
        return max(0, -self.cents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """All bookings of a month, by tenant. ``open_tenants``: slugs of those whose month is open, which have none."""

    year: int
    month: int
    bookings: tuple[Booking, ...]
    open_tenants: tuple[str, ...]


def read(year: int, month: int, tenant: Tenant | None = None) -> Journal:
    """Return the journal of all closed months, or of one tenant's. Raises GlCodeMissing."""
    months = closed_months.read(year, month, tenant)
    codes = gl_codes.read()
    missing: set[tuple[str, str]] = set()
    bookings = [booking for each in months.closed for booking in _bookings(each, codes, missing)]
    if missing:
        raise GlCodeMissing(sorted(missing))
    return Journal(year=year, month=month, bookings=tuple(bookings), open_tenants=months.open)


def csv_rows(found: Journal) -> Iterator[tuple[str, ...]]:
    """Yield the header and a row per booking; one of debit and credit is empty."""
    yield CSV_HEADER
    for each in found.bookings:
        yield (
            each.date.isoformat(),
            each.tenant,
            each.cost_centre,
            each.gl_code,
            _units(each.debit_cents, each.currency),
            _units(each.credit_cents, each.currency),
            each.currency,
            each.text,
        )


def _bookings(found: ClosedMonth, codes: Codes, missing: set[tuple[str, str]]) -> Iterator[Booking]:
    statement, tenant = found.statement, found.tenant

    def code_of(line_class: str, model_name: str = "") -> str:
        code = codes.of(line_class, model_name)
        if code is None:
            missing.add((line_class, model_name))
        return code or ""

    def booking(cost_centre: str, code: str, amount: int, text: str) -> Booking:
        last = calendar.monthrange(statement.year, statement.month)[1]
        return Booking(
            date=date(statement.year, statement.month, last),
            tenant=tenant.slug,
            cost_centre=cost_centre,
            gl_code=code,
            cents=amount,
            currency=statement.currency,
            text=f"{text} {statement.year}-{statement.month:02}",
        )

    sums: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for part in found.parts:
        code = code_of(part.line.token_class, part.line.model_name)
        sums[part.cost_centre, code, "Inference"] += part.line.amount_pico
    for terms in statement.terms:
        sums[found.cost_centre, code_of(TERMS), terms.source] += terms.amount_pico
    debits = [
        booking(centre, code, minor(pico, statement.currency), text)
        for (centre, code, text), pico in sorted(sums.items())
    ]
    yield from (each for each in debits if each.cents)
    if rounding := statement.amount_cents - sum(each.cents for each in debits):
        yield booking(found.cost_centre, code_of(ROUNDING), rounding, "Rounding")
    if statement.amount_cents:
        yield booking("", code_of(CREDIT), -statement.amount_cents, "Platform")


def _units(amount: int, currency: str) -> str:
    return of_minor(amount, currency) if amount else ""
