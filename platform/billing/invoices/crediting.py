"""Credit a part of an invoice: a credit note of lines without tax, with the tax of the invoice's rate.

What was still to be paid is less by it; what had been paid already becomes credit. All credit notes of an
invoice, those that wait for a second person, and payments that went back are together at most the invoice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from billing import second_person
from billing.accounts import balance, credited, credits, returns
from billing.errors import CreditRefused, InvoiceRefused
from billing.invoices import drafting, issuers, postings, registry, states, steps, suspension
from billing.invoices.announcing import announce
from billing.invoices.content import Content, as_document, from_document, tax_of
from billing.invoices.content import Line as ContentLine
from billing.invoices.documents import render
from billing.models import CreditNote, CreditRequest, Invoice, Issuer
from billing.pricing.amounts import minor, of_minor, pico_per_minor, units
from notifications.event_types import INVOICE_CREDITED, INVOICE_PAID
from tenants import audit
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.models import Tenant

State = CreditRequest.State
MOST_LINES = 50
LONGEST_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a credit note: what it is for, and its amount without tax in the currency's minor units."""

    text: str
    net_cents: int


def text_of_part(invoice: Invoice) -> str:
    """Return what a line without a text of its own says."""
    return f"Credit for {invoice.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What of an invoice was neither credited nor went back, and the tax of what was, in minor units."""

    net_cents: int
    gone_net_cents: int
    gone_tax_cents: int


def left(invoice: Invoice, *, without: CreditRequest | None = None) -> Left:
    """Return what of an invoice may still be credited. ``without``: as if that request did not wait."""
    notes = invoice.returns.filter(kind=CreditRequest.Kind.CREDIT_NOTE).exclude(state=State.REJECTED)
    if without is not None:
        notes = notes.exclude(id=without.id)
    one = pico_per_minor(invoice.currency)
    went_back, tax = returns.returned_cents(invoice), returns.returned_tax_cents(invoice)
    net = went_back - tax
    for amount_pico, tax_pico in notes.values_list("amount_pico", "tax_pico"):
        net += int(amount_pico - tax_pico) // one
        tax += int(tax_pico) // one
    return Left(net_cents=max(0, invoice.net_cents - net), gone_net_cents=net, gone_tax_cents=tax)


@transaction.atomic
def submit(
    actor: Actor, given: Invoice, key: str, reason: str, lines: Sequence[Line] | None
) -> tuple[CreditRequest, bool]:
    """Make a credit note for a part, or keep it until a second person approves it; return it, and whether it is new.

    ``lines``: None for one line of all that is left. A key that was used for the same one returns that.
    Raises InvoiceRefused, BadCredit, CreditRefused.
    """
    invoice, tenant = _locked(given)
    credits.check_key(key)
    text = steps.checked_text(invoice, "reason", reason, steps.LONGEST_REASON)
    known = CreditRequest.objects.filter(tenant_id=tenant.id, key=key).first()
    if known is not None:
        if not _is_same(known, invoice, text, lines):
            raise CreditRefused(tenant.slug, f"the key {key!r} was used for another change", "Use a new key.")
        return known, False
    _require_creditable(invoice)
    free = left(invoice)
    chosen = _checked(invoice, lines, free)
    net = sum(each.net_cents for each in chosen)
    tax = max(0, tax_of(free.gone_net_cents + net, _rate(invoice)) - free.gone_tax_cents)
    who, one = second_person.person(actor), pico_per_minor(invoice.currency)
    is_large = credits.is_large(tenant, who, (net + tax) * one)
    request = CreditRequest.objects.create(
        tenant_id=tenant.id,
        key=key,
        kind=CreditRequest.Kind.CREDIT_NOTE,
        amount_pico=(net + tax) * one,
        tax_pico=tax * one,
        currency=invoice.currency,
        reason=text,
        invoice=invoice,
        lines=[{"text": each.text, "net_cents": each.net_cents} for each in chosen],
        needs_approval=is_large,
        requested_by=who,
        state=State.PENDING if is_large else State.POSTED,
    )
    if is_large:
        after = {"number": invoice.number, "net_cents": net, "tax_cents": tax, "reason": text}
        audit.record(actor, "invoice.credit_requested", ("invoice", invoice.id), tenant=tenant, after=after)
    else:
        _post(actor, invoice, tenant, request)
    request.refresh_from_db()
    return request, True


@transaction.atomic
def approve(actor: Actor, tenant: Tenant, request_id: UUID) -> CreditRequest:
    """Post a change of credit that another person requested; for a credit note, make it.

    Raises NotFound, CreditRefused, InvoiceRefused.
    """
    found = CreditRequest.objects.filter(tenant_id=tenant.id, id=request_id).select_related("invoice").first()
    if found is None:
        raise NotFound("credit request", str(request_id))
    if found.kind != CreditRequest.Kind.CREDIT_NOTE or found.invoice is None:
        return credits.approve(actor, tenant, request_id)
    invoice, tenant = _locked(found.invoice)
    request = credits.awaited(tenant, request_id)
    if (objection := second_person.objection(actor, request.requested_by)) is not None:
        raise CreditRefused(tenant.slug, objection, "")
    _require_creditable(invoice)
    _checked(invoice, _lines(request), left(invoice, without=request))
    request = credits.decide(actor, tenant, request, State.POSTED)
    _post(actor, invoice, tenant, request)
    return request


def _locked(given: Invoice) -> tuple[Invoice, Tenant]:
    """Lock the invoice, its issuer, the tenant and its credit, in the order of ``registry.locked``."""
    invoice = registry.locked(given)
    if invoice.issuer_id is not None:
        Issuer.objects.select_for_update().get(id=invoice.issuer_id)
    return invoice, credits.lock(Tenant(id=invoice.tenant_id))


def _require_creditable(invoice: Invoice) -> None:
    if invoice.channel != Invoice.Channel.HEARTH:
        remedy = "Make the credit note there. Post what is paid back as a return: hearth credit return."
        raise InvoiceRefused(invoice.number, f"{invoice.channel} issued it", remedy)
    if invoice.state == states.VOID:
        raise InvoiceRefused(invoice.number, "it is void, so all of it is taken back already")


def _checked(invoice: Invoice, lines: Sequence[Line] | None, free: Left) -> list[Line]:
    """Return the lines. Raises InvoiceRefused, also for more than is left."""
    if not free.net_cents:
        raise InvoiceRefused(invoice.number, "nothing of it is left to credit")
    if lines is None:
        return [Line(text=f"Credit for {invoice.number}", net_cents=free.net_cents)]
    if not 1 <= len(lines) <= MOST_LINES:
        raise InvoiceRefused(invoice.number, f"give 1 to {MOST_LINES} lines")
    found = [
        Line(text=steps.checked_text(invoice, "text of a line", each.text, LONGEST_TEXT), net_cents=each.net_cents)
        for each in lines
    ]
    if any(each.net_cents <= 0 for each in found):
        raise InvoiceRefused(invoice.number, "the amount of a line must be above 0")
    net = sum(each.net_cents for each in found)
    if net > free.net_cents:
        wanted, has = of_minor(net, invoice.currency), of_minor(free.net_cents, invoice.currency)
        raise InvoiceRefused(invoice.number, f"{wanted} without tax was given, {has} are left", "Credit at most that.")
    return found


def _is_same(known: CreditRequest, invoice: Invoice, reason: str, lines: Sequence[Line] | None) -> bool:
    same = known.kind == CreditRequest.Kind.CREDIT_NOTE and known.invoice_id == invoice.id and known.reason == reason
    return same and (lines is None or [(each.text.strip(), each.net_cents) for each in lines] == [
        (each.text, each.net_cents) for each in _lines(known)
    ])  # fmt: skip


def _lines(request: CreditRequest) -> list[Line]:
    return [Line(text=each["text"], net_cents=each["net_cents"]) for each in request.lines or ()]


def _rate(invoice: Invoice) -> int:
    return from_document(invoice.document).tax_rate_bp


def _post(actor: Actor, invoice: Invoice, tenant: Tenant, request: CreditRequest) -> None:
    """Make the credit note of a request, its postings, documents, audit row and events."""
    tax = minor(int(request.tax_pico), invoice.currency)
    total = minor(int(request.amount_pico), invoice.currency)
    before = registry.open_cents(invoice)
    settled = min(total, before)
    assert invoice.issuer_id is not None, "the database has an issuer for each invoice of ours"
    issuer, number = issuers.take_credit_note_number(invoice.issuer_id)
    content = _content(invoice, request, tax, number.text, drafting.today(issuer, timezone.now()))
    note = CreditNote.objects.create(
        tenant_id=invoice.tenant_id,
        invoice=invoice,
        issuer=issuer,
        sequence=number.sequence,
        number=content.number,
        issued_on=content.issued_on,
        document=as_document(content),
        is_partial=True,
        request=request,
        net_cents=total - tax,
        tax_cents=tax,
        settled_cents=settled,
    )
    postings.credit(invoice, note)
    _keep(invoice, tenant, note)
    render.store(content, note)
    if 0 < settled == before:
        invoice.state, invoice.paid_at = states.PAID, timezone.now()
        invoice.save(update_fields=["state", "paid_at"])
        if registry.paid_cents(invoice) or invoice.applied_cents:
            announce(INVOICE_PAID, invoice)  # not if credit notes alone settled it: nobody is thanked for those
        suspension.settled(actor, invoice, timezone.now())
    facts = {
        "credit_note": note.number,
        "credited": of_minor(total, invoice.currency),
        "open": of_minor(before - settled, invoice.currency),
        "to_credit": of_minor(total - settled, invoice.currency),
        "reason": request.reason,
    }
    after = {"number": invoice.number, **facts}
    audit.record(actor, "invoice.credited", ("invoice", invoice.id), tenant=tenant, after=after)
    announce(INVOICE_CREDITED, invoice, of=note.number, **facts)


def _keep(invoice: Invoice, tenant: Tenant, note: CreditNote) -> None:
    """Make what had been paid of a credit note credit. Raises CreditRefused for too much of it."""
    pico = (note.total_cents - note.settled_cents) * pico_per_minor(invoice.currency)
    if not pico:
        return
    if balance.of(tenant.id).total_pico + pico > credits.LARGEST_BALANCE_PICO:
        most = f"{units(credits.LARGEST_BALANCE_PICO, invoice.currency)} {invoice.currency}"
        raise CreditRefused(tenant.slug, f"its credit would be above {most}", "Refund some of it first.")
    credited.keep(invoice, note, returns.paid_cents(invoice) - returns.returned_cents(invoice))


def _content(invoice: Invoice, request: CreditRequest, tax_cents: int, number: str, issued_on: date) -> Content:
    one = pico_per_minor(invoice.currency)
    lines = tuple(
        ContentLine(description=each.text, amount_pico=each.net_cents * one, amount_cents=each.net_cents)
        for each in _lines(request)
    )
    net = sum(each.amount_cents for each in lines)
    return replace(
        from_document(invoice.document),
        kind="credit_note",
        number=number,
        issued_on=issued_on,
        due_on=issued_on,
        lines=lines,
        exact_pico=net * one,
        net_cents=net,
        tax_cents=tax_cents,
        applied=(),
        usage=(),
        refers_to=invoice.number,
        refers_to_issued_on=invoice.issued_on,
        reason=request.reason,
        is_partial=True,
    )
