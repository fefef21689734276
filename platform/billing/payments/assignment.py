"""Assign lines of bank statements to invoices, undo that, keep a rest as credit, or dismiss them.

Each change is one transaction with an audit row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing import second_person
from billing.accounts import balance, credits, entries
from billing.accounts.balance import Part
from billing.errors import InvoiceRefused, PaymentRefused
from billing.invoices import registry, steps
from billing.models import BankAssignment, BankCredit, BankLine, CreditEntry, Invoice
from billing.models.payments import LONGEST_REASON
from billing.pricing.amounts import of_minor, pico_per_minor, units
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
        given, left = of_minor(amount, line.currency), of_minor(line.rest_cents, line.currency)
        raise PaymentRefused(line.bank_reference, f"{given} was given, {left} is left")
    if BankAssignment.objects.filter(line=line, payment__invoice=invoice, payment__undone=None).exists():
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


@transaction.atomic
def undo(actor: Actor, line_id: UUID, number: str, reason: str) -> BankLine:
    """Take back what a line paid of an invoice: that much is open again, and left of the line. Audited, with postings.

    Raises NotFound, PaymentRefused, InvoiceRefused.
    """
    line, invoice = _locked(line_id), registry.find(number)
    assigned = BankAssignment.objects.select_related("payment").filter(
        line=line, payment__invoice=invoice, payment__undone=None
    )
    found = assigned.first()
    if found is None:
        raise PaymentRefused(line.bank_reference, f"it pays nothing of {invoice.number}")
    steps.undo_payment(actor, found.payment_id, reason)
    before = line.state
    _set_assigned(
        line, line.assigned_cents - found.payment.amount_cents, f"Its payment of {invoice.number} was undone."
    )
    _record(actor, "payment.unassigned", line, invoice, found.payment.amount_cents, before, reason.strip())
    return line


@transaction.atomic
def keep_as_credit(actor: Actor, line_id: UUID, tenant: Tenant | None = None) -> CreditEntry:
    """Make what is left of a line prepaid credit: of ``tenant``, or of the one whose invoices it paid.

    Raises NotFound, PaymentRefused.
    """
    line = _locked(line_id)
    if line.amount_cents < 0 or not line.rest_cents:
        raise PaymentRefused(line.bank_reference, "nothing of it is left to keep")
    if line.state != BankLine.State.OPEN:
        raise PaymentRefused(line.bank_reference, f"it is {line.state}")
    owner = _owner(line, tenant)
    if owner.state == Tenant.State.ARCHIVED or owner.currency != line.currency:
        reason = f"it is in {line.currency}, and {owner.slug} is {owner.state} and has {owner.currency}"
        raise PaymentRefused(line.bank_reference, reason)
    balance.lock(owner.id)
    rest, before = line.rest_cents, line.state
    if balance.of(owner.id).total_pico + rest * pico_per_minor(line.currency) > credits.LARGEST_BALANCE_PICO:
        most = units(credits.LARGEST_BALANCE_PICO, line.currency)
        reason = f"the credit of {owner.slug} would be above {most} {line.currency}"
        raise PaymentRefused(line.bank_reference, reason)
    part = Part(promotion_id=None, left_pico=0)
    kind = entries.Kind.TRANSFER
    entry = entries.add(owner.id, line.currency, part, kind, rest * pico_per_minor(line.currency))
    BankCredit.objects.create(line=line, entry=entry, kept_by=second_person.person(actor))
    _set_assigned(line, line.amount_cents, "")
    audit.record(
        actor,
        "payment.kept_as_credit",
        ("bank line", line.id),
        tenant=owner,
        before={"state": before},
        after={"state": line.state, "reference": line.bank_reference, "amount_cents": rest, "credit": str(entry.id)},
    )
    return entry


def pay_all(
    actor: Actor, line: BankLine, invoice_ids: Sequence[UUID], *, may_be_earlier: bool = False
) -> list[Invoice]:
    """Pay these invoices from a line, locked by the caller; return them.

    For several, the line must have what is open of all of them. ``may_be_earlier``: whether it may have arrived before
    their date. Raises InvoiceRefused.
    """
    invoices = registry.all_locked(invoice_ids)
    to_pay = [registry.open_cents(each) for each in invoices]
    if len(invoices) > 1 and sum(to_pay) != line.rest_cents:
        names = ", ".join(each.number for each in invoices)
        together, arrived = of_minor(sum(to_pay), line.currency), of_minor(line.rest_cents, line.currency)
        raise InvoiceRefused(names, f"{together} is open together, {arrived} arrived")
    for invoice, amount in zip(invoices, to_pay, strict=True):
        _pay(actor, line, invoice, min(amount, line.rest_cents), may_be_earlier=may_be_earlier)
    return invoices


def _locked(line_id: UUID) -> BankLine:
    found = BankLine.objects.select_for_update().filter(id=line_id).first()
    if found is None:
        raise NotFound("bank line", str(line_id))
    return found


def _owner(line: BankLine, tenant: Tenant | None) -> Tenant:
    """Return whose credit the rest of a line becomes. Raises PaymentRefused."""
    paid = BankAssignment.objects.filter(line=line, payment__undone=None)
    owners = set(paid.values_list("payment__tenant_id", flat=True))
    if tenant is not None:
        owners.add(tenant.id)
    if len(owners) != 1:
        reason = "it paid nothing yet" if not owners else "it paid invoices of another tenant"
        raise PaymentRefused(line.bank_reference, reason, "Name the tenant whose credit it becomes." * (not owners))
    return Tenant.objects.select_for_update(no_key=True).get(id=owners.pop())


def _set_assigned(line: BankLine, cents: int, problem: str) -> None:
    line.assigned_cents = cents
    line.state = BankLine.State.OPEN if line.rest_cents else BankLine.State.MATCHED
    line.problem, line.dismissed_at, line.dismissed_by, line.dismiss_reason = problem, None, "", ""
    line.save()


def _reference(line: BankLine, invoice: Invoice) -> str:
    """Return the reference of a payment: that of the bank, with the account if a line of another account has the same.

    A payment after one that was undone is numbered. One that is too long with it is stored as its digest.
    """
    same = BankAssignment.objects.filter(payment__invoice=invoice)
    others = same.filter(payment__reference=line.bank_reference).exclude(line=line)
    found = f"{line.bank_account} {line.bank_reference}" if others.exists() else line.bank_reference
    if (before := same.filter(line=line).count()) > 0:
        found = f"{found} ({before + 1})"
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
    _set_assigned(line, line.assigned_cents + amount_cents, "")
    _record(actor, "payment.assigned", line, invoice, amount_cents, before)


def _record(
    actor: Actor, action: str, line: BankLine, invoice: Invoice, amount_cents: int, before: str, reason: str = ""
) -> None:
    after = {
        "state": line.state,
        "reference": line.bank_reference,
        "invoice": invoice.number,
        "amount_cents": amount_cents,
    }
    audit.record(
        actor,
        action,
        ("bank line", line.id),
        tenant=Tenant.objects.get(id=invoice.tenant_id),
        before={"state": before},
        after=after | ({"reason": reason} if reason else {}),
    )
