"""Reopen a closed month: one person requests it and says why, a second one confirms it. The audit log has both.

Only a tenant's last closed month can be reopened, while its requests are kept: its lines are computed from them again.
What the terms of its plan added is reversed in the ledger, and the credit that paid for it is given back.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from billing import second_person
from billing.accounts import application
from billing.errors import NotReopened
from billing.models import BillingMonth, Invoice, StripeInvoice
from billing.months import closing, terms_posting
from billing.reports import statements
from billing.reports.statements import Month
from tenants import audit
from tenants.audit import Actor
from tenants.ids import TenantId

LONGEST_REASON = 500


@transaction.atomic
def request(actor: Actor, month: Month, reason: str) -> BillingMonth:
    """Request that a month is reopened. Raises NotReopened."""
    found = _last_closed(month)
    text = reason.strip()
    if not text or len(text) > LONGEST_REASON:
        raise _refused(month, f"give a reason of 1 to {LONGEST_REASON} characters")
    if found.reopen_requested_at is not None:
        raise _refused(month, f"{found.reopen_requested_by} has already requested it; a second person confirms it")
    frozen = statements.kept_statement(month)
    if frozen is None or statements.computed(month).usage_pico != frozen.usage_pico:
        raise _refused(month, "its requests were deleted, so its lines cannot be computed again")
    who = second_person.person(actor)
    BillingMonth.objects.filter(id=found.id).update(
        reopen_reason=text, reopen_requested_by=who, reopen_requested_at=Now()
    )
    audit.record(actor, "month.reopening_requested", ("month", month.name), tenant=month.tenant, after={"reason": text})
    found.refresh_from_db()
    return found


@transaction.atomic
def confirm(actor: Actor, month: Month) -> BillingMonth:
    """Reopen a month that another person requested to reopen. Raises NotReopened."""
    found = _last_closed(month)
    if found.reopen_requested_at is None:
        raise _refused(month, "nobody has requested it")
    if (objection := second_person.objection(actor, found.reopen_requested_by)) is not None:
        raise _refused(month, objection)
    who = second_person.person(actor)
    BillingMonth.objects.filter(id=found.id).update(reopened_by=who, reopened_at=Now())
    terms_posting.reverse(found)
    credit_pico = application.reverse(found)
    audit.record(
        actor,
        "month.reopened",
        ("month", month.name),
        tenant=month.tenant,
        before={"revision": found.revision, "amount_pico": int(found.amount_pico), "currency": found.currency},
        after={
            "reason": found.reopen_reason,
            "requested_by": found.reopen_requested_by,
            "credit_returned_pico": credit_pico,
        },
    )
    found.refresh_from_db()
    return found


def _last_closed(month: Month) -> BillingMonth:
    """Lock the tenant's months and return the closing of this one, its last. Raises NotReopened."""
    closing.lock(TenantId(month.tenant.id))
    found = closing.find(month)
    if found is None:
        raise _refused(month, "it is not closed")
    invoice = Invoice.objects.filter(closing=found).exclude(state=Invoice.State.VOID).first()
    if invoice is not None:
        raise _refused(month, f"its invoice {invoice.number} is {invoice.state}; void it first")
    if StripeInvoice.objects.filter(closing=found, ended_at=None).exists():
        remedy = f"hearth stripe void {month.name} --tenant {month.tenant.slug}"
        raise _refused(month, f"it is about to become Stripe's invoice; void it first: {remedy}")
    later = BillingMonth.objects.filter(tenant_id=month.tenant.id, reopened_at=None, behind_id__gt=found.behind_id)
    if (last := later.order_by("-behind_id").first()) is not None:
        raise _refused(month, f"{last.name} is closed too and comes first")
    return found


def _refused(month: Month, reason: str) -> NotReopened:
    return NotReopened(month.tenant.slug, month.name, reason)
