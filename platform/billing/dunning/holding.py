"""Hold dunning: of an invoice that is disputed, or of all of a tenant's for a grace. Each has a reason."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing import second_person
from billing.dunning import dates, suspending
from billing.errors import BadDunning
from billing.invoices import registry
from billing.models import DunningHold, Invoice
from billing.models.dunning import LONGEST_REASON
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.models import Tenant

#: A hold that lasts for longer has no date.
LONGEST_GRACE = timedelta(days=366)


@transaction.atomic
def hold(
    actor: Actor,
    tenant: Tenant,
    reason: str,
    *,
    invoice: Invoice | None = None,
    until: date | None = None,
    now: datetime | None = None,
) -> DunningHold:
    """Hold dunning of an invoice, or of all of the tenant's, until the end of a day or until somebody ends it.

    A suspension because of them ends at once. A hold that exists already gets this reason and date. Raises BadDunning.
    """
    moment = now or timezone.now()
    text = reason.strip()
    if not text or len(text) > LONGEST_REASON or not text.isprintable():
        raise BadDunning("reason", f"give one of 1 to {LONGEST_REASON} printable characters")
    today = dates.today(tenant, moment)
    if until is not None and not today <= until <= today + LONGEST_GRACE:
        raise BadDunning("until", f"use a date from {today} to {today + LONGEST_GRACE}")
    if invoice is not None:
        registry.locked(invoice)  # before the tenant, as paying does: a new hold refers to it
    locked = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    row = DunningHold.objects.filter(tenant_id=locked.id, invoice=invoice, ended_at=None).first()
    row = row or DunningHold(tenant_id=locked.id, invoice=invoice)
    row.reason, row.until, row.created_by = text, until, second_person.person(actor)
    row.save()
    _record(actor, "dunning.held", locked, row)
    suspending.review(actor, locked, moment)
    return row


@transaction.atomic
def end(actor: Actor, hold_id: UUID, *, now: datetime | None = None) -> DunningHold:
    """End a hold: what is due is done at the next run, and a suspension comes back at once. Again it changes nothing.

    Raises NotFound.
    """
    found = DunningHold.objects.filter(id=hold_id).first()
    if found is None:
        raise NotFound("hold", str(hold_id))
    locked = Tenant.objects.select_for_update(no_key=True).get(id=found.tenant_id)
    row = DunningHold.objects.select_related("invoice").get(id=hold_id)
    if row.ended_at is not None:
        return row
    row.ended_at, row.ended_by = now or timezone.now(), second_person.person(actor)
    row.save(update_fields=["ended_at", "ended_by"])
    _record(actor, "dunning.hold_ended", locked, row)
    suspending.review(actor, locked, row.ended_at)
    return row


def _record(actor: Actor, action: str, tenant: Tenant, row: DunningHold) -> None:
    target = ("tenant", tenant.id) if row.invoice is None else ("invoice", row.invoice.id)
    after = {
        "number": None if row.invoice is None else row.invoice.number,
        "reason": row.reason,
        "until": None if row.until is None else row.until.isoformat(),
    }
    audit.record(actor, action, target, tenant=tenant, after=after)
