"""What lines of bank statements become: payments of the invoices that they name, or lines in the queue."""

from __future__ import annotations

import threading
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import Error, connection, connections, transaction
from django.utils import timezone

from billing.errors import BadBankFile, InvoiceRefused, PaymentRefused
from billing.invoices import issuers, registry, steps
from billing.models import BankAssignment, BankLine, Invoice, InvoicePayment, LedgerEntry
from billing.payments import assignment, importing
from billing.payments.bank_statement import Statement
from billing.pricing.amounts import pico_per_minor
from billing.runs import advancing
from billing.runs import registry as registry_of_runs
from tenants.database import rls
from tenants.errors import NotFound
from tenants.ids import TenantId, new_id
from tenants.models import AuditEntry, Tenant
from tests.billing.invoices.conftest import ADA, EVE, MIDDLE, finalize
from tests.billing.payments.conftest import entry, import_one
from tests.billing.usage_records import row_at, store

PICO_PER_CENT = pico_per_minor("USD")

pytestmark = pytest.mark.django_db


def cash() -> int:
    """Return what the ledger has as cash, in cents."""
    entries = LedgerEntry.objects.filter(account__kind="cash").values_list("amount_pico", flat=True)
    return int(sum(entries)) // PICO_PER_CENT


def line() -> BankLine:
    return BankLine.objects.get()


@pytest.mark.parametrize(
    "text", ["INV-000001", "inv 000001", "Rg. Inv/000001, thanks", "INV-000 001", "Nr.:INV000001.", "(inv_000001)"]
)
def test_a_line_that_names_an_invoice_pays_it(invoice: Invoice, text: str) -> None:
    done = import_one(remittance=text)
    assert (done.outcome, done.invoices, done.problem) == ("matched", ("INV-000001",), "")
    invoice.refresh_from_db()
    assert (invoice.state, line().state, line().rest_cents, cash()) == ("paid", "matched", 0, 381)
    payment = InvoicePayment.objects.get()
    assert (payment.reference, payment.paid_on, payment.amount_cents) == ("B-1", date(2026, 4, 10), 381)
    entries = AuditEntry.objects.order_by("-id").values_list("action", "tenant_id")[:3]
    assert list(entries) == [
        ("payments.imported", None),
        ("payment.assigned", invoice.tenant_id),
        ("invoice.paid", invoice.tenant_id),
    ]


@pytest.mark.parametrize(
    "text", ["", "INV-00001", "INV-0000011", "XINV-000001", "INV-OOOOO1", "INV-000002", "381", "000001", "Acme GmbH"]
)
def test_nothing_is_guessed(invoice: Invoice, text: str) -> None:
    done = import_one(remittance=text)
    assert (done.outcome, done.problem) == ("open", "Its text has no number of an invoice that is to be paid.")
    assert (line().problem, InvoicePayment.objects.count(), cash()) == (done.problem, 0, 0)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"currency": "EUR"}, "The invoice that it names is in USD."),
        ({"booked_on": date(2026, 4, 4)}, "is before its date 2026-04-05"),
        ({"amount_cents": -381}, "A payment went back."),
        ({"came_back": True}, "Money that went out came back."),
    ],
)
def test_what_does_not_fit_stays_in_the_queue(invoice: Invoice, fields: dict[str, Any], problem: str) -> None:
    done = import_one(**fields)
    assert (done.outcome, problem in done.problem) == ("open", True)
    assert (line().state, registry.open_cents(invoice), cash()) == ("open", 381, 0)


def test_a_part_pays_in_part_and_more_stays_in_the_queue(invoice: Invoice) -> None:
    assert import_one(amount_cents=181).outcome == "matched"
    assert registry.open_cents(invoice) == 200
    done = import_one(bank_reference="B-2", amount_cents=250)
    assert (done.outcome, done.problem) == ("partly matched", "0.50 USD are more than was to be paid.")
    rest = BankLine.objects.get(bank_reference="B-2")
    assert (rest.state, rest.rest_cents, registry.open_cents(invoice), cash()) == ("open", 50, 0, 381)


def test_a_booking_of_a_time_zone_ahead_is_today(invoice: Invoice) -> None:
    tomorrow = timezone.now().date() + timedelta(days=1)
    assert import_one(booked_on=tomorrow).outcome == "matched"
    assert InvoicePayment.objects.get().paid_on == timezone.now().date()


def test_an_operator_assigns_what_arrived_before_the_invoice_was_issued(invoice: Invoice) -> None:
    assert import_one(booked_on=date(2026, 4, 4)).outcome == "open"
    assert assignment.assign(EVE, line().id, invoice.number).state == "matched"
    assert InvoicePayment.objects.get().paid_on == date(2026, 4, 4)
    assert "2026-04-04 is before" not in line().problem


def test_an_invoice_is_paid_on_days_of_its_issuers_time_zone(acme: Tenant) -> None:
    now = timezone.now()
    zone = next(name for name in ("Etc/GMT-14", "Etc/GMT+12") if now.astimezone(ZoneInfo(name)).date() != now.date())
    issuers.set_issuer(ADA, "berlin", {"timezone": zone})
    invoice = finalize(acme, now=now)
    assert invoice.issued_on == now.astimezone(ZoneInfo(zone)).date()
    assert import_one(booked_on=invoice.issued_on, amount_cents=100).outcome == "matched"
    with pytest.raises(InvoiceRefused, match="or in the future"):
        steps.pay(ADA, invoice, reference="Wire", paid_on=invoice.issued_on + timedelta(days=1), amount_cents=1)
    steps.pay(ADA, invoice, reference="Wire", paid_on=invoice.issued_on)
    assert registry.open_cents(invoice) == 0


@pytest.mark.parametrize("reference", ["B-1", "B" * 200])
def test_lines_of_two_accounts_with_one_reference_pay_one_invoice(invoice: Invoice, reference: str) -> None:
    for name in ("DE1", "DE2"):
        assert import_one(bank_account=name, bank_reference=reference, amount_cents=100).outcome == "matched"
    first, second = InvoicePayment.objects.order_by("id").values_list("reference", flat=True)
    assert (first, registry.open_cents(invoice), cash()) == (reference, 181, 200)
    assert second == "DE2 B-1" if reference == "B-1" else second.startswith("sha256:")


@pytest.fixture
def two(acme: Tenant, invoice: Invoice) -> tuple[Invoice, Invoice]:
    """Another invoice, of April and over as much."""
    store(row_at(MIDDLE + timedelta(days=31), TenantId(acme.id), tokens=(13_333_333, 0, 2_000_000)))
    return invoice, finalize(acme, 4, MIDDLE + timedelta(days=60))


def test_a_line_pays_several_invoices_only_if_it_has_all_of_them(two: tuple[Invoice, Invoice]) -> None:
    sums, later = sum(map(registry.open_cents, two)), date(2026, 6, 1)
    both = "INV-000002 und INV-000001"
    done = import_one(remittance=both, amount_cents=sums - 1, booked_on=later)
    assert (done.outcome, done.problem) == (
        "open",
        f"INV-000001, INV-000002: {sums / 100:.2f} is open together, {(sums - 1) / 100:.2f} arrived.",
    )
    assert cash() == 0
    done = import_one(bank_reference="B-2", remittance=both, amount_cents=sums, booked_on=later)
    assert (done.outcome, done.invoices, cash()) == ("matched", ("INV-000001", "INV-000002"), sums)
    assert set(Invoice.objects.values_list("state", flat=True)) == {"paid"}


def test_the_same_file_and_an_overlapping_one_change_nothing(invoice: Invoice) -> None:
    first = entry(amount_cents=181)
    importing.run(ADA, Statement(entries=[first]))
    before = (cash(), AuditEntry.objects.count())
    again = importing.run(EVE, Statement(entries=[first]))
    assert (dict(again.counts), (cash(), AuditEntry.objects.count())) == ({"known": 1}, before)
    over = importing.run(EVE, Statement(entries=[first, entry(bank_reference="B-2", amount_cents=200)]))
    assert (dict(over.counts), cash(), BankLine.objects.count()) == ({"known": 1, "matched": 1}, 381, 2)


def test_a_file_of_several_accounts_is_one_entry_of_the_audit_log(invoice: Invoice) -> None:
    names = ["A" * 64, "B" * 64]
    importing.run(ADA, Statement(entries=[entry(bank_account=name, remittance="?") for name in names]))
    found = AuditEntry.objects.get(action="payments.imported")
    assert (found.object_id, found.after) == ("2 accounts", {"accounts": names, "lines": {"open": 2}})


def test_a_line_that_comes_again_and_differs_refuses_the_file(invoice: Invoice) -> None:
    import_one(amount_cents=181)
    later = [entry(bank_reference="B-2", amount_cents=200), entry(amount_cents=180, place="line 3")]
    with pytest.raises(BadBankFile, match=r"line 3: 'B-1' was imported with another date or amount \(2026-04-10, 181"):
        importing.run(ADA, Statement(entries=later))
    assert (BankLine.objects.count(), cash()) == (1, 181)


def test_a_dry_run_reports_the_same_and_changes_nothing(invoice: Invoice) -> None:
    statement = Statement(entries=[entry(), entry(bank_reference="B-2", remittance="?")], outgoing=3)
    before = AuditEntry.objects.count()
    tried = importing.run(ADA, statement, dry_run=True)
    assert (BankLine.objects.count(), cash(), AuditEntry.objects.count()) == (0, 0, before)
    assert importing.run(ADA, statement) == tried
    assert (dict(tried.counts), cash()) == ({"matched": 1, "open": 1}, 381)


def test_an_operator_assigns_a_line_in_parts(two: tuple[Invoice, Invoice]) -> None:
    import_one(remittance="?", amount_cents=500, booked_on=date(2026, 6, 1))
    done = assignment.assign(EVE, line().id, "INV-000001", amount_cents=300)
    assert (done.state, done.rest_cents, registry.open_cents(two[0])) == ("open", 200, 81)
    with pytest.raises(PaymentRefused, match="has paid for INV-000001 already"):
        assignment.assign(EVE, line().id, "INV-000001")
    with pytest.raises(PaymentRefused, match=r"2\.01 was given, 2\.00 is left"):
        assignment.assign(EVE, line().id, "INV-000002", amount_cents=201)
    done = assignment.assign(EVE, line().id, "INV-000002")
    assert (done.state, done.rest_cents, done.problem, cash()) == ("matched", 0, "", 500)
    with pytest.raises(PaymentRefused, match="nothing of it is left to assign"):
        assignment.assign(EVE, line().id, "INV-000002")
    assert AuditEntry.objects.filter(action="payment.assigned", actor="eve").count() == 2


def test_what_cannot_be_assigned_changes_nothing(invoice: Invoice) -> None:
    import_one(remittance="?", currency="EUR")
    back = import_one(bank_reference="B-2", amount_cents=-5).entry
    before = AuditEntry.objects.count()
    for of, number, amount, error, problem in (
        ("B-1", "INV-000001", None, PaymentRefused, "it is in EUR, and INV-000001 is in USD"),
        (back.bank_reference, "INV-000001", None, PaymentRefused, "nothing of it is left"),
        ("B-1", "INV-000009", None, NotFound, "INV-000009"),
        ("B-1", "INV\0", None, NotFound, "INV"),
    ):
        with pytest.raises(error, match=problem):
            assignment.assign(ADA, BankLine.objects.get(bank_reference=of).id, number, amount_cents=amount)
    with pytest.raises(NotFound):
        assignment.assign(ADA, new_id(), "INV-000001")
    assert (cash(), AuditEntry.objects.count()) == (0, before)


@pytest.mark.parametrize("amount", [0, -5, 382])
def test_an_amount_is_at_most_what_is_open(invoice: Invoice, amount: int) -> None:
    import_one(remittance="?", amount_cents=1000)
    with pytest.raises(InvoiceRefused, match=f"{amount / 100:.2f} was given, 3.81 is open"):
        assignment.assign(ADA, line().id, "INV-000001", amount_cents=amount)
    assert (line().assigned_cents, cash()) == (0, 0)


def test_a_line_is_dismissed_with_a_reason_and_taken_back_into_use(invoice: Invoice) -> None:
    import_one(remittance="?")
    for reason in ("", " ", "a\0b", "x" * 501):
        with pytest.raises(PaymentRefused, match="it needs a reason"):
            assignment.dismiss(ADA, line().id, reason)
    assert assignment.dismiss(ADA, line().id, "A gift").state == "dismissed"
    assignment.dismiss(EVE, line().id, "A gift")
    assert (line().dismissed_by, AuditEntry.objects.filter(action="payment.dismissed").count()) == ("ada", 1)
    with pytest.raises(PaymentRefused, match="it is dismissed already"):
        assignment.dismiss(EVE, line().id, "Another")
    assert assignment.assign(EVE, line().id, "INV-000001").state == "matched"
    with pytest.raises(PaymentRefused, match="it is matched already"):
        assignment.dismiss(EVE, line().id, "Another")


def test_a_payment_that_was_recorded_by_hand_is_not_recorded_again(invoice: Invoice) -> None:
    steps.pay(EVE, invoice, reference="B-1", paid_on=date(2026, 4, 10), amount_cents=100)
    done = import_one(amount_cents=100)
    assert (done.outcome, cash()) == ("matched", 100)
    assert BankAssignment.objects.get().payment.recorded_by == "eve"


def test_what_the_bank_says_never_changes(invoice: Invoice) -> None:
    import_one(amount_cents=181)
    rls.grant("hearth_app")  # which owns no table
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")
    for change in ({"amount_cents": 5}, {"remittance": "?"}, {"assigned_cents": 182}):
        with pytest.raises(Error), transaction.atomic():
            BankLine.objects.update(**change)
    with pytest.raises(Error), transaction.atomic():
        BankAssignment.objects.update(assigned_by="eve")


@pytest.mark.django_db(transaction=True)
def test_two_imports_at_once_store_and_pay_once(invoice: Invoice) -> None:
    problems: list[BaseException] = []

    def run() -> None:
        try:
            importing.run(
                ADA, Statement(entries=[entry(bank_reference=f"B-{each}", amount_cents=20) for each in range(9)])
            )
        except BaseException as error:
            problems.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == []
    assert (BankLine.objects.count(), InvoicePayment.objects.count(), cash()) == (9, 9, 180)


def test_lines_beyond_what_is_paid_at_once_wait_for_a_run(invoice: Invoice) -> None:
    second = entry(bank_reference="B-2", amount_cents=200)
    statement = Statement(
        entries=[
            entry(amount_cents=181),
            entry(bank_reference="B-0", remittance="hello"),
            entry(bank_reference="B-3", came_back=True),
            second,
            entry(bank_reference="B-4"),
            second,
        ]
    )
    preview = importing.run(ADA, statement, dry_run=True, most_paid=1)
    assert not BankLine.objects.exists()
    report = importing.run(ADA, statement, most_paid=1)
    outcomes = [each.outcome for each in report.lines]
    assert outcomes == ["matched", "open", "open", "waiting", "waiting", "known"]
    assert [each.outcome for each in preview.lines] == outcomes
    stored = {each.bank_reference: each for each in BankLine.objects.all()}
    assert report.waiting == [stored["B-2"].id, stored["B-4"].id]
    assert (stored["B-2"].problem, stored["B-0"].problem) == (importing.WAITING, importing.NOTHING_NAMED)
    run = registry_of_runs.begin_matching(ADA, report.waiting[:1])
    assert registry_of_runs.begin_matching(EVE, report.waiting) == run
    assert not advancing.go_on()
    run.refresh_from_db()
    found = registry_of_runs.progress(run, 5)
    assert (found.total, found.counts["done"], found.counts["refused"], found.state) == (2, 1, 1, "finished")
    [left] = found.problems
    assert left.subject == "B-4" and "nothing is to be paid" in left.reason
    invoice.refresh_from_db()
    assert (invoice.state, cash()) == ("paid", 381)
    assert importing.match(ADA, stored["B-2"].id, []) == ("known", "")
    assert [each.outcome for each in importing.run(ADA, statement).lines] == ["known"] * 6
