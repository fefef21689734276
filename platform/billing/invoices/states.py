"""Which states an invoice passes through. The database refuses every other step (migration ``invoices``).

    final ──▶ sent ──▶ paid
      │        │        │
      └────────┴────────┴──▶ void

A paid invoice may be sent too, and stays paid. One of which a payment is undone is final or sent again. One without
anything due is paid when it becomes final. ``overdue`` is a final or sent invoice past its date, ``draft`` what an
invoice of a month would say; neither is stored as a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from billing.models import Invoice

FINAL, SENT, PAID, VOID = (Invoice.State.FINAL, Invoice.State.SENT, Invoice.State.PAID, Invoice.State.VOID)

#: Something may be open of them.
UNPAID = (FINAL, SENT)

NEXT: Mapping[str, frozenset[str]] = {
    FINAL: frozenset({SENT, PAID, VOID}),
    SENT: frozenset({SENT, PAID, VOID}),
    PAID: frozenset({SENT, VOID}),
    VOID: frozenset(),
}


#: What people may ask for.
SHOWN = (*Invoice.State.values, "overdue")


def may_become(invoice: Invoice, state: str) -> bool:
    """Return whether the invoice may become that."""
    return state in NEXT[invoice.state]


def shown(invoice: Invoice, today: date) -> str:
    """Return the state that people read: ``overdue`` for one that should have been paid before today."""
    return "overdue" if invoice.state in {FINAL, SENT} and invoice.due_on < today else str(invoice.state)
