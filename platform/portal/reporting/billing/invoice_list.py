"""Invoices as pages show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from django.utils import timezone

from billing.invoices import registry, states
from billing.models import Invoice
from portal.formats import money

SHAPES = {"final": "busy", "sent": "busy", "paid": "ok", "overdue": "bad", "void": "off"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An invoice, formatted for display."""

    invoice: Invoice
    state: str
    shape: str
    total: str
    open: str
    credit_note: str


def row(invoice: Invoice, today: date | None = None) -> Row:
    """Return an invoice formatted for display."""
    state = states.shown(invoice, today or timezone.now().date())
    note = invoice.credit_note
    return Row(
        invoice=invoice,
        state=state,
        shape=SHAPES[state],
        total=cents(invoice.total_cents, invoice.currency),
        open=cents(registry.open_cents(invoice), invoice.currency),
        credit_note=note.number if note else "",
    )


def rows(invoices: Iterable[Invoice]) -> list[Row]:
    """Return invoices formatted for display."""
    today = timezone.now().date()
    return [row(each, today) for each in invoices]


def cents(value: int, currency: str) -> str:
    """Write an amount in cents."""
    return money.of_minor(value, currency)
