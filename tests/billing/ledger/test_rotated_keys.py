"""Spending of a rotated key counts against the budget that moved to its successor."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from billing.budgets import spending
from billing.budgets.spending import ActiveBudget, Window
from billing.pricing.prices import DEMO_RATES
from tenants.keys import keys
from tenants.models import Budget
from tests.billing.budget_fixture import DAY, HOUR, NOON, budget, row
from tests.billing.drain.test_drain import AMOUNT_PICO
from tests.billing.usage_records import price_from, store
from tests.tenants import customers
from tests.tenants.customers import OPERATOR

pytestmark = pytest.mark.django_db


def around(made: Budget) -> tuple[ActiveBudget, Window]:
    """Return the current budget with its period around noon."""
    (found,) = [each for each in spending.active_budgets() if each.id == made.id]
    assert found == spending.resolve(Budget.objects.get(id=made.id))
    return found, found.window(NOON)


def test_a_budget_counts_both_keys_of_a_rotation_and_all_before_them(db: None) -> None:
    price_from(NOON - 400 * DAY, DEMO_RATES)
    acme = customers.create("acme")
    other = keys.issue(OPERATOR, acme.project, name="other").key
    made = budget(acme.tenant, 10**12, key=acme.key)
    store(row(acme, NOON - HOUR))
    second = keys.rotate(OPERATOR, acme.key, DAY).key
    third = keys.rotate(OPERATOR, second, DAY).key
    bound, window = around(made)
    assert bound.key_ids == {acme.key.id, second.id, third.id}
    spending.open_windows([(bound, window)])  # counted from the rows
    store(*[replace(row(acme, NOON), key_id=key.id) for key in (acme.key, second, third, other)])  # added by a batch
    assert spending.spent([window])[made.id, window.start] == 4 * AMOUNT_PICO
    assert spending.counted(bound, window) == 4 * AMOUNT_PICO


def test_a_key_that_was_never_rotated_is_alone_in_its_line(db: None) -> None:
    acme, globex = customers.create("acme"), customers.create("globex")
    new = keys.rotate(OPERATOR, acme.key, DAY).key
    assert keys.lineages([new.id, globex.key.id]) == {
        new.id: frozenset({new.id, acme.key.id}),
        globex.key.id: frozenset({globex.key.id}),
    }
    assert keys.lineages([]) == {}
