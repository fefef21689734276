"""Invoices by number or id, and what is still to be paid."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from uuid import UUID

from django.db.models import Q, QuerySet

from billing.accounts.overpaid import PAID_CENTS
from billing.errors import InvoiceRefused
from billing.models import Invoice, InvoiceDocument
from tenants.errors import NotFound
from tenants.models import Tenant


def find(number_or_id: str, tenant_id: UUID | None = None) -> Invoice:
    """Return an invoice; with ``tenant_id``, only that tenant's.

    Raises NotFound, and InvoiceRefused for a number that several have: issuers count on their own.
    """
    lookup = Q(number=number_or_id)
    with suppress(ValueError):
        lookup |= Q(id=UUID(number_or_id))
    rows = Invoice.objects.filter(lookup) if "\0" not in number_or_id else Invoice.objects.none()
    if tenant_id is not None:
        rows = rows.filter(tenant_id=tenant_id)
    found = list(rows.order_by("-id")[:2])
    if not found:
        raise NotFound("invoice", number_or_id)
    if len(found) > 1:
        raise InvoiceRefused(number_or_id, "several invoices have this number", "Use the id of one instead.")
    return found[0]


def locked(invoice: Invoice) -> Invoice:
    """Return the invoice as it is now, locked until the current transaction ends.

    Locks are taken in one order everywhere, so that no two transactions wait for each other: the tenant's months, lines
    of bank statements, invoices, the issuer, the tenant, its dunning, its credit; several of a kind by id.
    """
    return Invoice.objects.select_for_update().get(id=invoice.id)


def all_locked(invoice_ids: Iterable[UUID]) -> list[Invoice]:
    """Return these invoices as they are now, by id, locked with their tenants until the current transaction ends.

    Whoever changes several in one transaction calls this first: paying one locks its tenant, which comes after them.
    """
    found = list(Invoice.objects.select_for_update().filter(id__in=set(invoice_ids)).order_by("id"))
    tenants = Tenant.objects.select_for_update(no_key=True).filter(id__in={each.tenant_id for each in found})
    list(tenants.order_by("id").values_list("id"))
    return found


def document(invoice: Invoice, kind: str, *, of_credit_note: bool = False) -> InvoiceDocument:
    """Return a document of an invoice, or of its credit note. Raises NotFound."""
    of = {"credit_note__invoice_id": invoice.id} if of_credit_note else {"invoice_id": invoice.id}
    found = InvoiceDocument.objects.filter(kind=kind, **of).first()
    if found is None:
        raise NotFound("document", f"{kind} of {'the credit note of ' if of_credit_note else ''}{invoice.number}")
    return found


def paid_cents(invoice: Invoice) -> int:
    """Return what was paid for it."""
    known: int | None = getattr(invoice, "paid_sum", None)
    if known is not None:
        return known
    return sum(invoice.payments.filter(undone=None).values_list("amount_cents", flat=True))


def open_cents(invoice: Invoice) -> int:
    """Return what is still to be paid."""
    if invoice.state == Invoice.State.VOID:
        return 0
    return max(0, invoice.total_cents - invoice.applied_cents - paid_cents(invoice))


def with_paid(rows: QuerySet[Invoice]) -> QuerySet[Invoice]:
    """Return the invoices with what was paid for each, so that a list reads it at once."""
    return rows.annotate(paid_sum=PAID_CENTS).select_related("credit_note", "replaces")


def in_state(rows: QuerySet[Invoice], state: str, today: date) -> QuerySet[Invoice]:
    """Return those in a state, as ``states.shown`` has it."""
    unpaid = (Invoice.State.FINAL, Invoice.State.SENT)
    if state == "overdue":
        return rows.filter(state__in=unpaid, due_on__lt=today)
    return rows.filter(state=state, due_on__gte=today) if state in unpaid else rows.filter(state=state)
