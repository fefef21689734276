"""What holds dunning now."""

from __future__ import annotations

from datetime import date
from uuid import UUID

from django.db.models import Q, QuerySet

from billing.models import DunningHold, Invoice


def of_all(tenant_id: UUID | None = None) -> QuerySet[DunningHold]:
    """Return the holds that nobody has ended, of all tenants or of one, the newest first."""
    rows = DunningHold.objects.filter(ended_at=None).select_related("invoice").order_by("-id")
    return rows if tenant_id is None else rows.filter(tenant_id=tenant_id)


def of_invoice(invoice: Invoice, today: date) -> DunningHold | None:
    """Return what holds an invoice today."""
    rows = DunningHold.objects.filter(tenant_id=invoice.tenant_id, ended_at=None)
    rows = rows.filter(Q(invoice=None) | Q(invoice=invoice)).filter(Q(until=None) | Q(until__gte=today))
    return rows.order_by("id").first()
