"""Note payments of invoices that failed: a card that was declined, a debit that went back."""

from __future__ import annotations

from datetime import date

from django.db import transaction

from billing.invoices import registry, states, steps
from billing.invoices.announcing import announce
from billing.models import Invoice, PaymentFailure
from billing.models.payments import LONGEST_REASON, LONGEST_REFERENCE
from notifications.event_types import PAYMENT_FAILED
from tenants import audit
from tenants.audit import Actor
from tenants.models import Tenant

NO_REASON = "No reason was given."


@transaction.atomic
def note(actor: Actor, given: Invoice, *, reference: str, reason: str, failed_on: date | None = None) -> bool:
    """Note that a payment of an invoice failed; return whether that is news.

    The same ``reference``, the attempt's own id, again changes nothing, and neither does one of an invoice that is paid
    or void. Texts are cut to what is stored. ``failed_on``: today where the issuer is, unless given.
    """
    invoice = registry.locked(given)
    if invoice.state in {states.PAID, states.VOID}:
        return False
    failure = PaymentFailure(
        tenant_id=invoice.tenant_id,
        invoice=invoice,
        reference=_clean(reference)[:LONGEST_REFERENCE],
        reason=_clean(reason)[:LONGEST_REASON] or NO_REASON,
        failed_on=failed_on or steps.today(invoice),
    )
    if PaymentFailure.objects.filter(invoice=invoice, reference=failure.reference).exists():
        return False
    failure.save(force_insert=True)
    audit.record(
        actor,
        "payment.failed",
        ("invoice", invoice.id),
        tenant=Tenant.objects.get(id=invoice.tenant_id),
        after={"number": invoice.number, "reference": failure.reference, "reason": failure.reason},
    )
    announce(PAYMENT_FAILED, invoice, of=str(failure.id), reference=failure.reference, reason=failure.reason)
    return True


def _clean(text: str) -> str:
    """Return a text of another system in one line, without what cannot be shown."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())
