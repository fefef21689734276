"""What is done about an invoice that is not paid: each step once, by the policy, until it is paid."""

from __future__ import annotations

import threading
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, connections, transaction
from django.utils import timezone

from alerting import checks
from billing import tasks
from billing.accounts import account, mail_addresses
from billing.dunning import cases, holding, policy, run, suspending
from billing.errors import BadDunning
from billing.invoices import issuers
from billing.invoices import steps as invoice_steps
from billing.models import DunningCase, DunningRun, DunningStep, Invoice
from billing.payments import failures, importing, retrying
from billing.payments.bank_statement import Entry, Statement
from notifications.mail import outgoing, texts
from notifications.models import Event, Mail
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Membership, Tenant, User
from tests.billing.dunning.conftest import DUE, WITH_SUSPENSION, at, run_until, steps
from tests.billing.invoices.conftest import ADA, NOW, SELLER

pytestmark = pytest.mark.django_db
ALL = [("reminder", 3), ("second_reminder", 10), ("notice", 20)]


def overdue(tenant: Tenant) -> bool:
    """Return whether the tenant's requests are refused because it has not paid."""
    return Tenant.objects.get(id=tenant.id).payment_overdue_since is not None


def events(tenant: Tenant, noun: str) -> list[dict[str, Any]]:
    """Return the data of the tenant's events."""
    rows = Event.objects.filter(tenant=tenant, type__startswith=f"hearth.{noun}.").order_by("id")
    return [each.data for each in rows]


def test_each_step_comes_once_on_its_day_and_nobody_is_suspended_by_default(acme: Tenant, invoice: Invoice) -> None:
    run_until(40)
    assert steps(invoice) == ALL
    assert run.run(at(40)) == run.Ran(steps=0, failures=0)
    assert not overdue(acme)
    found = events(acme, "invoice.reminded")
    assert [(each["step"], each["open"], each["days_late"], each["suspends_on"]) for each in found] == [
        ("reminder", "3.81", 3, None), ("second_reminder", "3.81", 10, None), ("notice", "3.81", 20, None),
    ]  # fmt: skip
    actions = AuditEntry.objects.filter(object_id=str(invoice.id), action__startswith="dunning.").order_by("id")
    assert [each.action for each in actions] == ["dunning.reminder", "dunning.second_reminder", "dunning.notice"]
    [case] = cases.read(at(40))
    assert (case.step, case.next_kind, case.next_on, case.days_late, case.open_cents) == ("notice", "", None, 40, 381)
    assert DunningRun.objects.filter(finished_at=None).count() == 0


@pytest.mark.usefixtures("suspending")
def test_a_suspension_begins_after_a_notice_and_ends_with_the_payment(acme: Tenant, invoice: Invoice) -> None:
    run_until(29)
    assert (steps(invoice), overdue(acme)) == (ALL, False)
    assert events(acme, "invoice.reminded")[-1]["suspends_on"] == str(DUE + timedelta(days=30))
    run.run(at(30))
    assert (steps(invoice)[-1], overdue(acme)) == (("suspension", 30), True)
    assert Tenant.objects.get(id=acme.id).state == "active"
    assert [each["invoices"] for each in events(acme, "payment_suspension")] == [["INV-000001"]]
    invoice_steps.pay(ADA, invoice, reference="Wire 1", paid_on=date(2026, 4, 30), amount_cents=380)
    run.run(at(31))
    assert overdue(acme)  # a cent is open
    invoice_steps.pay(ADA, invoice, reference="Wire 2", paid_on=date(2026, 4, 30))
    assert not overdue(acme)
    assert "lifted_at" in events(acme, "payment_suspension")[-1]
    run.run(at(50))
    assert (len(steps(invoice)), overdue(acme), cases.read(at(50))) == (4, False, [])


@pytest.mark.usefixtures("suspending")
def test_a_bank_line_a_void_and_a_second_invoice(acme: Tenant, invoice: Invoice) -> None:
    run_until(31)
    assert overdue(acme)
    line = Entry(
        place="1", bank_account="DE89", bank_reference="B-1", booked_on=date(2026, 5, 20), amount_cents=381,
        currency="USD", payer="", remittance="INV-000001",
    )  # fmt: skip
    importing.run(ADA, Statement(entries=[line]))
    assert not overdue(acme)
    run.run(at(32))
    assert not overdue(acme)


@pytest.mark.usefixtures("suspending")
def test_a_void_ends_it_and_the_operators_own_suspension_stays(acme: Tenant, invoice: Invoice) -> None:
    from tenants import registry

    run_until(31)
    registry.suspend(ADA, acme)
    assert invoice_steps.void(ADA, invoice, "a dispute", now=NOW) is not None
    acme.refresh_from_db()
    assert (acme.state, acme.payment_overdue_since) == ("suspended", None)
    run.run(at(60))
    assert len(steps(invoice)) == 4


@pytest.mark.usefixtures("suspending")
def test_a_grace_serves_the_tenant_until_its_day_is_over(acme: Tenant, invoice: Invoice) -> None:
    run_until(31)
    with pytest.raises(BadDunning, match="give one of 1 to 500"):
        holding.hold(ADA, acme, " ", now=at(31))
    with pytest.raises(BadDunning, match="use a date from 2026-05-20 to"):
        holding.hold(ADA, acme, "promised", until=DUE, now=at(31))
    holding.hold(ADA, acme, "promised to pay on Friday", until=DUE + timedelta(days=34), now=at(31))
    assert not overdue(acme)
    [case] = cases.read(at(32))
    assert case.hold is not None and case.hold.reason == "promised to pay on Friday"
    run.run(at(34, hour=23))
    assert not overdue(acme)
    run.run(at(35, hour=0))
    assert overdue(acme)
    assert ["invoices" in each for each in events(acme, "payment_suspension")] == [True, False, True]
    assert len(steps(invoice)) == 4


@pytest.mark.usefixtures("suspending")
def test_a_payment_that_is_undone_suspends_nobody_whom_a_grace_serves(acme: Tenant, invoice: Invoice) -> None:
    run_until(31)
    payment, _ = invoice_steps.pay(ADA, invoice, reference="Wire", paid_on=date(2026, 4, 30))
    holding.hold(ADA, acme, "promised", until=DUE + timedelta(days=40), now=at(32))
    invoice_steps.undo_payment(ADA, payment.id, "it went back")
    run.run(at(33))
    assert not overdue(acme)
    run.run(at(41))
    assert overdue(acme)
    assert ["invoices" in each for each in events(acme, "payment_suspension")] == [True, False, True]


def test_a_tenants_first_policy_takes_the_rest_from_the_issuer_of_its_invoices(acme: Tenant, invoice: Invoice) -> None:
    prefixes = {"invoice_prefix": "O-", "credit_note_prefix": "OC-"}
    issuers.set_issuer(ADA, "other", SELLER | prefixes, make_default=True)
    policy.set_policy(ADA, {"reminder_days": 5, "suspension_days": 45}, issuer="other")
    policy.set_policy(ADA, {"suspension_days": 30}, issuer="berlin")
    own = policy.set_policy(ADA, {"notice_days": 25}, tenant=acme)
    assert own == policy.Policy(notice_days=25, suspension_days=30)
    globex = Tenant.objects.create(slug="globex", name="Globex")
    own = policy.set_policy(ADA, {"notice_days": 25}, tenant=globex)
    assert own == policy.Policy(reminder_days=5, notice_days=25, suspension_days=None)


def test_a_held_invoice_gets_no_step_and_later_ones_keep_their_distance(acme: Tenant, invoice: Invoice) -> None:
    run_until(3)
    held = holding.hold(ADA, acme, "disputed", invoice=invoice, now=at(4))
    run_until(25, start=4)
    assert steps(invoice) == [("reminder", 3)]
    holding.end(ADA, held.id, now=at(26))
    assert holding.end(ADA, held.id, now=at(27)).ended_at == at(26)
    run_until(60, start=26)
    assert steps(invoice) == [("reminder", 3), ("second_reminder", 26), ("notice", 36)]


def test_dunning_that_did_not_run_for_months_begins_with_a_reminder(acme: Tenant, invoice: Invoice) -> None:
    policy.set_policy(ADA, WITH_SUSPENSION)
    run_until(140, start=100)
    assert steps(invoice) == [("reminder", 100), ("second_reminder", 107), ("notice", 117), ("suspension", 127)]


def test_a_policy_that_changes_midway_holds_from_the_next_step_on(acme: Tenant, invoice: Invoice) -> None:
    run_until(5)
    policy.set_policy(ADA, {"second_reminder_days": None, "notice_days": 7, "suspension_days": 9})
    run_until(8, start=6)
    assert steps(invoice) == [("reminder", 3), ("notice", 7)]
    policy.set_policy(ADA, {"suspension_days": 8}, tenant=acme)
    run.run(at(8))
    assert overdue(acme)
    policy.set_policy(ADA, {"suspension_days": 12}, tenant=acme)
    run.run(at(9))
    assert not overdue(acme)
    policy.set_policy(ADA, {"suspension_days": None}, tenant=acme)
    run.run(at(20))
    assert not overdue(acme)
    assert policy.remove(ADA, tenant=acme) and not policy.remove(ADA, tenant=acme)
    run.run(at(21))
    assert overdue(acme)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"reminder_days": 0}, "reminder_days: use a whole number from 1 to 365"),
        ({"reminder_days": "3"}, "reminder_days: use a whole number"),
        ({"reminder_days": 10}, "second_reminder_days: must be more than reminder_days, which is 10"),
        ({"suspension_days": 20}, "suspension_days: must be more than notice_days, which is 20"),
        ({"notice_days": None, "suspension_days": 30}, "notice_days: a suspension needs a notice before it"),
        ({"fee": 5}, "fee: is nothing of a policy"),
    ],
)
@pytest.mark.usefixtures("issuer")
def test_a_wrong_policy_changes_nothing(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadDunning, match=problem):
        policy.set_policy(ADA, changes)
    assert policy.of_issuer() == policy.DEFAULT


def test_little_that_is_open_is_left_alone(acme: Tenant, invoice: Invoice) -> None:
    policy.set_policy(ADA, {"least_open_cents": 100})
    invoice_steps.pay(ADA, invoice, reference="Wire", paid_on=date(2026, 4, 10), amount_cents=282)
    run_until(20)
    assert steps(invoice) == []


def test_the_day_is_the_tenants(acme: Tenant, invoice: Invoice) -> None:
    Tenant.objects.filter(id=acme.id).update(billing_timezone="Pacific/Auckland")
    assert at(2).astimezone(ZoneInfo("Pacific/Auckland")).date() == DUE + timedelta(days=3)
    run.run(at(2, hour=11))
    assert steps(invoice) == []
    run.run(at(2, hour=12))
    assert steps(invoice) == [("reminder", 3)]


def test_a_failed_payment_enters_dunning_before_the_invoice_is_due(acme: Tenant, invoice: Invoice) -> None:
    failures.note(SYSTEM, invoice, reference="ch_1", reason="declined", failed_on=DUE - timedelta(days=10))
    policy.set_policy(ADA, {"second_reminder_days": None, "notice_days": 4, "suspension_days": 5})
    run_until(0, start=-8)
    assert steps(invoice) == [("reminder", -7)]
    event = Event.objects.get(type="hearth.invoice.reminded.v1")
    assert event.data["days_late"] == 0
    assert f"3.81 USD are due by {DUE}" in texts.of(event).body
    run_until(4, start=1)
    assert (steps(invoice)[1:], overdue(acme)) == ([("notice", 4)], False)
    assert "were due by" in texts.of(Event.objects.filter(type=event.type).latest("id")).body
    run.run(at(5))
    assert overdue(acme)


def test_billing_addresses_and_members_get_each_step(acme: Tenant, invoice: Invoice, settings: Any) -> None:
    settings.EMAIL_IS_SENT = True
    account.change(ADA, acme, billing_emails=["ap@acme.example", "Bea@acme.example"])
    for address in ("ap@acme.example", "bea@acme.example"):
        mail_addresses.confirm(ADA, acme, address)
    for name, role in (("bea", "billing"), ("dev", "developer")):
        user = User.objects.create(username=name, email=f"{name}@acme.example")
        Membership.objects.create(user=user, tenant=acme, role=role)
    run_until(20)
    for event in Event.objects.filter(type="hearth.invoice.reminded.v1").order_by("id"):
        assert outgoing.make(event) == 2
    assert sorted(Mail.objects.values_list("address", flat=True)) == ["ap@acme.example"] * 3 + ["bea@acme.example"] * 3
    subjects = [
        texts.of(each).subject for each in Event.objects.filter(type="hearth.invoice.reminded.v1").order_by("id")
    ]
    assert subjects == [
        "Acme: reminder of invoice INV-000001",
        "Acme: second reminder of invoice INV-000001",
        "Acme: last notice about invoice INV-000001",
    ]


def test_an_invoice_that_fails_does_not_stop_the_others(
    acme: Tenant, invoice: Invoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = policy.of_invoice

    def broken(given: Invoice) -> policy.Policy:
        if given.id == invoice.id:
            raise ValueError("broken")
        return real(given)

    monkeypatch.setattr(policy, "of_invoice", broken)
    assert run.run(at(3)) == run.Ran(steps=0, failures=1)
    monkeypatch.undo()
    assert run.run(at(3)) == run.Ran(steps=1, failures=0)
    assert list(DunningRun.objects.order_by("id").values_list("failures", flat=True)) == [1, 0]


@pytest.mark.usefixtures("suspending")
def test_a_tenant_or_a_bank_line_that_fails_does_not_stop_the_run(
    acme: Tenant, invoice: Invoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until(31)

    def broken(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(suspending, "review", broken)
    monkeypatch.setattr(retrying, "run", broken)
    assert tasks.dun() == 0
    last = DunningRun.objects.latest("id")
    assert (last.failures, last.finished_at is not None) == (1, True)


def test_dunning_that_never_ran_through_is_an_alert_once_an_invoice_is_late(invoice: Invoice) -> None:
    now = timezone.now()
    row = DunningRun.objects.create(started_at=now)
    assert not list(checks.dunning_late())
    Invoice.objects.filter(id=invoice.id).update(overdue_at=now - timedelta(hours=3))
    [problem] = checks.dunning_late()
    assert problem.summary == "Dunning has never run through, and invoices are late."
    Invoice.objects.filter(id=invoice.id).update(overdue_at=None)
    DunningRun.objects.filter(id=row.id).update(started_at=now - timedelta(hours=3))
    [problem] = checks.dunning_late()
    assert problem.summary == "A run of dunning that began over two hours ago is not through."
    run.run(now)
    assert not list(checks.dunning_late())


def test_a_step_cannot_be_taken_twice(invoice: Invoice) -> None:
    fields: dict[str, Any] = {"tenant_id": invoice.tenant_id, "kind": "reminder", "taken_on": DUE}
    DunningStep.objects.create(invoice=invoice, **fields)
    with pytest.raises(IntegrityError), transaction.atomic():
        DunningStep.objects.create(invoice=invoice, **fields)


@pytest.mark.django_db(transaction=True)
def test_two_runs_at_once_take_each_step_once(acme: Tenant, invoice: Invoice) -> None:
    gate = threading.Barrier(2)

    def one() -> None:
        try:
            gate.wait()
            run.run(at(3))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=one) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert steps(invoice) == [("reminder", 3)]
    assert (DunningCase.objects.count(), Event.objects.filter(type="hearth.invoice.reminded.v1").count()) == (1, 1)
