"""Bring ours to what Stripe's invoice is now: its number, our mirror, payments, void. Order and repeats do not matter.

Stripe's object decides which state the document has; our ledger has every amount, and changes only by the mirror, a
payment that Stripe names, and a void.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing.errors import StripeRefused
from billing.invoices import mirroring, registry, states, steps
from billing.invoices.mirroring import External
from billing.models import Invoice, StripeInvoice
from billing.months import closing
from billing.pricing import amounts
from billing.reports.statements import Month
from billing.stripe import units
from billing.stripe.api import Api, Object
from tenants import audit
from tenants.audit import Actor
from tenants.ids import TenantId
from tenants.models import Tenant


def payments_of(api: Api, found: Object) -> list[Object]:
    """Return the payments of an invoice that have succeeded. Raises StripeRefused, StripeUnavailable."""
    if found["status"] in {"draft", "void"}:
        return []
    return api.all("invoice_payments", invoice=found["id"], status="paid")


@transaction.atomic
def apply(actor: Actor, push_id: UUID, found: Object, payments: list[Object], *, reason: str = "") -> str:
    """Bring ours to Stripe's invoice ``found`` and its payments; return what was done, in one sentence.

    Raises StripeRefused, also for one that was ended here and is not void there, and InvoiceRefused; then nothing is
    changed.
    """
    closing.lock(TenantId(StripeInvoice.objects.get(id=push_id).tenant_id))
    push = StripeInvoice.objects.select_for_update().get(id=push_id)
    if push.ended_at is not None and found["status"] != "void":
        reason = f"it was ended here, and is {found['status']} at Stripe"
        raise StripeRefused(found.get("number") or found["id"], reason, "Void it at Stripe, or delete its draft there.")
    push.external_id, push.status = found["id"], found["status"]
    push.number = found.get("number") or ""
    push.hosted_url, push.pdf_url = _url(found, "hosted_invoice_url"), _url(found, "invoice_pdf")
    push.read_at = timezone.now()
    push.save()
    if push.status == "draft":
        return "It is a draft."
    if push.status == "void":
        return _void(actor, push, reason or "Voided at Stripe")
    if push.mirror is None:
        push.mirror = _mirror(actor, push, found)
        push.save(update_fields=["mirror"])
    done = [_pay(actor, push.mirror, each) for each in payments]
    invoice = registry.locked(push.mirror)
    new = sum(done)
    paid = f"{new} payments were recorded. " if new else ""
    if push.status == "paid" and invoice.state not in {states.PAID, states.VOID}:
        left = amounts.of_minor(registry.open_cents(invoice), invoice.currency)
        return f"{paid}Stripe says paid, and {left} {invoice.currency} are open here."
    return f"{paid}It is {push.status} at Stripe, {invoice.state} here."


@transaction.atomic
def end(actor: Actor, push_id: UUID, reason: str) -> None:
    """Note that Stripe has no invoice for this any more. Raises StripeRefused if ours is not void."""
    push = StripeInvoice.objects.select_for_update().get(id=push_id)
    if push.ended_at is not None:
        return
    if push.mirror is not None and push.mirror.state != states.VOID:
        raise StripeRefused(str(push), "it was finalized, and Stripe does not delete such an invoice")
    push.ended_at, push.problem = timezone.now(), ""
    push.save(update_fields=["ended_at", "problem"])
    audit.record(
        actor,
        "invoice.stripe_ended",
        ("stripe invoice", push.id),
        tenant=Tenant.objects.get(id=push.tenant_id),
        after={"month": push.period, "reason": reason[:500]},
    )


def _void(actor: Actor, push: StripeInvoice, reason: str) -> str:
    if push.mirror is not None and push.mirror.state != states.VOID:
        steps.void(actor, push.mirror, reason, is_void_at_stripe=True)
        push.mirror.refresh_from_db()
    end(actor, push.id, reason)
    return "It is void."


def _mirror(actor: Actor, push: StripeInvoice, found: Object) -> Invoice:
    tenant = Tenant.objects.get(id=push.tenant_id)
    by_stripe = push.heading["tax_rate_bp"] is not None
    total = units.whole(found["total"], push.currency)
    tax = total - units.whole(found["total_excluding_tax"], push.currency) if by_stripe else push.tax_cents
    issued = _day(found["status_transitions"]["finalized_at"])
    given = External(
        external_id=found["id"],
        number=found["number"],
        tax_cents=tax,
        total_cents=total,
        rounding_cents=push.heading.get("rounding_cents", 0),
        issued_on=issued,
        # One that Stripe charges has no due date there.
        due_on=_day(found["due_date"]) if found.get("due_date") else issued + timedelta(days=push.terms_days),
    )
    month = Month(tenant=tenant, year=push.year, month=push.month)
    invoice, _ = mirroring.record(actor, month, given, Invoice.Channel.STRIPE)
    return invoice


def _pay(actor: Actor, invoice: Invoice, payment: Object) -> bool:
    """Record a payment, once; return whether it is new. One of more than is open pays what is open."""
    reference = f"Stripe {payment['id']}"
    current = registry.locked(invoice)
    if current.payments.filter(reference=reference).exists():
        return False
    amount = min(units.whole(payment["amount_paid"], current.currency), registry.open_cents(current))
    if amount <= 0:
        return False
    moment = (payment.get("status_transitions") or {}).get("paid_at") or payment["created"]
    paid_on = min(_day(moment), steps.today(current))
    _, new = steps.pay(actor, current, reference=reference, paid_on=paid_on, amount_cents=amount, may_be_earlier=True)
    return new


def _day(seconds: int) -> date:
    return datetime.fromtimestamp(seconds, UTC).date()


def _url(found: Object, name: str) -> str:
    text = found.get(name) or ""
    return text if text.startswith("https://") and len(text) <= 1000 else ""
