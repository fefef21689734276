"""The page of plans, and the prices and terms that a tenant sees."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import Plan, PlanVersion, TenantPlan
from tenants.models import Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
URL = "/portal/plans/"
THIS = f"{timezone.now():%Y-%m}"
LATER = f"{timezone.now().year + 1}-06"
TENTH = "discounts:\n  - percent: 10\n"


@pytest.fixture
def browser(world: World, signed_in: SignIn) -> Client:
    return signed_in(world.operator)


def send(browser: Client, action: str, **form: str) -> str:
    """Send the form, and return the page that follows."""
    return browser.post(URL, {"action": action, "from_month": THIS, **form}, follow=True).content.decode()


def test_terms_are_previewed_set_and_assigned(browser: Client, world: World, signed_in: SignIn) -> None:
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    fixtures.store([fixtures.answered(world, world.acme, timezone.now().replace(day=1) - timedelta(days=9), 1)])
    assert "No plans yet" in browser.get(URL).content.decode()
    previewed = send(browser, "preview", name="gold", document=TENTH)
    assert 'data-testid="preview"' in previewed and "percent: 10" in previewed and "−$0.0000156" in previewed
    assert not Plan.objects.exists()
    done = send(browser, "set", name="gold", document=TENTH)
    assert f"gold has these terms from {THIS} on." in done and "10 % less." in done
    assert "acme has the plan gold" in send(browser, "assign", name="gold", tenant="acme")
    assert "from_month" in (page := browser.get(f"{URL}?plan=gold").content.decode()) and "percent: 10" in page
    assert "acme has no plan from" in send(browser, "assign", tenant="acme", from_month=LATER)

    own = signed_in(world.acme.owner).get("/portal/tenants/acme/prices/").content.decode()
    assert "10 % less." in own and "List prices alone." in own and own.count(">current<") >= 1
    assert fixtures.MODEL in own and "$0.15" in own
    stranger = signed_in(world.globex.owner)
    assert stranger.get("/portal/tenants/acme/prices/").status_code == 404
    assert "10 % less." not in stranger.get("/portal/tenants/globex/prices/").content.decode()
    assert stranger.get(URL).status_code == 404


def test_what_is_wrong_is_said_and_changes_nothing(browser: Client) -> None:
    for form, problem in (
        ({"action": "set", "name": "gold", "document": "discounts: [{percent: 101}]"}, "line 1, discounts[0].percent"),
        ({"action": "set", "name": "gold", "document": "a: 1", "from_month": "soon"}, "from_month"),
        ({"action": "set", "name": "gold", "document": "{}", "from_month": "2026-01"}, "is past"),
        ({"action": "set", "name": "Gold", "document": "{}"}, "is not a valid plan"),
        ({"action": "set", "name": "gold", "document": ""}, "The terms are empty"),
        ({"action": "preview", "name": "gold", "document": "- 1"}, "A document is a mapping"),
        ({"action": "assign", "name": "gold", "tenant": "acme"}, "There is no plan"),
        ({"action": "assign", "name": "gold", "tenant": ""}, "tenant"),
    ):
        answer = browser.post(URL, {"from_month": THIS, **form})
        assert answer.status_code == 400, form
        text = answer.content.decode()
        assert problem in text and 'data-testid="problem"' in text, form
    assert not PlanVersion.objects.exists() and not TenantPlan.objects.exists()
