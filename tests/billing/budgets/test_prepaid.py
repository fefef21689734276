"""What a prepaid tenant may spend: its credit, less what it owes, whatever was closed, paid or expired meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from billing.accounts import account, credits
from billing.accounts.credits import NewCredit
from billing.budgets import prepaid, spending
from billing.errors import CreditRefused
from billing.months import closing, reopening
from billing.pricing.prices import DEMO_RATES
from billing.reports.statements import Month
from tenants.audit import Actor
from tenants.errors import BadName
from tenants.ids import TenantId, new_id
from tenants.models import Tenant
from tests.billing.agreed_plans import assign_from, plan_from
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
CENT = 10**10


@pytest.fixture
def acme() -> Tenant:
    """A prepaid tenant that used 3.00 in March."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    account.change(ADA, tenant, mode="prepaid")
    use(tenant)
    return tenant


def use(tenant: Tenant) -> None:
    """Use 3.00 in March."""
    store(row_at(MIDDLE, TenantId(tenant.id), tokens=(20_000_000, 0, 0)))


def post(tenant: Tenant, kind: str, cents: int, **given: object) -> None:
    wanted = NewCredit(kind=kind, amount_pico=cents * CENT, reason="why", **given)  # type: ignore[arg-type]
    credits.submit(ADA, tenant, str(new_id()), wanted)


def available(tenant: Tenant) -> int:
    """Return what a tenant may spend, in cents."""
    [balance] = spending.prepaid_balances([tenant.id])
    return spending.available_pico(balance) // CENT


def count(tenant: Tenant) -> None:
    """Open the period of its balance, as the reconciler does."""
    [balance] = spending.prepaid_balances([tenant.id])
    spending.open_windows([(balance, balance.window(timezone.now()))])


def test_usage_that_is_not_paid_counts_from_before_and_after_it_was_counted_first(acme: Tenant) -> None:
    assert available(acme) == -300
    post(acme, "top_up", 1000)
    post(acme, "promotion", 50, expires_at=timezone.now() + timedelta(days=9))
    assert available(acme) == 750
    count(acme)
    assert available(acme) == 750
    use(acme)
    assert available(acme) == 450


def test_closing_and_reopening_a_month_change_nothing_and_terms_count(acme: Tenant) -> None:
    post(acme, "top_up", 1000)
    count(acme)
    march = Month(tenant=acme, year=2026, month=3)
    closing.close(ADA, march)
    assert available(acme) == 700
    reopening.request(ADA, march, "why")
    reopening.confirm(EVE, march)
    assert available(acme) == 700
    assign_from(datetime(2026, 3, 1).date(), acme, plan_from(datetime(2026, 3, 1).date(), {"minimum": "5.00"}))
    closing.close(ADA, march)
    assert available(acme) == 500


def test_credit_that_covers_unpaid_usage_is_not_refunded(acme: Tenant) -> None:
    post(acme, "top_up", 1000)
    with pytest.raises(CreditRefused, match=r"7\.00 USD of the balance are available"):
        post(acme, "refund", 701)
    post(acme, "refund", 700)
    assert available(acme) == 0
    account.change(ADA, acme, mode="postpaid")
    post(acme, "refund", 300)


def test_a_tenant_that_becomes_prepaid_again_gets_a_new_counter(acme: Tenant) -> None:
    first = spending.prepaid_balances([acme.id])[0].id
    assert account.of(acme).mode == "postpaid"  # the tenant as it was read before
    acme.refresh_from_db()
    assert (account.of(acme).mode, account.change(ADA, acme, mode="prepaid").mode) == ("prepaid", "prepaid")
    assert spending.prepaid_balances([acme.id])[0].id == first
    assert account.change(ADA, acme, mode="postpaid").mode == "postpaid"
    assert prepaid.tenants() == []
    account.change(ADA, acme, mode="prepaid")
    assert spending.prepaid_balances([acme.id])[0].id != first
    with pytest.raises(BadName):
        account.change(ADA, acme, mode="later")


def test_other_tenants_are_not_counted(acme: Tenant) -> None:
    globex = Tenant.objects.create(slug="globex", name="Globex")
    post(globex, "top_up", 1000)
    assert [each.tenant_id for each in spending.prepaid_balances()] == [acme.id]
    assert prepaid.limits([acme.id, globex.id]) == {acme.id: 0, globex.id: 1000 * CENT}
    assert spending.active_budgets([globex.id]) == []
