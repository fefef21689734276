"""The terms of a plan in the months of a tenant: estimates while one is open, postings once it is closed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import Error, connection, transaction
from django.db.models import Sum

from billing.errors import MixedCurrencies, NotClosed
from billing.models import LedgerEntry, LedgerTransaction, MonthTermsLine, Plan
from billing.months import closing, reopening
from billing.plans.calculation import TermsLine
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from billing.reports.statements import Month, Statement
from tenants.audit import Actor
from tenants.database import rls
from tenants.ids import TenantId
from tenants.models import AuditEntry, Project, Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
MARCH, APRIL = date(2026, 3, 1), date(2026, 4, 1)
#: Of 30 uncached and 10 cached prompt tokens and 7 completion tokens, at the demo's prices.
ONE = 30 * 150_000 + 10 * 15_000 + 7 * 600_000
TENTH_AND_MINIMUM = {"discounts": [{"percent": 10}], "minimum": "2.00"}
TWO_DOLLARS = 2 * 10**12
#: A tenth of 8,850,000; then what is due rounds to nothing, and two dollars are missing.
LINES = (
    TermsLine(kind="discount", text="10 % less", amount_pico=-ONE // 10, currency="USD"),
    TermsLine(kind="minimum", text="Up to the minimum of 2.00", amount_pico=TWO_DOLLARS, currency="USD"),
)
DUE = ONE - ONE // 10 + TWO_DOLLARS


@pytest.fixture
def acme() -> Tenant:
    """A tenant with one request in March, and a plan from March on."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(tenant.id)))
    assign_from(MARCH, tenant, plan_from(MARCH, TENTH_AND_MINIMUM))
    return tenant


def month(tenant: Tenant, number: int = 3) -> Month:
    return Month(tenant=tenant, year=2026, month=number)


def read(tenant: Tenant, number: int = 3) -> Statement:
    return statements.statement(TenantId(tenant.id), 2026, number)


def owed(tenant: Tenant) -> int:
    """Return all that the tenant owes, whatever it is for."""
    debits = LedgerEntry.objects.filter(account__kind="receivable", account__tenant_id=tenant.id)
    return int(debits.aggregate(total=Sum("amount_pico"))["total"])


def as_app() -> None:
    rls.grant("hearth_app")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")


def test_an_open_month_shows_an_estimate_and_posts_nothing(acme: Tenant) -> None:
    found = read(acme)
    assert (found.plan, found.terms, found.usage_pico, found.amount_pico) == ("gold", LINES, ONE, DUE)
    assert (found.amount_cents, found.ledger_pico, found.equals_ledger, owed(acme)) == (200, ONE, True, ONE)
    assert not MonthTermsLine.objects.exists()


def test_closing_posts_each_line_once_and_freezes_it(acme: Tenant) -> None:
    before = read(acme)
    as_app()
    closed, new = closing.close(ADA, month(acme))
    assert new and closed.amount_pico == DUE == owed(acme)
    postings = LedgerTransaction.objects.filter(kind="terms").order_by("source")
    assert [each.source for each in postings] == [f"terms:{closed.id}:0", f"terms:{closed.id}:1"]
    for posting, line in zip(postings, LINES, strict=True):
        entries = dict(posting.entries.values_list("account__kind", "amount_pico"))
        assert entries == {"receivable": line.amount_pico, "revenue": -line.amount_pico}
    found = read(acme)
    assert found == replace(before, closed_at=closed.closed_at, revision=1, ledger_pico=DUE)
    assert found.equals_ledger
    entry = AuditEntry.objects.get(action="month.closed")
    assert entry.after is not None
    assert (entry.after["amount_pico"], entry.after["terms_pico"]) == (DUE, DUE - ONE)
    assert closing.close(ADA, month(acme)) == (closed, False)
    assert (owed(acme), MonthTermsLine.objects.count()) == (DUE, 2)


def test_the_months_after_a_tenant_was_archived_have_no_terms(acme: Tenant) -> None:
    assert read(acme, 4).amount_pico == TWO_DOLLARS
    Tenant.objects.filter(id=acme.id).update(archived_at=MIDDLE, state=Tenant.State.ARCHIVED)
    assert (read(acme).terms, read(acme, 4).amount_pico) == (LINES, 0)


def test_a_closed_month_differs_once_a_posting_or_a_line_does(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    with connection.cursor() as cursor:  # the test's role owns the tables
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_monthtermsline DISABLE TRIGGER append_only")
        cursor.execute("UPDATE billing_monthtermsline SET amount_pico = amount_pico - 1 WHERE position = 0")
    assert not read(acme).equals_ledger
    with connection.cursor() as cursor:
        cursor.execute("UPDATE billing_monthtermsline SET amount_pico = amount_pico + 1 WHERE position = 0")
        assert read(acme).equals_ledger
        cursor.execute("DELETE FROM billing_monthtermsline WHERE position = 0")
    assert read(acme).ledger_pico == ONE + TWO_DOLLARS


def test_a_month_with_a_stray_posting_stays_open(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    reopening.request(ADA, month(acme), "why")
    reopening.confirm(EVE, month(acme))
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_monthtermsline DISABLE TRIGGER append_only")
        cursor.execute("DELETE FROM billing_monthtermsline WHERE is_reversal AND position = 0")
    assert not read(acme).equals_ledger
    with pytest.raises(NotClosed, match=f"its lines sum to {ONE} pico-units, the ledger has {ONE - ONE // 10}"):
        closing.close(ADA, month(acme))


def test_reopening_reverses_and_the_next_closing_posts_again(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    reopening.request(ADA, month(acme), "why")
    assert owed(acme) == DUE
    as_app()
    reopening.confirm(EVE, month(acme))
    found = read(acme)
    assert (owed(acme), found.ledger_pico, found.terms, found.equals_ledger) == (ONE, ONE, LINES, True)
    store(row_at(MIDDLE, TenantId(acme.id)))
    again, _ = closing.close(ADA, month(acme))
    expected = 2 * ONE - 2 * ONE // 10 + TWO_DOLLARS
    assert (again.revision, int(again.amount_pico), owed(acme), read(acme).equals_ledger) == (
        2,
        expected,
        expected,
        True,
    )
    assert MonthTermsLine.objects.count() == 2 * 3


def test_a_month_without_usage_costs_the_minimum(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    closing.close(ADA, month(acme, 4))
    april = read(acme, 4)
    assert (april.lines, [each.kind for each in april.terms], april.amount_cents) == ((), ["minimum"], 200)
    assert april.equals_ledger and owed(acme) == DUE + TWO_DOLLARS


def test_late_usage_counts_in_the_month_on_which_it_is_billed(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    march = read(acme)
    store(row_at(MIDDLE, TenantId(acme.id)))
    assert read(acme) == march
    april = read(acme, 4)
    assert {line.adjusts_month for line in april.lines} == {"2026-03"}
    assert april.terms == LINES
    closing.close(ADA, month(acme, 4))
    assert read(acme, 4).equals_ledger and owed(acme) == 2 * DUE


def test_a_version_and_a_tenants_plan_hold_from_their_month_on(acme: Tenant) -> None:
    plan_from(APRIL, {"discounts": [{"percent": 20}]})
    assign_from(date(2026, 6, 1), acme, None)
    for number in (4, 5, 6):
        store(row_at(datetime(2026, number, 2, tzinfo=UTC), TenantId(acme.id)))
    assert [read(acme, number).amount_pico - ONE for number in (4, 5, 6)] == [-ONE // 5, -ONE // 5, 0]
    assert [read(acme, number).plan for number in (2, 3, 5, 6)] == [None, "gold", "gold", None]


def test_one_project_has_no_terms(acme: Tenant) -> None:
    project = Project.objects.create(tenant=acme, slug="hr", name="HR")
    found = statements.statement(TenantId(acme.id), 2026, 3, project)
    assert (found.terms, found.plan, found.amount_pico) == ((), None, 0)


def test_a_plan_in_another_currency_than_the_charges_closes_nothing(acme: Tenant) -> None:
    with connection.cursor() as cursor:  # the test's role owns the table
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute("ALTER TABLE billing_plan DISABLE TRIGGER append_only")
        cursor.execute("UPDATE billing_plan SET currency = 'EUR'")
    with pytest.raises(MixedCurrencies):
        read(acme)
    with pytest.raises(NotClosed, match="charged in EUR, USD"):
        closing.close(ADA, month(acme))


def test_the_csv_has_the_terms(acme: Tenant) -> None:
    rows = list(statements.csv_rows(read(acme)))
    assert rows[4] == ("", "discount", "", "", "", "-885000", "-0.000000885", "USD", "", "10 % less", "")
    assert [(row[1], row[5]) for row in rows[5:]] == [
        ("minimum", str(TWO_DOLLARS)),
        ("total", str(DUE)),
        ("rounding", str(TWO_DOLLARS - DUE)),
        ("due", str(TWO_DOLLARS)),
    ]


def test_another_tenant_sees_neither_the_plan_nor_the_lines(acme: Tenant) -> None:
    stranger = Tenant.objects.create(slug="globex", name="Globex")
    closing.close(ADA, month(acme))
    with rls.as_tenant(TenantId(acme.id)):
        assert read(acme).terms == LINES and read(acme, 4).plan == "gold"
    with rls.as_tenant(TenantId(stranger.id)):
        assert (read(stranger).terms, read(stranger).plan) == ((), None)
        assert not Plan.objects.exists() and not MonthTermsLine.objects.exists()


def test_no_process_changes_terms_whose_month_has_begun(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    next_year = date.today().replace(day=1, month=1).replace(year=date.today().year + 1)
    assign_from(next_year, acme, None)
    plan_from(next_year, {})
    as_app()
    past, future = (f"from_month {sign} now()" for sign in ("<", ">"))
    for statement in (
        f"UPDATE billing_planversion SET terms = '{{}}' WHERE {past}",
        f"UPDATE billing_planversion SET from_month = '2026-01-01' WHERE {future}",
        f"DELETE FROM billing_planversion WHERE {future}",
        f"UPDATE billing_tenantplan SET plan_id = NULL WHERE {past}",
        f"DELETE FROM billing_tenantplan WHERE {past}",
        "UPDATE billing_plan SET currency = 'EUR'",
        "DELETE FROM billing_monthtermsline",
        "UPDATE billing_monthtermsline SET amount_pico = 0",
        "INSERT INTO billing_planversion SELECT gen_random_uuid(), from_month, '{}', now(), plan_id"
        " FROM billing_planversion LIMIT 1",
    ):
        with pytest.raises(Error), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE billing_planversion SET terms = '{{}}' WHERE {future}")
        assert cursor.rowcount == 1
