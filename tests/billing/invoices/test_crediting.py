"""Credit notes for parts of an invoice: never more than it, to the cent what the ledger has."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections
from django.db.models import Sum
from django.utils import timezone
from lxml import etree

from billing.accounts import balance, credited, credits, returns
from billing.accounts.credits import NewCredit
from billing.errors import BadCredit, CreditRefused, InvoiceRefused
from billing.invoices import crediting, overdue, registry, steps
from billing.invoices.crediting import Line
from billing.models import CreditEntry, CreditNote, CreditRequest, Invoice, LedgerAccount, LedgerEntry
from billing.pricing.amounts import pico_per_minor
from notifications.models import Event
from reconciliation import ledger
from tenants.models import AuditEntry, Tenant
from tests.billing.invoices.conftest import ADA, EVE, finalize
from tests.billing.invoices.test_whole_month import receivable_pico

pytestmark = pytest.mark.django_db
PAID_ON = date(2026, 4, 10)
CENT = pico_per_minor("USD")
Account = LedgerAccount.Kind
LARGE = "CREDIT_APPROVAL_ABOVE"


@pytest.fixture
def invoice(acme: Tenant) -> Invoice:
    """An invoice over 3.20 and 0.61 of tax."""
    return finalize(acme)


def credit(invoice: Invoice, cents: int | None, *, key: str = "", actor: Any = ADA) -> CreditRequest:
    """Credit an amount; without one, all that is left."""
    lines = None if cents is None else [Line(text="An hour without tiny-chat", net_cents=cents)]
    return crediting.submit(actor, invoice, key or str(uuid4()), "SLA", lines)[0]


def posted(kind: Account) -> int:
    """Return what credit notes posted to an account, in cents."""
    rows = LedgerEntry.objects.filter(transaction__kind="credit_note", account__kind=kind)
    return int(rows.aggregate(total=Sum("amount_pico", default=0))["total"]) // CENT


def amounts() -> list[tuple[int, int, int]]:
    """Return net, tax and what was settled of each note, in order."""
    return list(CreditNote.objects.order_by("sequence").values_list("net_cents", "tax_cents", "settled_cents"))


def test_a_part_is_not_to_be_paid_any_more(invoice: Invoice) -> None:
    note = credit(invoice, 100).credit_note
    assert (note.number, note.net_cents, note.tax_cents, note.settled_cents) == ("CN-000001", 100, 19, 119)
    assert registry.open_cents(invoice) == 381 - 119
    [listed] = registry.with_paid(Invoice.objects.all())
    assert (registry.open_cents(listed), listed.credit_note) == (381 - 119, None)
    assert (posted(Account.REVENUE), posted(Account.TAX), posted(Account.RECEIVABLE)) == (100, 19, -119)
    assert not CreditEntry.objects.exists()
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON)
    invoice.refresh_from_db()
    assert (invoice.state, registry.paid_cents(invoice)) == ("paid", 381 - 119)
    event = Event.objects.get(type="hearth.invoice.credited.v1")
    assert event.data["credited"] == "1.19" and event.data["open"] == "2.62" and event.data["to_credit"] == "0.00"
    assert AuditEntry.objects.filter(action="invoice.credited", object_id=str(invoice.id)).count() == 1


def test_its_documents_refer_to_the_invoice(invoice: Invoice) -> None:
    note = credit(invoice, 100).credit_note
    assert sorted(note.documents.values_list("kind", flat=True)) == ["csv", "html", "json", "pdf", "xml"]
    document = registry.document(invoice, "xml", note=note.number)
    xml = etree.fromstring(bytes(document.content))
    names = {each: xml.xpath(f"string(//*[local-name()='{each}'])") for each in ("TypeCode", "GrandTotalAmount")}
    assert names == {"TypeCode": "381", "GrandTotalAmount": "1.19"}
    referenced = "string(//*[local-name()='InvoiceReferencedDocument']/*[local-name()='IssuerAssignedID'])"
    assert xml.xpath(referenced) == invoice.number
    html = bytes(registry.document(invoice, "html", note=note.number).content).decode()
    assert "Credits a part of invoice" in html and "An hour without tiny-chat" in html and "SLA" in html


def test_all_of_it_in_parts_has_all_of_its_tax_and_no_more(invoice: Invoice) -> None:
    for cents in (1, 33, 100):
        credit(invoice, cents)
    credit(invoice, None)
    assert [sum(each) for each in zip(*amounts(), strict=True)] == [320, 61, 381]
    invoice.refresh_from_db()
    assert (invoice.state, registry.open_cents(invoice)) == ("paid", 0)
    assert (posted(Account.REVENUE), posted(Account.TAX), posted(Account.RECEIVABLE)) == (320, 61, -381)
    with pytest.raises(InvoiceRefused, match="nothing of it is left"):
        credit(invoice, 1)
    assert list(CreditNote.objects.order_by("sequence").values_list("sequence", flat=True)) == [1, 2, 3, 4]


def test_what_was_paid_becomes_credit(acme: Tenant, invoice: Invoice) -> None:
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON, amount_cents=300)
    asked = credit(invoice, 100)
    assert amounts() == [(100, 19, 81)]
    invoice.refresh_from_db()
    assert (invoice.state, balance.of(acme.id).prepaid_pico // CENT, asked.entry.kind) == ("paid", 38, "overpaid")
    assert posted(Account.RECEIVABLE) == -81
    credit(invoice, 100)
    assert amounts()[1] == (100, 19, 0) and balance.of(acme.id).prepaid_pico // CENT == 38 + 119


def test_what_a_promotion_had_paid_becomes_promotion_again_and_no_cash(acme: Tenant) -> None:
    until = timezone.now() + timedelta(days=30)
    for key, cents in (("one", 200), ("two", 100)):
        gift = NewCredit(kind="promotion", amount_pico=cents * CENT, expires_at=until)
        credits.submit(ADA, acme, key, gift)
    invoice = finalize(acme)
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON)
    credit(invoice, 100)  # 1.19, of which money had paid 0.81 and the second promotion 0.38
    found = balance.of(acme.id)
    assert (found.prepaid_pico, [each.left_pico for each in found.promotions]) == (81 * CENT, [38 * CENT])
    credit(invoice, None)
    found = balance.of(acme.id)
    assert (found.prepaid_pico, [each.left_pico // CENT for each in found.promotions]) == (81 * CENT, [200, 100])
    steps.undo_recorded(ADA, invoice, "Wire", "it bounced")
    assert balance.of(acme.id).prepaid_pico == registry.open_cents(invoice) == 0 and ledger.verify().is_right


def test_what_was_credited_is_neither_due_nor_thanked_for(invoice: Invoice) -> None:
    credit(invoice, 100)
    overdue.note(datetime(2026, 6, 1, tzinfo=UTC))
    assert Event.objects.get(type="hearth.invoice.overdue.v1").data["due"] == "2.62"
    credit(invoice, None)
    invoice.refresh_from_db()
    assert invoice.state == "paid" and not Event.objects.filter(type="hearth.invoice.paid.v1").exists()


def test_an_undone_payment_takes_back_the_credit_that_it_became(acme: Tenant, invoice: Invoice) -> None:
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON)
    credit(invoice, None)
    assert balance.of(acme.id).prepaid_pico // CENT == 381
    steps.undo_recorded(ADA, invoice, "Wire", "it bounced")
    invoice.refresh_from_db()
    assert (invoice.state, registry.open_cents(invoice), balance.of(acme.id).total_pico) == ("paid", 0, 0)
    [listed] = registry.with_paid(Invoice.objects.all())
    assert (registry.open_cents(listed), registry.credited_cents(listed)) == (0, 381)
    assert registry.credited_cents(invoice) == 381 and receivable_pico(acme) == 0 and ledger.verify().is_right


def test_what_was_spent_of_that_credit_stays_to_be_paid(acme: Tenant, invoice: Invoice) -> None:
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON)
    credit(invoice, 100)
    refund = NewCredit(kind="refund", amount_pico=100 * CENT, reason="they leave")
    credits.submit(ADA, acme, "refund", refund)
    steps.undo_recorded(ADA, invoice, "Wire", "it bounced")
    invoice.refresh_from_db()
    assert (invoice.state, registry.open_cents(invoice)) == ("final", 381 - 19)
    assert balance.of(acme.id).total_pico == 0 and receivable_pico(acme) == (381 - 19) * CENT
    assert returns.tax_of(invoice, 0) == 0 and credited.kept_cents(invoice) == 100


def test_an_undone_payment_takes_no_credit_for_what_another_one_left_open(acme: Tenant, invoice: Invoice) -> None:
    for reference, cents in (("Wire", 300), ("Other", 81)):
        steps.pay(ADA, invoice, reference=reference, paid_on=PAID_ON, amount_cents=cents)
    credit(invoice, None)
    credits.submit(ADA, acme, "refund", NewCredit(kind="refund", amount_pico=381 * CENT, reason="they leave"))
    steps.undo_recorded(ADA, invoice, "Wire", "it bounced")
    credits.submit(ADA, acme, "top-up", NewCredit(kind="top_up", amount_pico=1000 * CENT))
    steps.undo_recorded(ADA, invoice, "Other", "it bounced too")
    invoice.refresh_from_db()
    assert (invoice.state, registry.open_cents(invoice)) == ("final", 300)
    assert balance.of(acme.id).prepaid_pico == (1000 - 81) * CENT and ledger.verify().is_right
    steps.pay(ADA, invoice, reference="Again", paid_on=PAID_ON)
    invoice.refresh_from_db()
    assert invoice.state == "paid"


def test_a_payment_beside_one_that_went_back_takes_its_credit_back(acme: Tenant, invoice: Invoice) -> None:
    for reference, cents in (("Wire", 262), ("Other", 119)):
        steps.pay(ADA, invoice, reference=reference, paid_on=PAID_ON, amount_cents=cents)
    credit(invoice, 100)
    back = NewCredit(kind="return", amount_pico=262 * CENT, reason="dispute", invoice=invoice.id)
    credits.submit(ADA, acme, "back", back)
    steps.undo_recorded(ADA, invoice, "Other", "it bounced")
    assert (registry.open_cents(invoice), balance.of(acme.id).total_pico) == (0, 0)


def test_money_that_went_back_is_not_credited_too(acme: Tenant, invoice: Invoice) -> None:
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON)
    back = NewCredit(kind="return", amount_pico=119 * CENT, reason="dispute", invoice=invoice.id)
    credits.submit(ADA, acme, "back", back)
    with pytest.raises(InvoiceRefused, match=r"2\.21 without tax was given, 2\.20 are left"):
        credit(invoice, 221)
    credit(invoice, 220)
    assert amounts() == [(220, 42, 0)]
    with pytest.raises(BadCredit, match=r"at most 0\.00 USD"):
        returns.tax_of(invoice, CENT)


def test_what_is_credited_and_what_goes_back_have_all_of_the_tax_together(acme: Tenant, invoice: Invoice) -> None:
    steps.pay(ADA, invoice, reference="Wire", paid_on=PAID_ON)
    credit(invoice, 171)
    assert amounts() == [(171, 32, 0)]
    back = NewCredit(kind="return", amount_pico=178 * CENT, reason="dispute", invoice=invoice.id)
    assert credits.submit(ADA, acme, "back", back)[0].tax_pico == (61 - 32) * CENT


def test_above_the_limit_a_second_person_approves_it(settings: Any, acme: Tenant, invoice: Invoice) -> None:
    settings.CREDIT_APPROVAL_ABOVE = 2
    asked = credit(invoice, 300)
    assert asked.state == "pending" and not CreditNote.objects.exists()
    with pytest.raises(InvoiceRefused, match=r"0\.21 without tax was given, 0\.20 are left"):
        credit(invoice, 21)
    with pytest.raises(InvoiceRefused, match="waits for a second person"):
        steps.void(ADA, invoice, "all of it")
    with pytest.raises(CreditRefused, match="ada requested it"):
        crediting.approve(ADA, acme, asked.id)
    assert crediting.approve(EVE, acme, asked.id).credit_note.number == "CN-000001"
    assert amounts() == [(300, 57, 357)]
    other = credit(invoice, 20, actor=EVE, key="other")
    assert other.state == "posted"


def test_a_rejected_one_is_free_again_and_takes_no_number(settings: Any, acme: Tenant, invoice: Invoice) -> None:
    settings.CREDIT_APPROVAL_ABOVE = 2
    credits.reject(EVE, acme, credit(invoice, 300).id)
    settings.CREDIT_APPROVAL_ABOVE = 100
    assert credit(invoice, None).credit_note.number == "CN-000001"
    assert amounts() == [(320, 61, 381)]


def test_the_same_key_makes_one_note(invoice: Invoice) -> None:
    first = credit(invoice, 100, key="one")
    assert credit(invoice, 100, key="one").id == first.id and CreditNote.objects.count() == 1
    with pytest.raises(CreditRefused, match="was used for another change"):
        credit(invoice, 101, key="one")


@pytest.mark.parametrize(
    ("lines", "reason", "problem"),
    [
        ([Line(text="x", net_cents=321)], "SLA", r"3\.21 without tax was given, 3\.20 are left"),
        ([Line(text="x", net_cents=0)], "SLA", "must be above 0"),
        ([Line(text="x", net_cents=400), Line(text="y", net_cents=-100)], "SLA", "must be above 0"),
        ([Line(text=" ", net_cents=1)], "SLA", "give a text of a line"),
        ([], "SLA", "give 1 to 50 lines"),
        ([Line(text="x", net_cents=1)], " ", "give a reason"),
    ],
)
def test_what_is_wrong_changes_nothing(invoice: Invoice, lines: list[Line], reason: str, problem: str) -> None:
    with pytest.raises(InvoiceRefused, match=problem):
        crediting.submit(ADA, invoice, "key", reason, lines)
    assert not CreditRequest.objects.exists() and not LedgerEntry.objects.filter(transaction__kind="credit_note")


def test_neither_a_void_invoice_nor_one_of_another_system_is_credited(invoice: Invoice) -> None:
    credit(invoice, 100)
    with pytest.raises(InvoiceRefused, match="--rest"):
        steps.void(ADA, invoice, "all of it")
    void, other = Invoice(number="V", state="void", channel="hearth"), Invoice(number="S", channel="stripe")
    with pytest.raises(InvoiceRefused, match="taken back already"):
        crediting._require_creditable(void)
    with pytest.raises(InvoiceRefused, match="stripe issued it"):
        crediting._require_creditable(other)


@pytest.mark.long
@pytest.mark.django_db(transaction=True)
def test_two_operators_at_once_credit_no_more_than_there_is(invoice: Invoice) -> None:
    problems: list[BaseException] = []

    def one() -> None:
        try:
            credit(invoice, 200)
        except BaseException as error:
            problems.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=one) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [type(each) for each in problems] == [InvoiceRefused]
    assert amounts() == [(200, 38, 238)]
