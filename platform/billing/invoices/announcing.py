"""Events about invoices, written in the transaction of what happened to them."""

from __future__ import annotations

from typing import Any

from billing.models import Invoice
from billing.pricing.amounts import PICO_PER_CENT, units
from notifications import outbox
from notifications.event_types import EventType
from tenants.models import Tenant


def announce(event_type: EventType, invoice: Invoice, *, of: str = "", **more: Any) -> None:
    """Write the event, once for each invoice; with ``of``, once for each thing of it. ``more``: further fields."""
    outbox.emit(
        event_type,
        tenant=Tenant.objects.get(id=invoice.tenant_id),
        subject=("invoice", invoice.id),
        data={
            "invoice": str(invoice.id),
            "number": invoice.number,
            "month": f"{invoice.year}-{invoice.month:02}",
            "currency": invoice.currency,
            "total": _amount(invoice.total_cents),
            "due": _amount(invoice.total_cents - invoice.applied_cents),
            "issued_on": invoice.issued_on.isoformat(),
            "due_on": invoice.due_on.isoformat(),
            **more,
        },
        dedupe_key=f"{invoice.id} {of}".strip(),
    )


def _amount(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}{units(abs(cents) * PICO_PER_CENT)}"
