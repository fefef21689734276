"""The ledger is verified: what is right passes, and each kind of tampering is found where it was done."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.utils import timezone

from billing.accounts import credits
from billing.accounts.credits import NewCredit
from billing.models import LedgerEntry
from billing.months import closing, reopening
from billing.pricing.prices import DEMO_RATES
from billing.reports.statements import Month
from reconciliation import ledger
from reconciliation.models import BookGap
from reconciliation.run import compare
from tenants.audit import Actor
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
OF = "(SELECT id FROM billing_ledgeraccount WHERE kind = '{}')"


@pytest.fixture
def acme() -> Tenant:
    """A tenant with usage in two months, credit of both kinds, a month that was reopened and one that is closed."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    for days in (0, 1, 31):
        store(row_at(MIDDLE + timedelta(days=days), TenantId(tenant.id), tokens=(20_000_000, 0, 0)))
    expires_at = timezone.now() + timedelta(days=9)
    credits.submit(ADA, tenant, "1", NewCredit(kind="top_up", amount_pico=10 * 10**12))
    credits.submit(ADA, tenant, "2", NewCredit(kind="promotion", amount_pico=2 * 10**12, expires_at=expires_at))
    march = Month(tenant=tenant, year=2026, month=3)
    closing.close(ADA, march)
    reopening.request(ADA, march, "why")
    reopening.confirm(EVE, march)
    closing.close(ADA, march)
    return tenant


def tamper(table: str, statement: str) -> None:
    """Change rows in spite of the triggers, as the owner of a table can."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(statement)


def differing() -> dict[str, list[tuple[str, int, int]]]:
    return {
        check.name: [(each.subject, each.expected, each.found) for each in check.differences]
        for check in ledger.verify().checks
        if check.differences
    }


def test_what_is_right_passes_and_balances_sum_to_zero(acme: Tenant) -> None:
    found = ledger.verify()
    assert (found.is_right, differing()) == (True, {})
    assert sum(each.amount_pico for each in found.balances) == 0
    units = {each.kind: each.amount_pico // 10**12 for each in found.balances}
    # 6.00 of March are paid: 2.00 by the promotion, 4.00 prepaid. 3.00 of April are owed.
    assert (units["cash"], units["prepaid"], units["promotion"], units["receivable"]) == (10, -6, 0, 3)


def test_a_changed_entry_is_found(acme: Tenant) -> None:
    entry = LedgerEntry.objects.filter(account__kind="receivable", transaction__kind="usage").order_by("id")[0]
    tamper(
        "billing_ledgerentry", f"UPDATE billing_ledgerentry SET amount_pico = amount_pico + 1 WHERE id = '{entry.id}'"
    )
    found = differing()
    assert found["balanced"] == [(entry.transaction.source, 0, 1)]
    assert found["as-charged"] == [(entry.transaction.source, int(entry.amount_pico), int(entry.amount_pico) + 1)]
    assert [month for month, *_ in found["closed-months"]] == ["2026-03"]


def test_a_posting_that_was_changed_on_both_sides_is_found(acme: Tenant) -> None:
    tamper("billing_ledgerentry", "UPDATE billing_ledgerentry SET amount_pico = amount_pico * 2")
    assert set(differing()) == {"as-charged", "credit-posted", "unused-credit", "closed-months"}


@pytest.mark.parametrize(
    ("table", "statement", "names"),
    [
        (
            "billing_ledgertransaction",
            "UPDATE billing_ledgertransaction SET usage_ids = '{}' WHERE kind = 'usage'",
            {"all-posted"},
        ),
        (
            "billing_ledgertransaction",
            "UPDATE billing_ledgertransaction SET usage_ids = (SELECT usage_ids FROM billing_ledgertransaction "
            "WHERE kind = 'usage' ORDER BY source LIMIT 1) WHERE kind = 'usage'",
            {"posted-once", "all-posted"},
        ),
        (
            "billing_creditentry",
            "UPDATE billing_creditentry SET amount_pico = amount_pico + 5 WHERE kind = 'top_up'",
            {"credit-posted", "unused-credit"},
        ),
        (
            "billing_creditentry",
            "UPDATE billing_creditentry SET amount_pico = -amount_pico WHERE kind = 'promotion'",
            {"credit-posted", "unused-credit", "not-below-zero"},
        ),
        (
            "billing_creditentry",
            "DELETE FROM billing_creditentry WHERE kind = 'unapplied'",
            {"unused-credit", "not-below-zero", "returned"},
        ),
        (
            "billing_ledgeraccount",
            "UPDATE billing_ledgeraccount SET currency = 'EUR' WHERE kind = 'cash'",
            {"one-currency"},
        ),
        (
            "billing_ledgeraccount",
            "UPDATE billing_ledgeraccount SET tenant_id = gen_random_uuid() WHERE kind = 'cash'",
            {"own-accounts"},
        ),
    ],
)
def test_each_kind_of_tampering_is_found(acme: Tenant, table: str, statement: str, names: set[str]) -> None:
    tamper(table, statement)
    assert set(differing()) == names


def test_requests_before_a_moment_can_be_left_out(acme: Tenant) -> None:
    tamper("billing_ledgertransaction", "UPDATE billing_ledgertransaction SET usage_ids = '{}' WHERE kind = 'usage'")
    since = MIDDLE + timedelta(days=20)
    [check] = [each for each in ledger.verify(since).checks if each.differences]
    assert (check.name, len(check.differences)) == ("all-posted", 1)


def test_the_hourly_comparison_finds_what_the_command_finds_and_forgets_it_when_it_is_mended(acme: Tenant) -> None:
    since = MIDDLE.replace(day=1)
    ledger.compare(MIDDLE, since)
    assert not BookGap.objects.exists()
    tamper("billing_creditentry", "UPDATE billing_creditentry SET amount_pico = amount_pico + 5 WHERE kind = 'top_up'")
    ledger.compare(MIDDLE, since)
    gaps = BookGap.objects.order_by("book").values_list("tenant_id", "month", "book", "usage_pico", "book_pico")
    ten = 10 * 10**12
    assert [(*of, int(usage), int(book)) for *of, usage, book in gaps] == [
        (acme.id, "2026-03", "credit-posted", ten + 5, ten),
        (acme.id, "2026-03", "unused-credit", 6 * 10**12 + 5, 6 * 10**12),
    ]
    assert compare().book_gaps >= 2  # the alert counts them
    tamper("billing_creditentry", "UPDATE billing_creditentry SET amount_pico = amount_pico - 5 WHERE kind = 'top_up'")
    compare()
    assert not BookGap.objects.filter(book__in=ledger.CHECKS).exists()


def test_the_checks_have_the_names_that_gaps_may_have() -> None:
    assert set(ledger.CHECKS) < set(BookGap.Book.values)
