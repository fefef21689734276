"""Refuse a tenant's requests while an invoice suspends it, and serve it again as soon as none does.

The mark stands beside the tenant's own state: what an operator suspends stays suspended, and is not touched here.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.db.models import Min

from billing.invoices import states
from billing.invoices.announcing import announce_of
from billing.models import DunningCase, Invoice
from notifications.event_types import PAYMENT_SUSPENSION_BEGUN, PAYMENT_SUSPENSION_LIFTED
from tenants import audit, policy_epoch
from tenants.audit import Actor
from tenants.models import Tenant


def settled(actor: Actor, invoice: Invoice, now: datetime) -> None:
    """Let an invoice that became paid or void suspend nobody any more, also if it is open again later. Idempotent.

    Then dunning decides again, by the holds and the policy of that moment. Call it as :func:`apply`.
    """
    _locked(invoice.tenant_id)  # before its cases, as suspending.review does
    DunningCase.objects.filter(invoice=invoice).update(suspends_since=None)
    apply(actor, invoice.tenant_id, now)


def apply(actor: Actor, tenant_id: UUID, now: datetime) -> None:
    """Set the tenant's mark from its invoices; gateways apply it within a second. Idempotent.

    Call it in the transaction that changes what is open; it locks the tenant.
    """
    tenant = _locked(tenant_id)
    cases = DunningCase.objects.filter(
        tenant_id=tenant_id, suspends_since__isnull=False, invoice__state__in=states.UNPAID
    )
    before, since = tenant.payment_overdue_since, cases.aggregate(since=Min("suspends_since"))["since"]
    if since == before:
        return
    tenant.payment_overdue_since = since
    tenant.save(update_fields=["payment_overdue_since"])
    if before is None:
        numbers = list(cases.order_by("invoice__id").values_list("invoice__number", flat=True))
        _note(actor, tenant, "tenant.payment_overdue", since=since.isoformat(), invoices=numbers)
        announce_of(PAYMENT_SUSPENSION_BEGUN, tenant, of=since.isoformat(), since=since.isoformat(), invoices=numbers)
    elif since is None:
        until = now.isoformat()
        _note(actor, tenant, "tenant.payment_suspension_lifted", since=before.isoformat())
        announce_of(PAYMENT_SUSPENSION_LIFTED, tenant, of=until, since=before.isoformat(), lifted_at=until)
    policy_epoch.bump(tenants=[tenant.id])


def _locked(tenant_id: UUID) -> Tenant:
    return Tenant.objects.select_for_update(no_key=True).get(id=tenant_id)


def _note(actor: Actor, tenant: Tenant, action: str, **after: object) -> None:
    audit.record(actor, action, ("tenant", tenant.id), tenant=tenant, after=after)
