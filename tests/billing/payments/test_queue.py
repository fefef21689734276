"""What becomes of lines of the queue: credit, another invoice after an undone assignment, and a later match."""

from __future__ import annotations

from datetime import date

import pytest
from django.db.models import Sum

from billing.accounts import balance, credits
from billing.dunning import run as dunning
from billing.errors import InvoiceRefused, PaymentRefused
from billing.invoices import finalizing, registry, steps
from billing.models import BankCredit, BankLine, Invoice, InvoicePayment, LedgerEntry, PaymentUndone
from billing.payments import assignment, retrying
from billing.pricing.amounts import pico_per_minor
from reconciliation import ledger
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Tenant
from tests.billing.dunning.conftest import at
from tests.billing.invoices.conftest import ADA, EVE, NOW, finalize, month
from tests.billing.payments.conftest import import_one

PICO_PER_CENT = pico_per_minor("USD")

pytestmark = pytest.mark.django_db


def cents(kind: str) -> int:
    """Return what the ledger has in accounts of a kind, in cents."""
    entries = LedgerEntry.objects.filter(account__kind=kind).aggregate(total=Sum("amount_pico", default=0))
    return int(entries["total"]) // PICO_PER_CENT


def test_the_rest_of_a_line_becomes_credit_of_the_tenant_that_it_paid_for(acme: Tenant, invoice: Invoice) -> None:
    import_one(amount_cents=500)
    line = BankLine.objects.get()
    stranger = Tenant.objects.create(slug="globex", name="Globex")
    with pytest.raises(PaymentRefused, match="it paid invoices of another tenant"):
        assignment.keep_as_credit(ADA, line.id, stranger)
    entry = assignment.keep_as_credit(ADA, line.id)
    assert (entry.tenant_id, entry.kind, balance.of(acme.id).prepaid_pico) == (acme.id, "transfer", 119 * PICO_PER_CENT)
    assert (cents("cash"), cents("prepaid"), ledger.verify().is_right) == (500, -119, True)
    line.refresh_from_db()
    assert (line.state, line.rest_cents, BankCredit.objects.get().line) == ("matched", 0, line)
    with pytest.raises(PaymentRefused, match="nothing of it is left to keep"):
        assignment.keep_as_credit(ADA, line.id)
    assert AuditEntry.objects.filter(action="payment.kept_as_credit", tenant=acme).count() == 1
    assert balance.of(stranger.id).prepaid_pico == 0


def test_a_line_that_paid_nothing_becomes_credit_of_the_tenant_that_is_named(acme: Tenant, invoice: Invoice) -> None:
    import_one(remittance="thanks")
    line = BankLine.objects.get()
    with pytest.raises(PaymentRefused, match=r"it paid nothing yet\. Name the tenant"):
        assignment.keep_as_credit(ADA, line.id)
    assignment.keep_as_credit(ADA, line.id, acme)
    assert balance.of(acme.id).prepaid_pico == 381 * PICO_PER_CENT


def test_credit_is_bounded_and_a_dismissed_line_stays_dismissed(
    acme: Tenant, invoice: Invoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_one(remittance="thanks")
    line = BankLine.objects.get()
    monkeypatch.setattr(credits, "LARGEST_BALANCE_PICO", 380 * PICO_PER_CENT)
    with pytest.raises(PaymentRefused, match=r"the credit of acme would be above 3\.8"):
        assignment.keep_as_credit(ADA, line.id, acme)
    monkeypatch.undo()
    assignment.dismiss(ADA, line.id, "refunded")
    with pytest.raises(PaymentRefused, match="it is dismissed"):
        assignment.keep_as_credit(ADA, line.id, acme)
    assert balance.of(acme.id).prepaid_pico == 0


def test_an_assignment_is_undone_with_its_posting_and_may_be_made_again(invoice: Invoice) -> None:
    import_one()
    line = BankLine.objects.get()
    with pytest.raises(InvoiceRefused, match="give a reason"):
        assignment.undo(ADA, line.id, "INV-000001", " ")
    with pytest.raises(InvoiceRefused, match="hearth payment undo"):
        steps.undo_recorded(ADA, invoice, InvoicePayment.objects.get().reference, "it was for another")
    undone = assignment.undo(ADA, line.id, "INV-000001", "it was for another")
    assert (undone.state, undone.rest_cents, undone.problem) == ("open", 381, "Its payment of INV-000001 was undone.")
    invoice.refresh_from_db()
    assert (invoice.state, invoice.paid_at, registry.open_cents(invoice)) == ("final", None, 381)
    assert registry.open_cents(registry.with_paid(Invoice.objects.all()).get()) == 381
    assert (cents("cash"), InvoicePayment.objects.count(), PaymentUndone.objects.get().undone_by) == (0, 1, "ada")
    with pytest.raises(PaymentRefused, match="it pays nothing of INV-000001"):
        assignment.undo(ADA, line.id, "INV-000001", "again")
    with pytest.raises(InvoiceRefused, match="the payment 'B-1' was undone"):
        steps.pay(ADA, invoice, reference="B-1", paid_on=date(2026, 4, 10))
    assert retrying.run(SYSTEM) == 0  # what a person has undone is left to people
    assert dunning.run(at(3)).steps == 1
    assignment.assign(EVE, line.id, "INV-000001")
    invoice.refresh_from_db()
    assert (invoice.state, cents("cash")) == ("paid", 381)
    assert list(InvoicePayment.objects.order_by("id").values_list("reference", flat=True)) == ["B-1", "B-1 (2)"]
    actions = AuditEntry.objects.filter(object_kind="bank line").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["payment.assigned", "payment.unassigned", "payment.assigned"]


def test_what_paid_a_void_invoice_is_not_undone(invoice: Invoice) -> None:
    import_one()
    steps.void(ADA, invoice, "wrong", now=NOW)
    with pytest.raises(InvoiceRefused, match="it is void, and what was paid for it counts elsewhere"):
        assignment.undo(ADA, BankLine.objects.get().id, "INV-000001", "why")


def test_a_line_is_tried_again_once_its_invoice_is_final(acme: Tenant) -> None:
    done = import_one(booked_on=date(2026, 4, 1))
    assert (done.outcome, retrying.run(SYSTEM)) == ("open", 0)
    invoice = finalize(acme)
    assert (retrying.run(SYSTEM), retrying.run(SYSTEM)) == (1, 0)
    invoice.refresh_from_db()
    assert (invoice.state, BankLine.objects.get().state) == ("paid", "matched")


def test_a_line_that_names_a_void_invoice_pays_the_one_that_replaces_it(acme: Tenant, invoice: Invoice) -> None:
    steps.void(ADA, invoice, "wrong address", now=NOW)
    assert import_one(amount_cents=400).outcome == "open"
    assert retrying.run(SYSTEM) == 0
    again, _ = finalizing.finalize(ADA, month(acme), now=NOW)
    assert (again.number, retrying.run(SYSTEM)) == ("INV-000002", 1)
    line = BankLine.objects.get()
    assert (line.assigned_cents, line.state, line.problem) == (381, "open", "0.19 USD are more than was to be paid.")
