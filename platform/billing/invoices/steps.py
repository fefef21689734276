"""Send, pay and void an invoice. Each is one transaction, under the invoice's lock, with an audit row."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing import second_person
from billing.accounts import credited, mail_addresses, returns
from billing.errors import InvoiceRefused
from billing.invoices import drafting, issuers, postings, registry, states, suspension
from billing.invoices.announcing import announce
from billing.invoices.content import as_document, from_document
from billing.invoices.documents import render
from billing.models import (
    BankAssignment,
    CreditNote,
    CreditRequest,
    Invoice,
    InvoicePayment,
    PaymentUndone,
    StripeInvoice,
)
from billing.months import closing
from billing.pricing.amounts import of_minor
from notifications.event_types import INVOICE_PAID, INVOICE_SENT, INVOICE_VOIDED
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.ids import TenantId, new_id
from tenants.models import Tenant

LONGEST_REASON = 500
LONGEST_REFERENCE = 200
#: How references of payments begin that Stripe reported, with its id (`inpay_…`).
STRIPE_PAYMENT = "Stripe inpay_"


@transaction.atomic
def send(actor: Actor, given: Invoice) -> Invoice:
    """Send an invoice by e-mail, to the billing addresses, owners and billing members; again sends it again.

    The e-mails leave within seconds, as an event. Raises InvoiceRefused.
    """
    invoice = _at(given, states.SENT)
    invoice.sent_at = timezone.now()
    if invoice.state != states.PAID:
        invoice.state = states.SENT
    invoice.save(update_fields=["sent_at", "state"])
    tenant = Tenant.objects.get(id=invoice.tenant_id)
    _record(actor, "invoice.sent", invoice, {"addresses": len(mail_addresses.confirmed(tenant))})
    announce(INVOICE_SENT, invoice, of=invoice.sent_at.isoformat(), sent_at=invoice.sent_at.isoformat())
    return invoice


@transaction.atomic
def pay(
    actor: Actor,
    given: Invoice,
    *,
    reference: str,
    paid_on: date,
    amount_cents: int | None = None,
    may_be_earlier: bool = False,
) -> tuple[InvoicePayment, bool]:
    """Record money that arrived, by default all that is open; return the payment, and whether it is new.

    ``reference`` is what the bank statement says. The same one again changes nothing, if amount and date are the same.
    ``may_be_earlier``: whether it may have arrived before the invoice's date, as with a month that was issued again.
    Raises InvoiceRefused.
    """
    text = checked_text(given, "reference", reference, LONGEST_REFERENCE)
    invoice = registry.locked(given)
    known = invoice.payments.filter(reference=text).first()
    if known is not None:
        if PaymentUndone.objects.filter(payment=known).exists():
            raise InvoiceRefused(invoice.number, f"the payment {text!r} was undone", "Use another reference.")
        if known.paid_on == paid_on and amount_cents in {None, known.amount_cents}:
            return known, False
        raise InvoiceRefused(invoice.number, f"a payment with the reference {text!r} is recorded already")
    open_cents = registry.open_cents(invoice)
    amount = open_cents if amount_cents is None else amount_cents
    if not states.may_become(invoice, states.PAID) or invoice.state == states.PAID:
        raise InvoiceRefused(invoice.number, f"it is {invoice.state}, and nothing is to be paid")
    if not 0 < amount <= open_cents:
        given_text, open_text = (of_minor(each, invoice.currency) for each in (amount, open_cents))
        raise InvoiceRefused(invoice.number, f"{given_text} was given, {open_text} is open", "Pay at most that.")
    if (paid_on < invoice.issued_on and not may_be_earlier) or paid_on > today(invoice):
        raise InvoiceRefused(invoice.number, f"{paid_on} is before its date {invoice.issued_on}, or in the future")
    identity = new_id()
    payment = InvoicePayment.objects.create(
        id=identity,
        tenant_id=invoice.tenant_id,
        invoice=invoice,
        transaction_id=postings.pay(invoice, identity, amount),
        amount_cents=amount,
        paid_on=paid_on,
        reference=text,
        recorded_by=second_person.person(actor),
    )
    if amount == open_cents:
        invoice.state, invoice.paid_at = states.PAID, timezone.now()
        invoice.save(update_fields=["state", "paid_at"])
        announce(INVOICE_PAID, invoice)
        suspension.settled(actor, invoice, timezone.now())
    _record(
        actor,
        "invoice.paid" if amount == open_cents else "invoice.paid_in_part",
        invoice,
        {"amount_cents": amount, "paid_on": paid_on.isoformat(), "reference": text},
    )
    return payment, True


@transaction.atomic
def undo_payment(actor: Actor, payment_id: UUID, reason: str) -> Invoice:
    """Take a payment back, as if it had never been recorded; return its invoice, of which that much is open again.

    What of it became prepaid credit by a credit note is taken from there, as far as it is left, and is not open.
    Again it changes nothing. Raises NotFound, and InvoiceRefused for a void invoice, whose payments count elsewhere.
    """
    payment = InvoicePayment.objects.select_related("invoice").filter(id=payment_id).first()
    if payment is None:
        raise NotFound("payment", str(payment_id))
    text = checked_text(payment.invoice, "reason", reason, LONGEST_REASON)
    invoice = registry.locked(payment.invoice)
    if PaymentUndone.objects.filter(payment=payment).exists():
        return invoice
    if invoice.state == states.VOID:
        raise InvoiceRefused(invoice.number, "it is void, and what was paid for it counts elsewhere")
    _require_not_returned(invoice, returns.paid_cents(invoice) - payment.amount_cents)
    Tenant.objects.select_for_update(no_key=True).get(id=invoice.tenant_id)  # before its credit
    open_cents = registry.open_cents(invoice, without=payment)
    taken = credited.take_back(payment, invoice, open_cents)
    PaymentUndone.objects.create(
        tenant_id=invoice.tenant_id,
        payment=payment,
        transaction_id=postings.undo_payment(payment, invoice.currency),
        reason=text,
        undone_by=second_person.person(actor),
        credit_cents=taken,
    )
    if invoice.state == states.PAID and open_cents > taken:
        invoice.state, invoice.paid_at = states.FINAL if invoice.sent_at is None else states.SENT, None
        invoice.save(update_fields=["state", "paid_at"])
    after = {
        "amount_cents": payment.amount_cents,
        "from_credit_cents": taken,
        "reference": payment.reference,
        "reason": text,
    }
    _record(actor, "invoice.payment_undone", invoice, after)
    suspension.apply(actor, invoice.tenant_id, timezone.now())
    return invoice


@transaction.atomic
def undo_recorded(actor: Actor, given: Invoice, reference: str, reason: str) -> Invoice:
    """Take back the payment with a reference, as ``undo_payment`` does. Raises InvoiceRefused.

    One that a line of a bank statement became is undone there, so that the line is open again. One that Stripe reported
    stays: Stripe holds the invoice as paid, and the same payment is never recorded again.
    """
    payment = given.payments.filter(reference=reference.strip()).first()
    if payment is None:
        raise InvoiceRefused(given.number, f"no payment of it has the reference {reference!r}")
    require_recorded_by_people(given, payment)
    return undo_payment(actor, payment.id, reason)


def require_recorded_by_people(invoice: Invoice, payment: InvoicePayment) -> None:
    """Raise InvoiceRefused for a payment that is taken back elsewhere: a bank line's, or one that Stripe reported."""
    if BankAssignment.objects.filter(payment=payment).exists():
        raise InvoiceRefused(invoice.number, "a line of a bank statement paid it", "Undo that: hearth payment undo.")
    if invoice.channel == Invoice.Channel.STRIPE and payment.reference.startswith(STRIPE_PAYMENT):
        remedy = "Refund it at Stripe: the return is posted here."
        raise InvoiceRefused(invoice.number, "Stripe reported this payment and holds the invoice as paid", remedy)


def today(invoice: Invoice) -> date:
    """Return the date where its issuer is; for an invoice of another system, in UTC."""
    return timezone.now().date() if invoice.issuer is None else drafting.today(invoice.issuer, timezone.now())


@transaction.atomic
def void(
    actor: Actor, given: Invoice, reason: str, *, now: datetime | None = None, is_void_at_stripe: bool = False
) -> CreditNote | None:
    """Void an invoice; return the credit note that takes it back. Its month may then be reopened, and invoiced again.

    What was paid for it counts for the invoice that replaces it. One of another system is void without a note of ours.
    Raises InvoiceRefused, also for one that is not void at Stripe yet.
    """
    text = checked_text(given, "reason", reason, LONGEST_REASON)
    closing.lock(TenantId(given.tenant_id))  # before the invoice, as finalising does
    invoice = _at(given, states.VOID)
    require_voidable(invoice, is_void_at_stripe=is_void_at_stripe)
    invoice.state, invoice.voided_at = states.VOID, timezone.now()
    invoice.voided_by, invoice.void_reason = second_person.person(actor), text
    invoice.save(update_fields=["state", "voided_at", "voided_by", "void_reason"])
    note = None
    postings.reverse(invoice)
    if invoice.channel == Invoice.Channel.HEARTH:
        note = _credit_note(invoice, text, now or timezone.now())
    _record(actor, "invoice.voided", invoice, {"reason": text, "credit_note": note.number if note else None})
    announce(INVOICE_VOIDED, invoice)
    suspension.settled(actor, invoice, timezone.now())
    return note


def require_voidable(invoice: Invoice, *, is_void_at_stripe: bool = False) -> None:
    """Raise InvoiceRefused for an invoice that Stripe has, of which money went back, or a part was credited."""
    if not is_void_at_stripe:
        _require_not_at_stripe(invoice)
    _require_not_returned(invoice, 0)
    _require_not_credited(invoice)


def checked_text(invoice: Invoice, name: str, given: str, longest: int) -> str:
    """Return a text without spaces around it. Raises InvoiceRefused for none, and for what cannot be printed."""
    text = given.strip()
    if not text or len(text) > longest or not text.isprintable():
        raise InvoiceRefused(invoice.number, f"give a {name} of 1 to {longest} printable characters")
    return text


def _require_not_returned(invoice: Invoice, paid_cents: int) -> None:
    """Raise InvoiceRefused if more than that of the invoice's payments went back. Returns lock the invoice too."""
    returned = returns.returned_cents(invoice)
    if returned > paid_cents:
        reason = f"{of_minor(returned, invoice.currency)} {invoice.currency} that was paid for it went back"
        remedy = (
            "Take the return back (hearth credit reverse), undo the payment (hearth invoice unpay), pay what stayed."
        )
        raise InvoiceRefused(invoice.number, reason, remedy)


def _require_not_credited(invoice: Invoice) -> None:
    """Raise InvoiceRefused for an invoice of which a part was credited: a credit note of all would be too much."""
    if invoice.credit_notes.filter(is_partial=True).exists():
        remedy = f"Credit the rest instead: hearth invoice credit {invoice.number} --rest"
        raise InvoiceRefused(invoice.number, "a credit note took a part of it back", remedy)
    if invoice.returns.filter(kind=CreditRequest.Kind.CREDIT_NOTE, state=CreditRequest.State.PENDING).exists():
        raise InvoiceRefused(invoice.number, "a credit note of it waits for a second person", "Reject that first.")


def _require_not_at_stripe(invoice: Invoice) -> None:
    """Raise InvoiceRefused for an invoice that Stripe would go on to collect."""
    push = StripeInvoice.objects.filter(mirror=invoice, ended_at=None).first()
    if push is not None:
        slug = Tenant.objects.get(id=invoice.tenant_id).slug
        remedy = f"Void it there and here: hearth stripe void {push.period} --tenant {slug}"
        raise InvoiceRefused(invoice.number, "Stripe issued and collects it", remedy)


def _credit_note(invoice: Invoice, reason: str, now: datetime) -> CreditNote:
    assert invoice.issuer_id is not None, "the database has an issuer for each invoice of ours"
    issuer, number = issuers.take_credit_note_number(invoice.issuer_id)
    content = replace(
        from_document(invoice.document),
        kind="credit_note",
        number=number.text,
        issued_on=drafting.today(issuer, now),
        due_on=drafting.today(issuer, now),
        applied=(),
        refers_to=invoice.number,
        refers_to_issued_on=invoice.issued_on,
        reason=reason,
    )
    note = CreditNote.objects.create(
        tenant_id=invoice.tenant_id,
        invoice=invoice,
        issuer=issuer,
        sequence=number.sequence,
        number=number.text,
        issued_on=content.issued_on,
        document=as_document(content),
    )
    render.store(content, note)
    return note


def _at(given: Invoice, state: str) -> Invoice:
    """Lock the invoice. Raises InvoiceRefused unless it may become that."""
    invoice = registry.locked(given)
    if not states.may_become(invoice, state):
        raise InvoiceRefused(invoice.number, f"it is {invoice.state} and cannot become {state}")
    return invoice


def _record(actor: Actor, action: str, invoice: Invoice, after: dict[str, object]) -> None:
    audit.record(
        actor,
        action,
        ("invoice", invoice.id),
        tenant=Tenant.objects.get(id=invoice.tenant_id),
        after={"number": invoice.number, **after},
    )
