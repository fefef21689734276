"""Note which invoices were not paid in time."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from billing.invoices import states
from billing.invoices.announcing import announce
from billing.models import Invoice
from notifications.event_types import INVOICE_OVERDUE
from tenants import audit
from tenants.audit import SYSTEM
from tenants.models import Tenant


def note(now: datetime) -> int:
    """Note each invoice that became overdue, with an event, once; return how many."""
    today = now.date()
    late = Invoice.objects.filter(state__in=(states.FINAL, states.SENT), due_on__lt=today, overdue_at=None)
    return sum(_note(identity, now) for identity in late.order_by("id").values_list("id", flat=True))


@transaction.atomic
def _note(identity: object, now: datetime) -> int:
    invoice = Invoice.objects.select_for_update().get(id=str(identity))
    if states.shown(invoice, now.date()) != "overdue" or invoice.overdue_at is not None:
        return 0  # it was paid meanwhile
    invoice.overdue_at = now
    invoice.save(update_fields=["overdue_at"])
    tenant = Tenant.objects.get(id=invoice.tenant_id)
    audit.record(SYSTEM, "invoice.overdue", ("invoice", invoice.id), tenant=tenant, after={"number": invoice.number})
    announce(INVOICE_OVERDUE, invoice)
    return 1
