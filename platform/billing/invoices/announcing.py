"""Events about invoices, written in the transaction of what happened to them."""

from __future__ import annotations

from typing import Any

from billing.accounts import mail_addresses
from billing.invoices import registry
from billing.models import Invoice
from billing.pricing.amounts import of_minor
from notifications import outbox
from notifications.event_types import EventType
from tenants.models import Tenant


def announce(event_type: EventType, invoice: Invoice, *, of: str = "", **more: Any) -> None:
    """Write the event, once for each invoice; with ``of``, once for each thing of it. ``more``: further fields."""
    tenant = Tenant.objects.get(id=invoice.tenant_id)
    due_cents = invoice.total_cents - invoice.applied_cents - registry.credited_cents(invoice)
    outbox.emit(
        event_type,
        tenant=tenant,
        subject=("invoice", invoice.id),
        data={
            "invoice": str(invoice.id),
            "number": invoice.number,
            "month": f"{invoice.year}-{invoice.month:02}",
            "currency": invoice.currency,
            "total": of_minor(invoice.total_cents, invoice.currency),
            "due": of_minor(due_cents, invoice.currency),
            "issued_on": invoice.issued_on.isoformat(),
            "due_on": invoice.due_on.isoformat(),
            **more,
        },
        dedupe_key=f"{invoice.id} {of}".strip(),
        addresses=mail_addresses.confirmed(tenant),
    )


def announce_of(event_type: EventType, tenant: Tenant, *, of: str, **data: Any) -> None:
    """Write an event about all of a tenant's invoices, once for each ``of``."""
    outbox.emit(
        event_type,
        tenant=tenant,
        subject=("tenant", tenant.id),
        data=data,
        dedupe_key=of,
        addresses=mail_addresses.confirmed(tenant),
    )
