"""One month with all that can happen to it: at each step the lines, the ledger and the invoice agree."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db.models import Sum
from django.utils import timezone

from billing.accounts import account, balance, credits
from billing.accounts.credits import NewCredit
from billing.errors import InvoiceRefused
from billing.invoices import finalizing, mirroring, overdue, registry, steps
from billing.invoices.content import from_document
from billing.invoices.mirroring import External
from billing.models import Invoice, Issuer, LedgerEntry
from billing.months import closing, reopening
from billing.pricing.amounts import pico_per_minor
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from notifications.models import Event
from reconciliation import invoices as reconciliation
from reconciliation.models import BookGap
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.invoices.conftest import ADA, EVE, finalize, month
from tests.billing.usage_records import price_from, row_at, store

PICO_PER_CENT = pico_per_minor("USD")

pytestmark = pytest.mark.django_db

#: Berlin leaves summer time on 25 October 2026, so its October has 745 hours, from 22:00 UTC to 23:00 UTC.
FIRST = datetime(2025, 9, 30, 22, 0, tzinfo=UTC)
LAST = datetime(2025, 10, 31, 22, 59, 59, tzinfo=UTC)
CHANGE = datetime(2025, 10, 16, tzinfo=UTC)
NOW = datetime(2025, 11, 4, 9, 0, tzinfo=UTC)
DOUBLE = replace(DEMO_RATES, prompt_pico=300_000, cached_prompt_pico=30_000, completion_pico=1_200_000)
NEXT_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
TEN_MILLION = (10_000_000, 0, 0)


@pytest.fixture
def berlin(issuer: Issuer) -> Tenant:
    """A tenant in Berlin: usage before and after a price change, at both ends of its October, and a discount."""
    tenant = Tenant.objects.create(slug="acme", name="Acme", billing_timezone="Europe/Berlin")
    account.change(ADA, tenant, country="DE", tax_id="DE999999999")
    price_from(FIRST - timedelta(days=40), DEMO_RATES)
    price_from(CHANGE, DOUBLE)
    assign_from(date(2025, 10, 1), tenant, plan_from(date(2025, 10, 1), {"discounts": [{"percent": 10}]}))
    moments = (FIRST - timedelta(seconds=1), FIRST, LAST, LAST + timedelta(seconds=1))
    store(*[row_at(moment, TenantId(tenant.id), tokens=TEN_MILLION) for moment in moments])
    return tenant


def receivable_pico(tenant: Tenant) -> int:
    debits = LedgerEntry.objects.filter(account__kind="receivable", account__tenant_id=tenant.id)
    return int(debits.aggregate(total=Sum("amount_pico", default=0))["total"])


def october(tenant: Tenant) -> statements.Month:
    return statements.Month(tenant=tenant, year=2025, month=10)


def require_agreement(tenant: Tenant, *, other_pico: int) -> None:
    """Check that the frozen lines, the ledger and the invoice agree; ``other_pico``: what else the tenant owes."""
    found = statements.statement(TenantId(tenant.id), 2025, 10)
    assert found.equals_ledger
    invoice = finalizing.find(october(tenant))
    if invoice is None:
        assert receivable_pico(tenant) == found.amount_pico + other_pico
        return
    lines = list(invoice.lines.values_list("amount_pico", "amount_cents"))
    assert sum(pico for pico, _ in lines) == found.amount_pico == int(invoice.exact_pico)
    assert sum(cents for _, cents in lines) == invoice.net_cents == found.amount_cents
    usage = from_document(invoice.document).usage
    assert usage is not None and sum(each.amount_pico for each in usage) == found.usage_pico
    assert receivable_pico(tenant) == registry.open_cents(invoice) * PICO_PER_CENT + other_pico
    assert reconciliation.compare(timezone.now(), since=FIRST) >= 1
    assert not BookGap.objects.filter(book=BookGap.Book.INVOICES).exists()


def test_a_month_with_all_that_can_happen_to_it(berlin: Tenant) -> None:
    closing.close(ADA, statements.Month(tenant=berlin, year=2025, month=9))
    # September's and November's requests: 1.50 and 3.00, which are on no invoice here
    other = 1_500_000_000_000 + 3_000_000_000_000
    credits.submit(ADA, berlin, "payment-1", NewCredit(kind="top_up", amount_pico=2 * 10**12))
    credits.submit(ADA, berlin, "refund-1", NewCredit(kind="refund", amount_pico=10**12 // 2, reason="asked for"))
    closing.close(ADA, october(berlin))
    first, _ = finalizing.finalize(ADA, october(berlin), now=NOW)
    assert (first.document["period_start"], first.document["period_end"]) == ("2025-10-01", "2025-10-31")
    # 1.50 before the change, 3.00 after it, 10 % less; 1.50 of credit is left after the refund
    assert [line.amount_cents for line in first.lines.order_by("position")] == [150, 300, -45]
    assert (first.net_cents, first.tax_cents, first.applied_cents, registry.open_cents(first)) == (405, 77, 150, 332)
    require_agreement(berlin, other_pico=other)

    store(row_at(CHANGE, TenantId(berlin.id), tokens=TEN_MILLION))  # late: 3.00, on November's statement
    require_agreement(berlin, other_pico=other + 3 * 10**12)

    steps.pay(ADA, first, reference="Wire 1", paid_on=date(2025, 11, 10), amount_cents=100)
    require_agreement(berlin, other_pico=other + 3 * 10**12)

    steps.void(EVE, first, "the late request belongs to it", now=NOW)
    assert not finalizing.find(october(berlin))
    reopening.request(ADA, october(berlin), "the late request belongs to it")
    reopening.confirm(EVE, october(berlin))
    closing.close(ADA, october(berlin))
    second, _ = finalizing.finalize(ADA, october(berlin), now=NOW)
    assert (second.replaces, second.number) == (first, "INV-000002")
    assert second.applied_cents == 150 + 100
    require_agreement(berlin, other_pico=receivable_pico(berlin) - registry.open_cents(second) * PICO_PER_CENT)
    steps.pay(ADA, second, reference="Wire 2", paid_on=date(2025, 11, 12))
    require_agreement(berlin, other_pico=receivable_pico(berlin))
    types = Event.objects.filter(tenant=berlin, subject__startswith="invoice/").order_by("id").values_list("type")
    assert [name.split(".")[2] for (name,) in types] == ["finalized", "voided", "finalized", "paid"]


def test_reconciliation_finds_an_invoice_that_differs_from_the_ledger(acme: Tenant) -> None:
    invoice = finalize(acme)
    reconciliation.compare(timezone.now(), since=FIRST)
    assert not BookGap.objects.exists()
    Invoice.objects.filter(id=invoice.id).update(tax_cents=62, total_cents=382)  # the test's role owns the table
    assert reconciliation.compare(timezone.now(), since=FIRST) == 1
    [gap] = BookGap.objects.all()
    assert (gap.book, gap.month, int(gap.book_pico - gap.usage_pico)) == ("invoice", "2026-03", PICO_PER_CENT)


def test_a_month_has_one_legal_document_whoever_issues_it(acme: Tenant) -> None:
    given = External(
        external_id="in_1", number="HX-1", tax_cents=61, total_cents=381,
        issued_on=date(2026, 4, 2), due_on=date(2026, 4, 16),
    )  # fmt: skip
    closing.close(ADA, month(acme))
    with pytest.raises(InvoiceRefused, match="its invoices come from hearth"):
        mirroring.record(ADA, month(acme), given)
    account.change(ADA, acme, issuer="stripe")
    with pytest.raises(InvoiceRefused, match="its invoices come from stripe"):
        finalizing.finalize(ADA, month(acme))
    with pytest.raises(InvoiceRefused, match=r"HX-1 says 4\.00 with 0\.61 of tax, our lines are 3\.20"):
        mirroring.record(ADA, month(acme), replace(given, total_cents=400))
    mirrored, new = mirroring.record(ADA, month(acme), given)
    assert (new, mirrored.sequence, mirrored.issuer, mirrored.documents.count()) == (True, None, None, 0)
    assert mirroring.record(EVE, month(acme), given) == (mirrored, False)
    assert receivable_pico(acme) == 381 * PICO_PER_CENT
    account.change(ADA, acme, issuer="hearth")
    assert finalizing.finalize(ADA, month(acme)) == (mirrored, False)
    assert (Invoice.objects.count(), Issuer.objects.get().next_invoice) == (1, 1)
    assert reconciliation.compare(timezone.now(), since=FIRST) == 1 and not BookGap.objects.exists()


def test_another_systems_invoice_is_paid_by_credit_and_by_what_was_paid_before(acme: Tenant) -> None:
    given = External(
        external_id="in_1", number="HX-1", tax_cents=0, total_cents=320,
        issued_on=date(2026, 4, 2), due_on=date(2026, 4, 16),
    )  # fmt: skip
    account.change(ADA, acme, issuer="stripe")
    credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=320 * PICO_PER_CENT))
    closing.close(ADA, month(acme))
    covered, _ = mirroring.record(ADA, month(acme), given)
    assert (covered.state, covered.paid_at is not None, overdue.note(NEXT_YEAR)) == ("paid", True, 0)
    steps.void(ADA, covered, "tax forgotten")
    taxed, _ = mirroring.record(
        ADA, month(acme), replace(given, external_id="in_2", number="HX-2", tax_cents=61, total_cents=381)
    )
    assert (taxed.state, taxed.replaces, registry.open_cents(taxed)) == ("sent", covered, 61)
    steps.pay(ADA, taxed, reference="Wire", paid_on=date(2026, 4, 10))
    steps.void(ADA, taxed, "no tax after all")
    last, _ = mirroring.record(ADA, month(acme), replace(given, external_id="in_3", number="HX-3"))
    assert (last.state, last.applied_cents, balance.of(acme.id).prepaid_pico) == ("paid", 320, 61 * PICO_PER_CENT)
    assert receivable_pico(acme) == 0
    assert reconciliation.compare(timezone.now(), since=FIRST) == 3 and not BookGap.objects.exists()


def test_an_invoice_becomes_overdue_once(acme: Tenant) -> None:
    invoice = finalize(acme)
    assert overdue.note(datetime(2026, 4, 19, 23, tzinfo=UTC)) == 0
    assert [overdue.note(datetime(2026, 4, 20, 1, tzinfo=UTC)) for _ in range(2)] == [1, 0]
    assert Event.objects.filter(type="hearth.invoice.overdue.v1", subject=f"invoice/{invoice.id}").count() == 1
