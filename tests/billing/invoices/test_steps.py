"""What becomes of a final invoice: sent, paid, overdue, void with a credit note, and issued again."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from django.db.models import Sum

from billing.errors import InvoiceRefused, NotReopened
from billing.invoices import finalizing, registry, states, steps
from billing.models import CreditNote, Invoice, InvoicePayment, LedgerEntry
from billing.months import closing, reopening
from billing.pricing.amounts import PICO_PER_CENT
from billing.reports import statements
from notifications.models import Event
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tests.billing.invoices.conftest import ADA, EVE, MIDDLE, NOW, finalize, month
from tests.billing.usage_records import row_at, store

pytestmark = pytest.mark.django_db

PAID_ON = date(2026, 4, 10)


def balances(tenant: Tenant) -> dict[str, int]:
    """Return what each account of the tenant has, in pico-units, without those that have nothing."""
    entries = LedgerEntry.objects.filter(account__tenant_id=tenant.id).values_list("account__kind")
    sums = entries.annotate(total=Sum("amount_pico")).order_by()
    return {kind: int(total) for kind, total in sums if total}


def test_a_payment_is_recorded_once_and_pays_the_invoice(acme: Tenant) -> None:
    invoice = finalize(acme)
    steps.send(ADA, invoice)
    first, new = steps.pay(ADA, invoice, reference="Wire 1", paid_on=PAID_ON, amount_cents=100)
    assert (new, registry.open_cents(invoice)) == (True, 281)
    assert steps.pay(EVE, invoice, reference="Wire 1", paid_on=PAID_ON, amount_cents=100) == (first, False)
    with pytest.raises(InvoiceRefused, match="a payment with the reference 'Wire 1' is recorded already"):
        steps.pay(EVE, invoice, reference="Wire 1", paid_on=PAID_ON, amount_cents=101)
    assert not Event.objects.filter(type="hearth.invoice.paid.v1").exists()
    steps.pay(ADA, invoice, reference="Wire 2", paid_on=PAID_ON)
    assert Event.objects.get(type="hearth.invoice.paid.v1").subject == f"invoice/{invoice.id}"
    invoice.refresh_from_db()
    assert (invoice.state, registry.open_cents(invoice), InvoicePayment.objects.count()) == ("paid", 0, 2)
    found = balances(acme)
    assert (found.get("receivable"), found["cash"]) == (None, 381 * PICO_PER_CENT)
    with pytest.raises(InvoiceRefused, match="it is paid, and nothing is to be paid"):
        steps.pay(ADA, invoice, reference="Wire 3", paid_on=PAID_ON)
    actions = AuditEntry.objects.filter(object_kind="invoice").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["invoice.finalized", "invoice.sent", "invoice.paid_in_part", "invoice.paid"]


@pytest.mark.parametrize(
    ("reference", "paid_on", "amount", "problem"),
    [
        ("", PAID_ON, None, "give a reference"),
        ("a\0b", PAID_ON, None, "give a reference"),
        ("x" * 201, PAID_ON, None, "give a reference"),
        ("Wire", PAID_ON, 382, "382 cents were given, 381 are open"),
        ("Wire", PAID_ON, 10**30, "are open"),
        ("Wire", PAID_ON, 0, "0 cents were given"),
        ("Wire", PAID_ON, -5, "-5 cents were given"),
        ("Wire", date(2026, 4, 4), None, "is before its date 2026-04-05, or in the future"),
        ("Wire", date(2200, 1, 1), None, "or in the future"),
    ],
)
def test_a_wrong_payment_changes_nothing(
    acme: Tenant, reference: str, paid_on: date, amount: int | None, problem: str
) -> None:
    invoice = finalize(acme)
    before = balances(acme)
    with pytest.raises(InvoiceRefused, match=problem):
        steps.pay(ADA, invoice, reference=reference, paid_on=paid_on, amount_cents=amount)
    assert (balances(acme), InvoicePayment.objects.count()) == (before, 0)


def test_an_invoice_is_overdue_after_its_date_until_it_is_paid(acme: Tenant) -> None:
    invoice = finalize(acme)
    assert states.shown(invoice, invoice.due_on) == "final"
    assert states.shown(invoice, invoice.due_on + timedelta(days=1)) == "overdue"
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON)
    invoice.refresh_from_db()
    assert states.shown(invoice, invoice.due_on + timedelta(days=1)) == "paid"


def test_a_void_reverses_what_the_invoice_posted_and_has_a_credit_note(acme: Tenant) -> None:
    invoice = finalize(acme)
    usage_pico = statements.statement(TenantId(acme.id), 2026, 3).amount_pico
    note = steps.void(EVE, invoice, "wrong address", now=NOW)
    assert note is not None
    assert balances(acme) == {"receivable": usage_pico, "revenue": -usage_pico}
    invoice.refresh_from_db()
    assert (invoice.state, invoice.void_reason, invoice.voided_by) == ("void", "wrong address", "eve")
    assert (note.number, note.document["refers_to"], note.document["reason"]) == (
        "CN-000001",
        "INV-000001",
        "wrong address",
    )
    assert note.documents.count() == invoice.documents.count() == 5
    with pytest.raises(InvoiceRefused, match="it is void and cannot become void"):
        steps.void(ADA, invoice, "again")
    with pytest.raises(InvoiceRefused, match="it is void and cannot become sent"):
        steps.send(ADA, invoice)
    assert CreditNote.objects.count() == 1


def test_a_month_is_issued_again_with_what_was_paid_before(acme: Tenant) -> None:
    first = finalize(acme)
    steps.pay(ADA, first, reference="Wire 1", paid_on=PAID_ON)
    with pytest.raises(NotReopened, match="its invoice INV-000001 is paid; void it first"):
        reopening.request(ADA, month(acme), "more usage")
    steps.void(ADA, Invoice.objects.get(), "more usage", now=NOW)
    reopening.request(ADA, month(acme), "more usage")
    reopening.confirm(EVE, month(acme))
    with pytest.raises(InvoiceRefused, match="the month is open"):
        finalizing.finalize(ADA, month(acme))
    store(row_at(MIDDLE, TenantId(acme.id), tokens=(10_000_000, 0, 0)))
    second = finalize(acme)
    assert (second.number, second.replaces, second.closing.revision) == ("INV-000002", first, 2)
    # 150 cents and their tax more; 381 were paid
    assert (second.net_cents, second.total_cents, second.applied_cents) == (470, 559, 381)
    assert (second.state, registry.open_cents(second)) == ("final", 178)
    assert balances(acme)["receivable"] == 178 * PICO_PER_CENT
    steps.pay(ADA, second, reference="Wire 2", paid_on=PAID_ON)
    assert "receivable" not in balances(acme)


def test_a_void_invoice_whose_month_stays_closed_is_issued_again(acme: Tenant) -> None:
    first = finalize(acme)
    steps.void(ADA, first, "wrong name", now=NOW)
    Tenant.objects.filter(id=acme.id).update(name="Acme Ltd")
    again, new = finalizing.finalize(ADA, month(Tenant.objects.get(id=acme.id)), now=NOW)
    assert (new, again.document["buyer"]["name"], again.total_cents) == (True, "Acme Ltd", first.total_cents)
    assert Invoice.objects.exclude(state="void").count() == 1
    assert closing.find(month(acme)) == again.closing
