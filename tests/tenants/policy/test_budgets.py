"""Budgets: created, changed and archived; each change is audited and reaches every gateway."""

from __future__ import annotations

import pytest

from tenants import policy_epoch
from tenants.errors import AlreadyExists, BadName, NotAllowed
from tenants.models import AuditEntry, Budget
from tenants.policy import budgets
from tenants.policy.budgets import LARGEST_LIMIT_PICO, BudgetTerms
from tenants.policy.policy_target import PolicyTarget
from tenants.snapshot import snapshot
from tests.tenants.customers import OPERATOR, Customer

DOLLAR_PICO = 10**12


def test_only_a_hard_budget_reaches_the_gateways(acme: Customer, globex: Customer) -> None:
    whole = PolicyTarget(tenant=acme.tenant)
    hard = budgets.create(OPERATOR, whole, BudgetTerms(limit_pico=5 * DOLLAR_PICO, period="day"))
    budgets.create(OPERATOR, whole, BudgetTerms(limit_pico=DOLLAR_PICO, period="week", action="alert"))
    (line,) = snapshot.load().authenticate(acme.secret).budgets
    assert (line.id, line.scope, line.period, line.limit_pico, line.currency, line.timezone) == (
        hard.id,
        "tenant",
        "day",
        5 * DOLLAR_PICO,
        "USD",
        "UTC",
    )
    assert snapshot.load().authenticate(globex.secret).budgets == ()


def test_a_change_is_audited_with_before_and_after(acme: Customer) -> None:
    budget = budgets.create(OPERATOR, PolicyTarget(tenant=acme.tenant, project=acme.project), BudgetTerms(limit_pico=5))
    before = policy_epoch.current()
    budgets.change(OPERATOR, budget, limit_pico=7, alert_percents=[90, 50, 90])
    assert policy_epoch.current() == before + 1
    who = {"project": "default", "key": None, "model": None, "period": "month", "action": "block"}
    entry = AuditEntry.objects.latest("id")
    assert entry.action == "budget.changed"
    assert entry.before == {**who, "limit_pico": 5, "alert_percents": []}
    assert entry.after == {**who, "limit_pico": 7, "alert_percents": [50, 90]}
    budgets.change(OPERATOR, budget, limit_pico=7)
    assert policy_epoch.current() == before + 1, "the same again changes nothing"


def test_an_archived_budget_bounds_nothing_and_makes_room_for_another(acme: Customer) -> None:
    whole = PolicyTarget(tenant=acme.tenant)
    budget = budgets.create(OPERATOR, whole, BudgetTerms(limit_pico=5))
    with pytest.raises(AlreadyExists):
        budgets.create(OPERATOR, whole, BudgetTerms(limit_pico=6))
    budgets.archive(OPERATOR, budget)
    assert budgets.archive(OPERATOR, budget).archived_at is not None
    assert AuditEntry.objects.filter(action="budget.archived").count() == 1
    assert snapshot.load().authenticate(acme.secret).budgets == ()
    with pytest.raises(NotAllowed):
        budgets.change(OPERATOR, budget, limit_pico=1)
    budgets.create(OPERATOR, whole, BudgetTerms(limit_pico=6))


@pytest.mark.parametrize(
    ("terms", "kind"),
    [
        (BudgetTerms(limit_pico=-1), "limit_pico"),
        (BudgetTerms(limit_pico=LARGEST_LIMIT_PICO + 1), "limit_pico"),
        (BudgetTerms(limit_pico=1, period="year"), "period"),
        (BudgetTerms(limit_pico=1, action="pray"), "action"),
        (BudgetTerms(limit_pico=1, alert_percents=[0]), "alert_percents"),
        (BudgetTerms(limit_pico=1, alert_percents=[101]), "alert_percents"),
        (BudgetTerms(limit_pico=1, alert_percents=range(1, 12)), "alert_percents"),
    ],
)
def test_terms_that_are_not_allowed_are_refused_by_name(acme: Customer, terms: BudgetTerms, kind: str) -> None:
    with pytest.raises(BadName) as refused:
        budgets.create(OPERATOR, PolicyTarget(tenant=acme.tenant), terms)
    assert refused.value.kind == kind
    assert not Budget.objects.exists()
