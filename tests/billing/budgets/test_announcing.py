"""A hard budget or a prepaid balance that runs out is announced, once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from billing.accounts import account, credits
from billing.accounts.credits import NewCredit
from billing.budgets import announcing, spending
from billing.pricing.amounts import units
from billing.pricing.prices import DEMO_RATES
from notifications.event_types import BALANCE_EXHAUSTED, BALANCE_LOW, BUDGET_EXHAUSTED
from notifications.models import Event
from tenants.audit import Actor
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.budget_fixture import DAY, NOON, budget, row
from tests.billing.drain.test_drain import AMOUNT_PICO
from tests.billing.usage_records import price_from, row_at, store
from tests.tenants import customers

pytestmark = pytest.mark.django_db
ADA = Actor(kind="user", name="ada")
CENT = 10**10


def test_a_hard_budget_that_is_spent_is_announced_once_per_period(db: None) -> None:
    price_from(NOON - 400 * DAY, DEMO_RATES)
    acme = customers.create("acme")
    soft = budget(acme.tenant, AMOUNT_PICO, action="alert", period="day")
    hard = budget(acme.tenant, 2 * AMOUNT_PICO)
    both = [(each, each.window(NOON)) for each in map(spending.resolve, (soft, hard))]
    spending.open_windows(both)
    store(row(acme, NOON))
    assert announcing.announce(both, NOON) == 0
    store(row(acme, NOON))
    assert announcing.announce(both, NOON) == 1
    assert announcing.announce(both, NOON) == 0
    (event,) = Event.objects.filter(type=BUDGET_EXHAUSTED.name)
    assert event.tenant == acme.tenant
    assert (event.data["budget"], event.data["spent"]) == (str(hard.id), units(2 * AMOUNT_PICO, "USD"))
    assert event.data["limit"] == units(2 * AMOUNT_PICO, "USD")


@pytest.fixture
def prepaid() -> Tenant:
    """A prepaid tenant that used 3.00 yesterday."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    now = timezone.now()
    price_from(now - timedelta(days=40), DEMO_RATES)
    account.change(ADA, tenant, mode="prepaid")
    store(row_at(now - timedelta(days=1), TenantId(tenant.id), tokens=(20_000_000, 0, 0)))
    return Tenant.objects.get(id=tenant.id)


def look(tenant: Tenant) -> int:
    now = datetime.now(UTC)
    windows = [(each, each.window(now)) for each in spending.active_budgets([tenant.id])]
    spending.open_windows(windows)
    return announcing.announce(windows, now)


def add(tenant: Tenant, cents: int) -> None:
    wanted = NewCredit(kind="top_up", amount_pico=cents * CENT, reference=str(uuid4()))
    credits.submit(ADA, tenant, str(uuid4()), wanted)


def test_a_balance_is_announced_when_low_and_when_spent_and_again_after_credit(prepaid: Tenant) -> None:
    assert look(prepaid) == 0  # nothing was paid in
    add(prepaid, 300)
    assert look(prepaid) == 1
    assert look(prepaid) == 0
    assert Event.objects.get(type=BALANCE_EXHAUSTED.name).data == {
        "left": "0.00",
        "daily": "0.428571428571",
        "currency": "USD",
    }
    add(prepaid, 100)  # lasts for two days and a third
    assert look(prepaid) == 1
    assert look(prepaid) == 0
    low = Event.objects.get(type=BALANCE_LOW.name)
    assert (low.data["left"], low.tenant) == ("1.00", prepaid)
    add(prepaid, 100)
    assert look(prepaid) == 0
