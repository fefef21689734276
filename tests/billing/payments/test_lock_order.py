"""Two transactions about the same invoices take their locks in one order: one waits, and both succeed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import date

import pytest
from django.db import connection, connections, transaction

from billing import second_person
from billing.accounts import account
from billing.dunning import holding
from billing.invoices import registry, steps
from billing.models import BankLine, DunningCase, Invoice, InvoicePayment
from billing.payments import assignment, importing
from billing.payments.bank_statement import Statement
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA, EVE, MIDDLE, finalize
from tests.billing.payments.conftest import entry
from tests.billing.usage_records import row_at, store

PAID_ON = date(2026, 4, 10)

pytestmark = pytest.mark.django_db(transaction=True)


def both(first: Callable[[], object], other: Callable[[], object], second: Callable[[], object]) -> None:
    """Run ``first`` and ``second`` in a transaction, between them ``other`` on another connection, till it waits."""
    problems: list[BaseException] = []

    def run() -> None:
        try:
            other()
        except BaseException as error:
            problems.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    try:
        with transaction.atomic():
            first()
            thread.start()
            while thread.is_alive() and not is_waited_for():
                time.sleep(0.005)
            second()
    finally:
        thread.join()
    assert problems == []


def is_waited_for() -> bool:
    """Return whether another transaction waits for this one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))")
        return cursor.fetchone() is not None


def lock(tenant: Tenant) -> None:
    """Lock a tenant, as paying one of its invoices in full does."""
    Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)


def pay(invoice: Invoice) -> None:
    """Record a payment of all that is open, as an operator does."""
    steps.pay(EVE, invoice, reference="Wire", paid_on=PAID_ON)


@pytest.fixture
def later(acme: Tenant, invoice: Invoice) -> Invoice:
    """The invoice of the same tenant for the next month."""
    store(row_at(MIDDLE.replace(month=4), TenantId(acme.id), tokens=(13_333_333, 0, 2_000_000)))
    return finalize(acme, 4)


def test_a_payment_is_recorded_while_an_import_is_previewed(invoice: Invoice, later: Invoice) -> None:
    lines = [
        entry(),
        entry(bank_reference="B-2", remittance=later.number),
    ]

    def preview() -> None:
        importing.run(ADA, Statement(entries=lines), dry_run=True)

    both(lambda: registry.locked(later), preview, lambda: pay(later))
    assert InvoicePayment.objects.get().invoice_id == later.id
    assert not BankLine.objects.exists()


@pytest.mark.long
def test_two_previews_of_the_same_lines_and_an_import_of_them(invoice: Invoice, later: Invoice) -> None:
    lines = [entry(), entry(bank_reference="B-2", remittance=later.number)]

    def backwards() -> None:
        importing.run(EVE, Statement(entries=lines[::-1]))

    def preview() -> None:
        importing.run(ADA, Statement(entries=lines), dry_run=True)

    both(preview, backwards, preview)
    assert BankLine.objects.filter(state=BankLine.State.MATCHED).count() == 2


def test_a_payment_is_recorded_while_its_invoice_is_held(acme: Tenant, invoice: Invoice) -> None:
    def hold() -> None:
        holding.hold(ADA, acme, "disputed", invoice=invoice)

    both(lambda: registry.locked(invoice), hold, lambda: pay(invoice))
    assert Invoice.objects.get().state == Invoice.State.PAID


@pytest.mark.long
def test_a_payment_waits_for_the_tenant_before_its_dunning(acme: Tenant, invoice: Invoice) -> None:
    DunningCase.objects.create(tenant_id=acme.id, invoice=invoice, starts_on=PAID_ON)

    def change_the_case() -> None:
        DunningCase.objects.update(suspends_since=MIDDLE)

    both(lambda: lock(acme), lambda: pay(invoice), change_the_case)
    assert DunningCase.objects.get().suspends_since is None


@pytest.mark.long
def test_invoices_of_several_tenants_are_paid_in_the_order_of_the_tenants(acme: Tenant, invoice: Invoice) -> None:
    beta = Tenant.objects.create(slug="beta", name="Beta", id=acme.id.__class__(int=acme.id.int - 1))
    account.change(ADA, beta, country="DE")
    store(row_at(MIDDLE, TenantId(beta.id), tokens=(13_333_333, 0, 2_000_000)))
    other = finalize(beta)
    line = BankLine.objects.create(
        bank_account="x", bank_reference="B-1", booked_on=PAID_ON, amount_cents=762, currency="USD",
        imported_by=second_person.person(ADA),
    )  # fmt: skip

    @transaction.atomic
    def pay_both() -> None:
        assignment.pay_all(ADA, BankLine.objects.select_for_update().get(id=line.id), [other.id, invoice.id])

    both(lambda: lock(beta), pay_both, lambda: lock(acme))
    assert set(Invoice.objects.values_list("state", flat=True)) == {Invoice.State.PAID}
