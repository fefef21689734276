"""What was spent of a budget equals its period's usage rows, to the pico-dollar, however they were stored."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db.models import Sum

from billing.budgets import spending
from billing.budgets.spending import ActiveBudget, Window
from billing.drain import batch
from billing.models import BudgetAlert, BudgetWindow, UsageRecord
from billing.pricing.amounts import units
from billing.pricing.prices import DEMO_RATES
from notifications.event_types import BUDGET_THRESHOLD_REACHED
from notifications.models import Event
from tenants.ids import new_id
from tenants.models import AuditEntry, Budget, Tenant
from tenants.policy import budgets
from tests.billing.budget_fixture import DAY, HOUR, NOON, budget, row
from tests.billing.drain.test_drain import AMOUNT_PICO
from tests.billing.usage_records import price_from, store
from tests.tenants import customers
from tests.tenants.customers import OPERATOR, Customer

pytestmark = pytest.mark.django_db
MILLISECOND = timedelta(milliseconds=1)


@pytest.fixture
def acme(db: None) -> Customer:
    """A tenant whose model has a price from long before the test."""
    price_from(NOON - 400 * DAY, DEMO_RATES)
    return customers.create("acme")


def around(*made: Budget, now: datetime = NOON) -> list[tuple[ActiveBudget, Window]]:
    """Return the budgets with their period around ``now``."""
    return [
        (each, each.window(now)) for each in map(spending.resolve, Budget.objects.filter(id__in=[m.id for m in made]))
    ]


def spent_of(made: Budget, now: datetime = NOON) -> int:
    """Return what was spent in its period around ``now``, which must be open."""
    ((_, window),) = around(made, now=now)
    return spending.spent([window])[made.id, window.start]


def test_each_budget_counts_the_rows_it_covers_and_no_other(acme: Customer) -> None:
    globex = customers.create("globex")
    other = customers.create("initech")
    made = {
        "tenant": budget(acme.tenant, 10**12),
        "project": budget(acme.tenant, 10**12, project=acme.project),
        "key": budget(acme.tenant, 10**12, key=acme.key),
        "model": budget(acme.tenant, 10**12, model_name="demo", period="week"),
        "other model": budget(acme.tenant, 10**12, model_name="large"),
        "soft": budget(acme.tenant, 10**12, action="alert", period="total"),
        "stranger": budget(globex.tenant, 10**12),
    }
    spending.open_windows(around(*made.values()))
    elsewhere = row(other, NOON)
    store(row(acme, NOON), row(acme, NOON), row(acme, NOON, state="refused"), elsewhere)
    expected = dict.fromkeys(made, 3 * AMOUNT_PICO) | {"other model": 0, "stranger": 0}
    assert {name: spent_of(each) for name, each in made.items()} == expected


def test_a_period_begins_in_the_tenants_zone_and_is_a_new_row(acme: Customer) -> None:
    Tenant.objects.filter(id=acme.tenant.id).update(billing_timezone="Asia/Kathmandu")  # UTC+05:45
    midnight = NOON.replace(hour=18, minute=15)
    daily = budget(acme.tenant, 10**12, period="day")
    spending.open_windows(around(daily) + around(daily, now=midnight))
    store(row(acme, midnight - MILLISECOND), row(acme, midnight), row(acme, midnight + HOUR))
    assert spent_of(daily, NOON) == AMOUNT_PICO
    assert spent_of(daily, midnight) == 2 * AMOUNT_PICO
    assert sorted(BudgetWindow.objects.values_list("starts_at", flat=True)) == [midnight - DAY, midnight]


@pytest.mark.parametrize("of", ["tenant", "project", "key", "model"])
@pytest.mark.parametrize("period", ["day", "week", "month", "total"])
def test_a_budget_made_in_the_middle_of_its_period_starts_from_what_the_rows_say(
    acme: Customer, of: str, period: str
) -> None:
    earlier = [NOON - HOUR, NOON - DAY, NOON - 7 * DAY, NOON - 40 * DAY]
    store(*[row(acme, moment) for moment in earlier], row(acme, NOON, model_name="unpriced"))
    subject = {"project": {"project": acme.project}, "key": {"key": acme.key}, "model": {"model_name": "demo"}}.get(
        of, {}
    )
    made = budget(acme.tenant, 10**12, period=period, **subject)  # type: ignore[arg-type]
    spending.open_windows(around(made))
    store(row(acme, NOON))
    spending.open_windows(around(made))
    within = {"day": 2, "week": 3, "month": 4, "total": 5}[period]
    assert spent_of(made) == within * AMOUNT_PICO


def test_a_models_budget_follows_its_new_name_with_what_was_spent(acme: Customer) -> None:
    price_from(NOON - 400 * DAY, DEMO_RATES, model_name="small")
    weekly = budget(acme.tenant, 10**12, model_name="demo", period="week")
    monthly = budget(acme.tenant, 10**12, model_name="demo")
    of_key = budget(acme.tenant, 10**12, model_name="demo", period="total", key=acme.key)
    spending.open_windows(around(weekly))
    store(row(acme, NOON), row(acme, NOON))
    assert budgets.follow_rename("demo", "small") == {acme.tenant.id}
    # one that ran under the old name until now, and one of the new name
    store(row(acme, NOON), row(acme, NOON, model_name="small"))
    spending.open_windows(around(monthly, of_key))
    store(row(acme, NOON, model_name="small"), row(acme, NOON, model_name="other"))
    assert [spent_of(each) for each in (weekly, monthly, of_key)] == [5 * AMOUNT_PICO] * 3

    assert budgets.follow_rename("small", "demo") == {acme.tenant.id}
    assert list(Budget.objects.values_list("model_name", "earlier_names")) == [("demo", ["small"])] * 3
    store(row(acme, NOON), row(acme, NOON, model_name="small"))
    assert [spent_of(each) for each in (weekly, monthly, of_key)] == [7 * AMOUNT_PICO] * 3
    budgets.forget_name("small")
    store(row(acme, NOON, model_name="small"))
    assert [spent_of(each) for each in (weekly, monthly, of_key)] == [7 * AMOUNT_PICO] * 3


def test_a_batch_that_comes_twice_adds_nothing(acme: Customer) -> None:
    made = budget(acme.tenant, 10**12)
    spending.open_windows(around(made))
    rows = [row(acme, NOON) for _ in range(5)]
    assert batch.store(rows, {}, node="here") == 5
    assert batch.store(rows, {}, node="here") == 0
    assert spent_of(made) == 5 * AMOUNT_PICO
    assert spent_of(made) == UsageRecord.objects.aggregate(total=Sum("amount_pico"))["total"]


def test_a_row_that_waits_for_a_price_counts_when_it_is_rated(acme: Customer) -> None:
    made = budget(acme.tenant, 10**12)
    spending.open_windows(around(made))
    store(row(acme, NOON, model_name="new"))
    assert spent_of(made) == 0
    price_from(NOON + HOUR, DEMO_RATES, "new")
    assert batch.rate_unrated() == 1
    assert spent_of(made) == AMOUNT_PICO
    ((each, window),) = around(made)
    assert spending.counted(each, window) == AMOUNT_PICO


def test_what_no_tenant_pays_for_is_spent_of_no_budget(acme: Customer) -> None:
    made = budget(acme.tenant, 10**12)
    spending.open_windows(around(made))
    canary = row(acme, NOON)
    store(type(canary)(**{**{name: getattr(canary, name) for name in canary.__struct_fields__}, "purpose": "canary"}))
    assert spent_of(made) == 0


def test_an_alert_is_raised_once_for_each_percentage_and_period(acme: Customer) -> None:
    made = budget(acme.tenant, 4 * AMOUNT_PICO, action="alert", alert_percents=(50, 80, 100))
    both = around(made) + around(made, now=NOON + 31 * DAY)
    spending.open_windows(both)
    assert spending.raise_alerts(both) == 0
    store(row(acme, NOON), row(acme, NOON))
    assert spending.raise_alerts(both) == 1
    assert spending.raise_alerts(both) == 0
    store(row(acme, NOON), row(acme, NOON), row(acme, NOON + 31 * DAY), row(acme, NOON + 31 * DAY))
    assert spending.raise_alerts(both) == 3
    raised = BudgetAlert.objects.order_by("starts_at", "percent")
    march, april = (window.starts_at for _, window in both)
    assert [(alert.starts_at, alert.percent, int(alert.spent_pico)) for alert in raised] == [
        (march, 50, 2 * AMOUNT_PICO),
        (march, 80, 4 * AMOUNT_PICO),
        (march, 100, 4 * AMOUNT_PICO),
        (april, 50, 2 * AMOUNT_PICO),
    ]
    entries = AuditEntry.objects.filter(action="budget.alerted", tenant=acme.tenant)
    assert [entry.after["percent"] for entry in entries.order_by("id") if entry.after] == [50, 80, 100, 50]
    events = Event.objects.filter(type=BUDGET_THRESHOLD_REACHED.name, tenant=acme.tenant).order_by("id")
    assert [event.data["percent"] for event in events] == [50, 80, 100, 50]
    first = events[0]
    assert (first.subject, first.data["spent"]) == (f"budget/{made.id}", units(2 * AMOUNT_PICO, "USD"))
    assert (first.data["period"], first.data["period_from"]) == (made.period, march.isoformat())


def test_a_wider_limit_takes_no_alert_back(acme: Customer) -> None:
    made = budget(acme.tenant, AMOUNT_PICO, alert_percents=(100,))
    spending.open_windows(around(made))
    store(row(acme, NOON))
    spending.raise_alerts(around(made))
    budgets.change(OPERATOR, made, limit_pico=100 * AMOUNT_PICO)
    assert spending.raise_alerts(around(made)) == 0
    budgets.change(OPERATOR, made, limit_pico=AMOUNT_PICO)
    assert spending.raise_alerts(around(made)) == 0
    assert BudgetAlert.objects.count() == 1


def test_an_archived_budget_is_counted_no_more(acme: Customer) -> None:
    made = budget(acme.tenant, 10**12)
    window = around(made)
    spending.open_windows(window)
    store(row(acme, NOON))
    budgets.archive(OPERATOR, made)
    store(row(acme, NOON))
    assert spending.active_budgets([acme.tenant.id, new_id()]) == []
    assert spending.spent([window[0][1]])[made.id, window[0][1].start] == AMOUNT_PICO
