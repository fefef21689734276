"""Make the invoice of a closed month final: a number, frozen lines, postings and documents, in one transaction."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from billing import second_person
from billing.accounts import account, application, overpaid
from billing.errors import InvoiceRefused
from billing.invoices import drafting, issuers, postings
from billing.invoices.announcing import announce
from billing.invoices.content import Applied, Content, as_document
from billing.invoices.documents import render
from billing.invoices.drafting import Heading
from billing.ledger import ledger
from billing.models import BillingMonth, Invoice, InvoiceLine, Issuer
from billing.months import closing
from billing.pricing.amounts import pico_per_minor
from billing.reports import statements
from billing.reports.statements import Month
from notifications.event_types import INVOICE_FINALIZED, INVOICE_PAID
from tenants import audit
from tenants.audit import Actor
from tenants.ids import TenantId, new_id
from tenants.models import Tenant


@transaction.atomic
def finalize(
    actor: Actor, month: Month, *, issuer: str | None = None, now: datetime | None = None
) -> tuple[Invoice, bool]:
    """Make the invoice of a month; return it, and whether it is new: a month's invoice stays as it is.

    ``issuer``: the name of one that is not the default. Raises InvoiceRefused, NotFound for the issuer.
    """
    closing.lock(TenantId(month.tenant.id))
    if (existing := find(month)) is not None:
        return existing, False
    _require_own_channel(month)
    closing_row = closed(month)
    _require_customer(month)
    before = replaced(month)
    chosen = before.issuer if issuer is None and before is not None and before.issuer is not None else None
    found, number = issuers.take_invoice_number((chosen or issuers.find(issuer)).id)
    content = _content(month, found, number.text, before, now or timezone.now())
    surplus = max(0, -content.due_cents)
    content = _kept(content, surplus)
    invoice = _store(actor, closing_row, found, number.sequence, content, before)
    postings.post(invoice)
    if surplus:
        overpaid.keep(actor, closing_row, invoice.id, surplus)
    _require_equal(month, invoice)
    render.store(content, invoice)
    audit.record(
        actor,
        "invoice.finalized",
        ("invoice", invoice.id),
        tenant=month.tenant,
        after={
            "number": invoice.number,
            "month": month.name,
            "issuer": found.name,
            "total_cents": invoice.total_cents,
            "currency": invoice.currency,
            "replaces": before.number if before else None,
        },
    )
    announce(INVOICE_FINALIZED, invoice)
    if invoice.state == Invoice.State.PAID:
        announce(INVOICE_PAID, invoice)
    return invoice, True


def find(month: Month) -> Invoice | None:
    """Return the invoice of a month that is not void."""
    of_month = Invoice.objects.filter(tenant_id=month.tenant.id, year=month.year, month=month.month)
    return of_month.exclude(state=Invoice.State.VOID).first()


def _require_own_channel(month: Month) -> None:
    """Raise InvoiceRefused if another system makes the tenant's invoices."""
    details = account.of(month.tenant).details
    if details.issuer != Invoice.Channel.HEARTH:
        remedy = "One month has one legal document."
        if details.issuer == Invoice.Channel.STRIPE:
            push = f"hearth stripe push {month.name} --tenant {month.tenant.slug}"
            remedy = f"Let Stripe make it: {push}, or the page Invoices."
        raise refused(month, f"its invoices come from {details.issuer}", remedy)


def _require_customer(month: Month) -> None:
    """Raise InvoiceRefused for a tenant that was erased, or whose account has no country."""
    details = account.of(month.tenant).details
    if month.tenant.state == Tenant.State.ARCHIVED and not details.legal_name:
        raise refused(
            month,
            "its tenant is archived and its account has no legal name, as after an erasure",
            "Nobody can be addressed. Invoice the last month before you erase a tenant.",
        )
    if not details.country:
        command = f"hearth account set {month.tenant.slug} --country DE …"
        remedy = f"Set its address under Account on its page Billing, or with: {command}"
        raise refused(month, "its account has no country", remedy)


def closed(month: Month) -> BillingMonth:
    """Return the closing of the month. Raises InvoiceRefused."""
    found = closing.find(month)
    if found is None:
        raise refused(month, "the month is open", f"Close it first: hearth month close {month.name}.")
    return found


def replaced(month: Month) -> Invoice | None:
    """Return the last void invoice of the month, which the new one replaces."""
    voided = Invoice.objects.filter(tenant_id=month.tenant.id, year=month.year, month=month.month)
    return voided.select_related("issuer").order_by("-id").first()


def content_of(month: Month, issuer: Issuer, now: datetime) -> Content:
    """Return what the invoice of a closed month says, without a number. Raises InvoiceRefused."""
    closed(month)
    return _content(month, issuer, "", replaced(month), now)


def _content(month: Month, issuer: Issuer, number: str, before: Invoice | None, now: datetime) -> Content:
    kept = statements.kept_statement(month)
    assert kept is not None, "the month is closed"
    if not kept.equals_ledger:
        raise refused(month, "its lines differ from the ledger", "Run `hearth reconcile` and find out why.")
    if not kept.lines and not kept.terms:
        raise refused(month, "nothing was used and nothing is due")
    heading = Heading(
        number=number,
        issued_on=drafting.today(issuer, now),
        applied=applied(closed(month)),
        replaces=before.number if before else "",
        replaces_issued_on=before.issued_on if before else None,
    )
    content = drafting.compose(month, kept, issuer, heading)
    if content.net_cents < 0:
        raise refused(month, "less than nothing is due", "Correct the month with a credit instead.")
    return content


def applied(closed: BillingMonth) -> tuple[Applied, ...]:
    """Return what the tenant's credit paid when the month closed, and what was paid for the month's void invoices."""
    credit, one = application.applied(closed), pico_per_minor(closed.currency)
    return (
        *(Applied(text=each.text, cents=each.amount_pico // one) for each in credit),
        *(Applied(text=f"Paid for invoice {each.number}", cents=each.cents) for each in overpaid.paid_before(closed)),
    )


def _kept(content: Content, surplus_cents: int) -> Content:
    """Return the content with what was paid too much, which becomes the tenant's credit."""
    if not surplus_cents:
        return content
    return replace(content, applied=(*content.applied, Applied(text="Added to prepaid credit", cents=-surplus_cents)))


def _store(
    actor: Actor, closed: BillingMonth, issuer: Issuer, sequence: int, content: Content, before: Invoice | None
) -> Invoice:
    paid = content.due_cents <= 0
    values: dict[str, Any] = {
        "number": content.number,
        "currency": content.currency,
        "exact_pico": content.exact_pico,
        "rounding_pico": content.net_cents * pico_per_minor(content.currency) - content.exact_pico,
        "net_cents": content.net_cents,
        "tax_cents": content.tax_cents,
        "total_cents": content.total_cents,
        "applied_cents": content.applied_cents,
        "issued_on": content.issued_on,
        "due_on": content.due_on,
        "document": as_document(content),
    }
    invoice = Invoice.objects.create(
        id=new_id(),
        tenant_id=closed.tenant_id,
        issuer=issuer,
        sequence=sequence,
        closing=closed,
        year=closed.year,
        month=closed.month,
        replaces=before,
        finalized_by=second_person.person(actor),
        state=Invoice.State.PAID if paid else Invoice.State.FINAL,
        paid_at=timezone.now() if paid else None,
        **values,
    )
    InvoiceLine.objects.bulk_create(
        InvoiceLine(
            invoice=invoice,
            tenant_id=invoice.tenant_id,
            position=position,
            description=line.description,
            quantity=line.quantity,
            unit=line.unit,
            unit_price_pico=line.unit_price_pico,
            amount_pico=line.amount_pico,
            amount_cents=line.amount_cents,
        )
        for position, line in enumerate(content.lines)
    )
    invoice.refresh_from_db()
    return invoice


def _require_equal(month: Month, invoice: Invoice) -> None:
    """Raise InvoiceRefused unless the month's receivable is the invoice's total."""
    posted = sum(ledger.posted(month.billed).values()) + postings.added_pico(invoice)
    total_pico = invoice.total_cents * pico_per_minor(invoice.currency)
    if posted != total_pico:
        raise refused(
            month,
            f"it would say {total_pico} pico-units, the ledger has {posted}",
            "No invoice was made. Run `hearth reconcile`.",
        )


def refused(month: Month, reason: str, remedy: str = "") -> InvoiceRefused:
    """Return the error for a month that gets no invoice."""
    return InvoiceRefused(f"{month.name} of {month.tenant.slug} gets no invoice", reason, remedy)
