"""Credit that pays for closed months, in its order, and comes back when a month is reopened."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from billing.accounts import application, balance, credits, entries, promotions
from billing.accounts.balance import Part
from billing.accounts.credits import NewCredit
from billing.models import BillingMonth, CreditEntry
from billing.months import closing, reopening
from billing.pricing.prices import DEMO_RATES
from billing.reports import statements
from billing.reports.statements import Month
from reconciliation import closed_months
from reconciliation.models import BookGap
from tenants.audit import Actor
from tenants.ids import TenantId, new_id
from tenants.models import AuditEntry, Tenant
from tests.billing.months.test_terms_posting import owed
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
CENT = 10**10
#: 20 million uncached prompt tokens at the demo's price.
THREE_DOLLARS = (20_000_000, 0, 0)


@pytest.fixture
def acme() -> Tenant:
    """A tenant that used 3.00 in March."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(tenant.id), tokens=THREE_DOLLARS))
    return tenant


def give(tenant: Tenant, cents: int, days: int | None = None) -> CreditEntry:
    """Give credit in cents: a promotion for so many days, or prepaid."""
    expires_at = None if days is None else timezone.now() + timedelta(days=days)
    kind = "top_up" if days is None else "promotion"
    wanted = NewCredit(kind=kind, amount_pico=cents * CENT, expires_at=expires_at)
    return CreditEntry.objects.get(request=credits.submit(ADA, tenant, str(new_id()), wanted)[0])


def expired(tenant: Tenant, cents: int, at: datetime) -> CreditEntry:
    """Give a promotion that has expired since."""
    balance.lock(tenant.id)
    return entries.grant(tenant.id, "USD", cents * CENT, at)


def march(tenant: Tenant) -> Month:
    return Month(tenant=tenant, year=2026, month=3)


def close(tenant: Tenant) -> BillingMonth:
    return closing.close(ADA, march(tenant))[0]


def left(tenant: Tenant) -> tuple[int, list[int]]:
    """Return what is prepaid and what is left of each promotion, in cents."""
    found = balance.of(tenant.id)
    return found.prepaid_pico // CENT, [each.left_pico // CENT for each in found.promotions]


def test_promotions_pay_first_the_next_to_expire_before_others_then_what_is_prepaid(acme: Tenant) -> None:
    give(acme, 500)
    give(acme, 70, days=9)
    give(acme, 50, days=3)
    closed = close(acme)
    assert (left(acme), owed(acme)) == ((500 - 180, []), 0)
    paid = [(each.promotion_id is None, int(each.amount_pico) // CENT) for each in closed.credit_entries.order_by("id")]
    assert paid == [(False, -50), (False, -70), (True, -180)]
    assert [(each.text, each.amount_pico // CENT) for each in application.applied(closed)] == [
        ("Promotional credit", 120),
        ("Prepaid credit", 180),
    ]
    entry = AuditEntry.objects.get(action="month.closed")
    assert entry.after is not None and entry.after["credit_applied_pico"] == 300 * CENT


def test_credit_changes_neither_the_statement_nor_what_months_are_compared_with(acme: Tenant) -> None:
    give(acme, 100)
    before = statements.statement(TenantId(acme.id), 2026, 3)
    closed = close(acme)
    after = statements.statement(TenantId(acme.id), 2026, 3)
    assert (after.lines, after.ledger_pico, after.equals_ledger) == (before.lines, before.ledger_pico, True)
    assert (int(closed.amount_pico) // CENT, owed(acme) // CENT) == (300, 200)
    closed_months.compare(datetime.now(UTC), since=MIDDLE)
    assert not BookGap.objects.exists()


def test_closing_again_pays_once_and_reopening_gives_back(acme: Tenant) -> None:
    give(acme, 200)
    give(acme, 50, days=9)
    close(acme)
    close(acme)
    assert (left(acme), owed(acme) // CENT) == ((0, []), 50)
    reopening.request(ADA, march(acme), "a host was lost")
    reopening.confirm(EVE, march(acme))
    assert (left(acme), owed(acme) // CENT) == ((200, [50]), 300)
    give(acme, 100)
    close(acme)
    assert (left(acme), owed(acme)) == ((50, []), 0)
    assert [each.kind for each in CreditEntry.objects.exclude(closing=None).order_by("id")] == [
        *("applied", "applied"),
        *("unapplied", "unapplied"),
        *("applied", "applied"),
    ]


def test_what_is_due_is_paid_in_whole_cents(acme: Tenant) -> None:
    store(row_at(MIDDLE, TenantId(acme.id), tokens=(1, 0, 0)))
    give(acme, 100)
    balance.lock(acme.id)
    entries.add(acme.id, "USD", Part(promotion_id=None, left_pico=0), entries.Kind.CORRECTION, 7)
    closed = close(acme)
    assert sum(each.amount_pico for each in application.applied(closed)) == 100 * CENT
    assert (balance.of(acme.id).prepaid_pico, owed(acme)) == (7, 200 * CENT + 150_000)


def test_usage_before_a_promotion_expired_is_paid_by_it_when_its_month_closes(acme: Tenant) -> None:
    store(row_at(MIDDLE + timedelta(days=5), TenantId(acme.id), tokens=THREE_DOLLARS))
    first = expired(acme, 250, MIDDLE + timedelta(days=1))
    expired(acme, 100, MIDDLE + timedelta(days=2))
    expired(acme, 40, MIDDLE - timedelta(days=1))
    now = timezone.now()
    # 3.00 was used before the first two expired: 2.50 of it is the first one's, 0.50 the second one's.
    assert (promotions.expire(now), promotions.expire(now)) == (2, 0)
    assert left(acme) == (0, [250, 50])
    assert balance.left_of(first.id) == 250 * CENT
    close(acme)
    assert (left(acme), owed(acme) // CENT) == ((0, []), 300)


def test_without_credit_nothing_is_paid(acme: Tenant) -> None:
    closed = close(acme)
    assert (application.applied(closed), owed(acme) // CENT) == ((), 300)
