"""What becomes of a final invoice: sent, paid, overdue, void with a credit note, and issued again."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db.models import Sum

from billing.accounts import account, balance, credits
from billing.accounts.credits import NewCredit
from billing.errors import InvoiceRefused, NotReopened
from billing.invoices import finalizing, registry, states, steps
from billing.models import CreditNote, Invoice, InvoicePayment, LedgerEntry, TenantPlan
from billing.months import closing, reopening
from billing.pricing.amounts import pico_per_minor
from billing.reports import statements
from notifications.models import Event
from reconciliation import ledger
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.invoices.conftest import ADA, EVE, MIDDLE, NOW, finalize, month
from tests.billing.usage_records import row_at, store

PICO_PER_CENT = pico_per_minor("USD")

pytestmark = pytest.mark.django_db

PAID_ON = date(2026, 4, 10)
AFTER_APRIL = datetime(2026, 5, 5, 9, 0, tzinfo=UTC)


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
        ("Wire", PAID_ON, 382, "3.82 was given, 3.81 is open"),
        ("Wire", PAID_ON, 10**30, "is open"),
        ("Wire", PAID_ON, 0, "0.00 was given"),
        ("Wire", PAID_ON, -5, "-0.05 was given"),
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


def test_credit_does_not_pay_what_was_paid_for_the_void_invoice(acme: Tenant) -> None:
    first = finalize(acme)
    steps.pay(ADA, first, reference="Wire 1", paid_on=PAID_ON)
    steps.void(ADA, first, "more usage", now=NOW)
    reopen(acme, 3)
    credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=500 * PICO_PER_CENT))
    again = finalize(acme)
    assert (again.total_cents, again.applied_cents, again.state) == (381, 381, "paid")
    assert again.document["applied"] == [{"text": "Paid for invoice INV-000001", "cents": 381}]
    assert prepaid_cents(acme) == 500
    assert "receivable" not in balances(acme)


def test_what_an_invoice_that_is_issued_again_lower_does_not_need_becomes_credit(acme: Tenant) -> None:
    first = finalize(acme)
    steps.pay(ADA, first, reference="Wire 1", paid_on=PAID_ON)
    steps.void(ADA, first, "no tax", now=NOW)
    account.change(ADA, acme, tax_note="Not taxed")
    second, _ = finalizing.finalize(ADA, month(acme), now=NOW)
    assert (second.total_cents, second.applied_cents, second.document["due_cents"]) == (320, 320, 0)
    assert second.document["applied"] == [
        {"text": "Paid for invoice INV-000001", "cents": 381},
        {"text": "Added to prepaid credit", "cents": -61},
    ]
    assert (second.state, prepaid_cents(acme), [each.kind for each in credits.history(acme)]) == (
        "paid",
        61,
        ["overpaid"],
    )
    assert "receivable" not in balances(acme)
    assert AuditEntry.objects.get(action="credit.overpaid").after == {
        "source": f"overpaid:{second.id}",
        "amount_pico": 61 * PICO_PER_CENT,
        "currency": "USD",
    }
    steps.void(ADA, second, "taxed after all", now=NOW)
    account.change(ADA, acme, tax_note="")
    third, _ = finalizing.finalize(ADA, month(acme), now=NOW)
    # What became credit does not count again.
    assert (third.total_cents, third.applied_cents, third.state, prepaid_cents(acme)) == (381, 320, "final", 61)
    assert balances(acme)["receivable"] == 61 * PICO_PER_CENT
    assert ledger.verify().is_right


def test_what_was_paid_for_a_month_without_anything_to_invoice_becomes_credit(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    april = date(2026, 4, 1)
    assign_from(april, acme, plan_from(april, {"minimum": "20"}))
    first = finalize(acme, 4, AFTER_APRIL)
    steps.pay(ADA, first, reference="Wire 1", paid_on=AFTER_APRIL.date())
    steps.void(ADA, first, "no minimum", now=AFTER_APRIL)
    reopen(acme, 4)
    TenantPlan.objects.all().delete()
    for _ in range(2):
        closing.close(ADA, month(acme, 4))
        assert prepaid_cents(acme) == first.total_cents == 2380
        reopen(acme, 4)
    assert ledger.verify().is_right


def reopen(tenant: Tenant, number: int) -> None:
    """Reopen a month, as two persons do."""
    reopening.request(ADA, month(tenant, number), "again")
    reopening.confirm(EVE, month(tenant, number))


def prepaid_cents(tenant: Tenant) -> int:
    """Return what the tenant has in advance."""
    return balance.of(tenant.id).prepaid_pico // PICO_PER_CENT
