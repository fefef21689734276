"""The page of limits and budgets: what it shows, and who may set what there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from billing.budgets import spending
from billing.drain import batch
from tenants.keys import keys
from tenants.models import AuditEntry, Budget, Limit, Membership, User
from tenants.policy import budgets, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE = "/portal/tenants/acme/limits/"
#: What ``fixtures.answered`` is charged.
ANSWER_PICO = 600 * 150_000 + 400 * 15_000 + 100 * 600_000


@pytest.fixture
def now() -> datetime:
    return timezone.now()


@pytest.fixture
def bounded(world: World, now: datetime) -> World:
    """Acme with a budget that is 75 % spent, an alert, and a limit with a high peak."""
    whole = PolicyTarget(tenant=world.acme.tenant)
    budgets.create(fixtures.OPERATOR, whole, BudgetTerms(limit_pico=4000 * ANSWER_PICO, alert_percents=[50, 80]))
    limits.set_limit(fixtures.OPERATOR, whole, LimitValues(requests_per_minute=400))
    batch.store([fixtures.answered(world, world.acme, now, number) for number in range(3000)], {}, node="here")
    windows = [(each, each.window(now)) for each in spending.active_budgets()]
    spending.open_windows(windows)
    spending.raise_alerts(windows)
    return world


def test_the_page_tells_what_is_spent_left_and_how_close_it_came(bounded: World, signed_in: SignIn) -> None:
    for who in (bounded.operator, bounded.acme.owner):
        page = signed_in(who).get(PAGE).content.decode()
        assert 'data-testid="spent">$0.47<' in page  # 3000 of 4000 answers at $0.000156
        assert 'data-testid="left">$0.16<' in page
        assert "$0.62" in page
        assert "50 %" in page
        assert "within" in page
        assert "200" in page  # 3000 requests in one quarter of an hour are 200 a minute
        assert "the whole tenant" in page


def test_a_used_up_budget_leads_to_the_form_that_raises_it(bounded: World, signed_in: SignIn) -> None:
    browser = signed_in(bounded.operator)
    assert "Raise it" not in browser.get(PAGE).content.decode()
    browser.post("/portal/tenants/acme/budgets/set/", {"for": "tenant", "limit": "0.01"})
    page = browser.get(PAGE).content.decode()
    assert '<a class="link" href="#set-budget">Raise it</a>' in page
    assert 'id="set-budget"' in page


def test_of_a_rotated_key_the_successor_is_offered(world: World, signed_in: SignIn) -> None:
    successor = keys.rotate(fixtures.OPERATOR, world.acme.key, timedelta(days=1)).key
    page = signed_in(world.acme.owner).get(PAGE).content.decode()
    assert f"key:{successor.id}" in page
    assert f"key:{world.acme.key.id}" not in page


def test_an_operator_sets_and_lifts_what_bounds_a_tenant(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    browser.post(f"{PAGE}set/", {"for": "tenant", "requests_per_minute": "60", "tokens_per_minute": ""})
    assert limits.values_of(Limit.objects.get()) == LimitValues(requests_per_minute=60)
    terms = {"for": "tenant", "period": "week", "limit": "25.50", "action": "block", "alert_percents": "50, 80 %"}
    browser.post("/portal/tenants/acme/budgets/set/", terms)
    made = Budget.objects.get()
    assert (made.limit_pico, made.period, made.alert_percents) == (25_500_000_000_000, "week", [50, 80])
    browser.post("/portal/tenants/acme/budgets/set/", {**terms, "limit": "30"})
    assert Budget.objects.get().limit_pico == 30 * 10**12
    browser.post(f"{PAGE}{Limit.objects.get().id}/remove/")
    browser.post(f"/portal/tenants/acme/budgets/{made.id}/archive/")
    assert not Limit.objects.exists()
    assert Budget.objects.get().archived_at is not None
    actions = AuditEntry.objects.filter(actor="ada").values_list("action", flat=True)
    assert {"limit.set", "limit.removed", "budget.created", "budget.changed", "budget.archived"} <= set(actions)


def test_an_owner_bounds_projects_and_keys_and_not_the_tenant(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    browser.post(f"{PAGE}set/", {"for": "project:default", "model": fixtures.MODEL, "concurrent_requests": "2"})
    assert Limit.objects.get().concurrent_requests == 2
    browser.post("/portal/tenants/acme/budgets/set/", {"for": f"key:{world.acme.key.id}", "limit": "1"})
    assert Budget.objects.get().key_id == world.acme.key.id
    told = browser.post(f"{PAGE}set/", {"for": "tenant", "requests_per_minute": "1"}, follow=True).content.decode()
    assert "Only operators set this for the tenant" in told
    assert ">the whole tenant<" not in browser.get(PAGE).content.decode()
    assert Limit.objects.count() == 1


def test_a_viewer_looks_and_sets_nothing(bounded: World, signed_in: SignIn) -> None:
    Membership.objects.filter(user=bounded.acme.owner).update(role=Membership.Role.VIEWER)
    browser = signed_in(bounded.acme.owner)
    page = browser.get(PAGE).content.decode()
    assert "the whole tenant" in page
    assert "<select" not in page
    before = AuditEntry.objects.count()
    browser.post(f"{PAGE}set/", {"for": "project:default", "requests_per_minute": "1"})
    browser.post("/portal/tenants/acme/budgets/set/", {"for": "project:default", "limit": "1"})
    browser.post(f"{PAGE}{Limit.objects.get().id}/remove/")
    browser.post(f"/portal/tenants/acme/budgets/{Budget.objects.get().id}/archive/")
    assert AuditEntry.objects.count() == before


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("limits/set/", {"for": "tenant", "requests_per_minute": "many"}),
        ("limits/set/", {"for": "nobody", "requests_per_minute": "1"}),
        ("limits/set/", {"for": "key:x", "requests_per_minute": "1"}),
        ("limits/set/", {"for": "tenant"}),
        ("budgets/set/", {"for": "tenant", "limit": "1e9"}),
        ("budgets/set/", {"for": "tenant", "limit": "99999999"}),
        ("budgets/set/", {"for": "tenant", "limit": "1", "alert_percents": "x"}),
        ("budgets/set/", {"for": "tenant", "limit": "1", "period": "year"}),
    ],
)
def test_what_cannot_be_read_is_told_and_changes_nothing(
    world: World, signed_in: SignIn, path: str, form: dict[str, str]
) -> None:
    answer = signed_in(world.operator).post(f"/portal/tenants/acme/{path}", form, follow=True)
    assert "Nothing was changed" in answer.content.decode()
    assert not Limit.objects.exists()
    assert not Budget.objects.exists()


def test_a_stranger_finds_no_limit_to_set_or_lift(bounded: World, signed_in: SignIn) -> None:
    browser = signed_in(bounded.globex.owner)
    limit, budget, before = Limit.objects.get().id, Budget.objects.get().id, AuditEntry.objects.count()
    for path, form in (
        ("acme/limits/set/", {"for": "project:default", "requests_per_minute": "1"}),
        ("acme/budgets/set/", {"for": "project:default", "limit": "1"}),
        (f"acme/limits/{limit}/remove/", {}),
        (f"acme/budgets/{budget}/archive/", {}),
        (f"globex/limits/{limit}/remove/", {}),
        (f"globex/budgets/{budget}/archive/", {}),
        ("globex/limits/set/", {"for": f"key:{bounded.acme.key.id}", "requests_per_minute": "1"}),
    ):
        assert browser.post(f"/portal/tenants/{path}", form).status_code == 404, path
    assert browser.get(PAGE).status_code == 404
    assert AuditEntry.objects.count() == before
