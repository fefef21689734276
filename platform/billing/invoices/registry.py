"""Invoices by number or id, and what is still to be paid."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Prefetch, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from billing.accounts import credited
from billing.accounts.overpaid import PAID_CENTS
from billing.errors import InvoiceRefused
from billing.models import CreditNote, Invoice, InvoiceDocument, InvoicePayment, PaymentUndone
from tenants.errors import NotFound
from tenants.models import Tenant

_SETTLED = CreditNote.objects.filter(invoice=OuterRef("pk")).order_by().values("invoice")
_TAKEN = PaymentUndone.objects.filter(payment__invoice=OuterRef("pk")).order_by().values("payment__invoice")
#: What credit notes for parts of an invoice took from what was to be paid, also once what they made credit is no more.
CREDITED_CENTS = Coalesce(Subquery(_SETTLED.annotate(total=Sum("settled_cents")).values("total")), 0) + Coalesce(
    Subquery(_TAKEN.annotate(total=Sum("credit_cents")).values("total")), 0
)


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


#: Instead of a credit note's number: that of the one that took the invoice back.
CREDIT_NOTE = "credit_note"


def document(invoice: Invoice, kind: str, *, note: str = "") -> InvoiceDocument:
    """Return a document of an invoice, or of its credit note with this number, or ``CREDIT_NOTE``. Raises NotFound."""
    of: dict[str, Any] = {"invoice_id": invoice.id}
    if note:
        which = {"is_partial": False} if note == CREDIT_NOTE else {"number": note}
        of = {"credit_note__in": invoice.credit_notes.filter(**which)}
    found = InvoiceDocument.objects.filter(kind=kind, **of).first() if "\0" not in note else None
    if found is None:
        name = {"": "", CREDIT_NOTE: "the credit note of "}.get(note, f"the credit note {note} of ")
        raise NotFound("document", f"{kind} of {name}{invoice.number}")
    return found


def paid_cents(invoice: Invoice) -> int:
    """Return what was paid for it."""
    known: int | None = getattr(invoice, "paid_sum", None)
    if known is not None:
        return known
    return sum(invoice.payments.filter(undone=None).values_list("amount_cents", flat=True))


def open_cents(invoice: Invoice, *, without: InvoicePayment | None = None) -> int:
    """Return what is still to be paid. ``without``: as if that payment of it were undone, which it is not."""
    if invoice.state == Invoice.State.VOID:
        return 0
    paid = paid_cents(invoice) - (0 if without is None else without.amount_cents)
    return max(0, invoice.total_cents - invoice.applied_cents - paid - credited_cents(invoice))


def credited_cents(invoice: Invoice) -> int:
    """Return what credit notes for parts of it took from what was to be paid."""
    known: int | None = getattr(invoice, "credited_sum", None)
    if known is not None:
        return known
    return sum(invoice.credit_notes.values_list("settled_cents", flat=True)) + credited.taken_cents(invoice)


def with_paid(rows: QuerySet[Invoice]) -> QuerySet[Invoice]:
    """Return the invoices with what was paid for each and its credit notes, so that a list reads them at once.

    Documents, of up to thousands of lines, are not read.
    """
    notes = Prefetch("credit_notes", CreditNote.objects.defer("document").order_by("id"))
    found = rows.annotate(paid_sum=PAID_CENTS, credited_sum=CREDITED_CENTS)
    return found.select_related("replaces").defer("document", "replaces__document").prefetch_related(notes)


def in_state(rows: QuerySet[Invoice], state: str, today: date) -> QuerySet[Invoice]:
    """Return those in a state, as ``states.shown`` has it."""
    unpaid = (Invoice.State.FINAL, Invoice.State.SENT)
    if state == "overdue":
        return rows.filter(state__in=unpaid, due_on__lt=today)
    return rows.filter(state=state, due_on__gte=today) if state in unpaid else rows.filter(state=state)
