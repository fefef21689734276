"""Assign lines of bank statements to invoices, or dismiss them. Each change is one transaction with an audit row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing import second_person
from billing.errors import InvoiceRefused, PaymentRefused
from billing.invoices import registry, steps
from billing.models import BankAssignment, BankLine, Invoice
from billing.models.payments import LONGEST_REASON
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.models import Tenant


def find(line_id: UUID) -> BankLine:
    """Return a line. Raises NotFound."""
    found = BankLine.objects.filter(id=line_id).first()
    if found is None:
        raise NotFound("bank line", str(line_id))
    return found


@transaction.atomic
def assign(actor: Actor, line_id: UUID, number: str, *, amount_cents: int | None = None) -> BankLine:
    """Pay an invoice from what is left of a line: by default as much as is open, at most all that is left.

    A line that was dismissed is taken back into use. Raises NotFound, PaymentRefused, InvoiceRefused.
    """
    line = _locked(line_id)
    invoice = registry.locked(registry.find(number))
    if line.amount_cents < 0 or not line.rest_cents:
        raise PaymentRefused(line.bank_reference, "nothing of it is left to assign")
    if line.currency != invoice.currency:
        reason = f"it is in {line.currency}, and {invoice.number} is in {invoice.currency}"
        raise PaymentRefused(line.bank_reference, reason)
    amount = min(line.rest_cents, registry.open_cents(invoice)) if amount_cents is None else amount_cents
    if amount > line.rest_cents:
        raise PaymentRefused(line.bank_reference, f"{amount} cents were given, {line.rest_cents} are left")
    if BankAssignment.objects.filter(line=line, payment__invoice=invoice).exists():
        raise PaymentRefused(line.bank_reference, f"it has paid for {invoice.number} already")
    _pay(actor, line, invoice, amount, may_be_earlier=True)
    return line


@transaction.atomic
def dismiss(actor: Actor, line_id: UUID, reason: str) -> BankLine:
    """Take what is left of a line out of the queue, as with a refund. Again with the same reason changes nothing.

    Raises NotFound, PaymentRefused.
    """
    line, text = _locked(line_id), reason.strip()
    if not text or len(text) > LONGEST_REASON or not text.isprintable():
        remedy = f"Give one of 1 to {LONGEST_REASON} printable characters."
        raise PaymentRefused(line.bank_reference, "it needs a reason", remedy)
    if line.state == BankLine.State.DISMISSED and line.dismiss_reason == text:
        return line
    if line.state != BankLine.State.OPEN:
        raise PaymentRefused(line.bank_reference, f"it is {line.state} already")
    line.state, line.dismissed_at = BankLine.State.DISMISSED, timezone.now()
    line.dismissed_by, line.dismiss_reason = second_person.person(actor), text
    line.save(update_fields=["state", "dismissed_at", "dismissed_by", "dismiss_reason"])
    audit.record(
        actor,
        "payment.dismissed",
        ("bank line", line.id),
        after={"reference": line.bank_reference, "rest_cents": line.rest_cents, "reason": text},
    )
    return line


def pay_all(actor: Actor, line: BankLine, invoice_ids: Sequence[UUID]) -> tuple[str, ...]:
    """Pay these invoices from a line, locked by the caller; return their numbers.

    For several, the line must have what is open of all of them. Raises InvoiceRefused.
    """
    invoices = [registry.locked(Invoice(id=each)) for each in sorted(invoice_ids)]
    to_pay = [registry.open_cents(each) for each in invoices]
    if len(invoices) > 1 and sum(to_pay) != line.rest_cents:
        names = ", ".join(each.number for each in invoices)
        raise InvoiceRefused(names, f"{sum(to_pay)} cents are open together, {line.rest_cents} arrived")
    for invoice, amount in zip(invoices, to_pay, strict=True):
        _pay(actor, line, invoice, min(amount, line.rest_cents))
    return tuple(each.number for each in invoices)


def _locked(line_id: UUID) -> BankLine:
    found = BankLine.objects.select_for_update().filter(id=line_id).first()
    if found is None:
        raise NotFound("bank line", str(line_id))
    return found


def _reference(line: BankLine, invoice: Invoice) -> str:
    """Return the reference of a payment: that of the bank, with the account if a line of another account has the same.

    One that is too long with it is stored as its digest.
    """
    others = BankAssignment.objects.filter(payment__invoice=invoice, payment__reference=line.bank_reference)
    if not others.exclude(line=line).exists():
        return line.bank_reference
    found = f"{line.bank_account} {line.bank_reference}"
    return found if len(found) <= steps.LONGEST_REFERENCE else f"sha256:{hashlib.sha256(found.encode()).hexdigest()}"


def _pay(actor: Actor, line: BankLine, invoice: Invoice, amount_cents: int, *, may_be_earlier: bool = False) -> None:
    """Pay a locked invoice from a locked line. Raises InvoiceRefused."""
    # A booking date of a time zone that is ahead is today here.
    paid_on = min(line.booked_on, steps.today(invoice))
    payment, new = steps.pay(
        actor,
        invoice,
        reference=_reference(line, invoice),
        paid_on=paid_on,
        amount_cents=amount_cents,
        may_be_earlier=may_be_earlier,
    )
    if not new and BankAssignment.objects.filter(payment=payment).exists():
        raise InvoiceRefused(invoice.number, f"the payment {line.bank_reference!r} came from another line")
    BankAssignment.objects.create(line=line, payment=payment, assigned_by=second_person.person(actor))
    before = line.state
    line.assigned_cents += amount_cents
    line.state = BankLine.State.OPEN if line.rest_cents else BankLine.State.MATCHED
    line.problem, line.dismissed_at, line.dismissed_by, line.dismiss_reason = "", None, "", ""
    line.save()
    audit.record(
        actor,
        "payment.assigned",
        ("bank line", line.id),
        tenant=Tenant.objects.get(id=invoice.tenant_id),
        before={"state": before},
        after={
            "state": line.state,
            "reference": line.bank_reference,
            "invoice": invoice.number,
            "amount_cents": amount_cents,
        },
    )
