"""Keep a copy of an invoice that another system issued: its number and total, and no number or document of ours.

So a tenant's month has one legal document, whoever issues it, and our ledger has its total.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing import second_person
from billing.accounts import account, overpaid
from billing.errors import InvoiceRefused
from billing.invoices import finalizing, postings
from billing.invoices.announcing import announce
from billing.models import Invoice, StripeInvoice
from billing.months import closing
from billing.pricing.amounts import of_minor, pico_per_minor
from billing.reports import statements
from billing.reports.statements import Month
from notifications.event_types import INVOICE_FINALIZED, INVOICE_PAID
from tenants import audit
from tenants.audit import Actor
from tenants.ids import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class External:
    """What the other system says of its invoice."""

    external_id: str
    number: str
    tax_cents: int
    total_cents: int
    #: What rounding our lines further added to their net amount, where the other system does not take any amount.
    rounding_cents: int = 0
    issued_on: date
    due_on: date


@transaction.atomic
def record(actor: Actor, month: Month, given: External, channel: str | None = None) -> tuple[Invoice, bool]:
    """Keep another system's invoice of a closed month; return it, and whether it is new. Raises InvoiceRefused.

    ``channel``: which system issued it, by default the one that the tenant's account has now.
    Its net amount must be what our lines sum to: our ledger is the truth.
    """
    closing.lock(TenantId(month.tenant.id))
    channel = channel or account.of(month.tenant).details.issuer
    if channel == Invoice.Channel.HEARTH:
        raise finalizing.refused(month, "its invoices come from hearth", "One month has one legal document.")
    if (existing := finalizing.find(month)) is not None:
        if (existing.external_id, existing.total_cents) == (given.external_id, given.total_cents):
            return existing, False
        raise InvoiceRefused(existing.number, f"it is the invoice of {month.name} already")
    _require_no_push(month, given)
    closed = finalizing.closed(month)
    found = statements.kept_statement(month)
    assert found is not None, "the month is closed"
    net = found.amount_cents + given.rounding_cents
    _check(month, given, net)
    applied_cents = sum(each.cents for each in finalizing.applied(closed))
    surplus = max(0, applied_cents - given.total_cents)
    is_paid = applied_cents >= given.total_cents
    document: dict[str, Any] = {"kind": "mirror", "channel": channel, "number": given.number}
    invoice = Invoice.objects.create(
        tenant_id=closed.tenant_id,
        channel=channel,
        number=given.number,
        external_id=given.external_id,
        closing=closed,
        year=closed.year,
        month=closed.month,
        currency=closed.currency,
        exact_pico=closed.amount_pico,
        rounding_pico=net * pico_per_minor(found.currency) - found.amount_pico,
        net_cents=net,
        tax_cents=given.tax_cents,
        total_cents=given.total_cents,
        applied_cents=applied_cents - surplus,
        issued_on=given.issued_on,
        due_on=given.due_on,
        document=document,
        finalized_by=second_person.person(actor),
        replaces=finalizing.replaced(month),
        state=Invoice.State.PAID if is_paid else Invoice.State.SENT,
        paid_at=timezone.now() if is_paid else None,
    )
    postings.post(invoice)
    if surplus:
        overpaid.keep(actor, closed, invoice.id, surplus)
    after = {"number": given.number, "external_id": given.external_id, "total_cents": given.total_cents}
    audit.record(actor, "invoice.mirrored", ("invoice", invoice.id), tenant=month.tenant, after=after)
    announce(INVOICE_FINALIZED, invoice)
    if is_paid:
        announce(INVOICE_PAID, invoice)
    invoice.refresh_from_db()
    return invoice, True


def _require_no_push(month: Month, given: External) -> None:
    """Raise InvoiceRefused while the month goes to Stripe: its invoice there could never be mirrored."""
    going = StripeInvoice.objects.filter(
        tenant_id=month.tenant.id, year=month.year, month=month.month, ended_at=None
    ).exclude(external_id=given.external_id)
    if going.exists():
        remedy = f"Void that first: hearth stripe void {month.name} --tenant {month.tenant.slug}"
        raise finalizing.refused(month, "it goes to Stripe", remedy)


def _check(month: Month, given: External, net_cents: int) -> None:
    for name, text in (("number", given.number), ("external id", given.external_id)):
        if not text or len(text) > 64 or not text.isprintable():
            raise finalizing.refused(month, f"its {name} must have 1 to 64 printable characters")
    if given.due_on < given.issued_on:
        raise finalizing.refused(month, f"it is due on {given.due_on}, before its date {given.issued_on}")
    currency = month.tenant.currency
    total, tax, net = (of_minor(each, currency) for each in (given.total_cents, given.tax_cents, net_cents))
    if not 0 <= given.tax_cents <= given.total_cents or given.total_cents - given.tax_cents != net_cents:
        raise finalizing.refused(
            month,
            f"{given.number} says {total} with {tax} of tax, our lines are {net}",
            "Correct the invoice in the other system.",
        )
