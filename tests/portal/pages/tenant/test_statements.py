"""The statement of a tenant with a plan: its terms, estimated while the month is open."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime

import pytest
from django.test import Client

from billing.months import closing
from billing.reports.statements import Month
from tenants.models import User
from tests.billing.agreed_plans import assign_from, plan_from
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def agreed(world: World) -> World:
    """Acme has a plan from March on, and an answer in March."""
    fixtures.store([fixtures.answered(world, world.acme, MARCH, 1)])
    terms = {"discounts": [{"percent": 10}], "minimum": "5.00"}
    assign_from(date(2026, 3, 1), world.acme.tenant, plan_from(date(2026, 3, 1), terms))
    return world


def test_the_terms_are_an_estimate_until_the_month_is_closed(agreed: World, signed_in: SignIn) -> None:
    browser = signed_in(agreed.acme.owner)
    url = "/portal/tenants/acme/statement/?month=2026-03"
    before = browser.get(url).content.decode()
    assert before.count('data-testid="terms"') == before.count('<span class="muted">estimate</span>') == 2
    assert "Plan gold" in before and "Up to the minimum of 5.00" in before
    assert '<span class="value" data-testid="due">$5.00</span>' in before
    assert 'data-testid="equals-ledger"' in before
    closing.close(fixtures.OPERATOR, Month(tenant=agreed.acme.tenant, year=2026, month=3))
    after = browser.get(url).content.decode()
    assert after.count('data-testid="terms"') == 2 and "estimate" not in after
    assert 'data-testid="equals-ledger"' in after and 'data-testid="closed"' in after


def test_a_stranger_sees_no_terms(agreed: World, signed_in: SignIn) -> None:
    stranger = signed_in(agreed.globex.owner)
    assert stranger.get("/portal/tenants/acme/statement/?month=2026-03").status_code == 404
    own = stranger.get("/portal/tenants/globex/statement/?month=2026-03").content.decode()
    assert "gold" not in own and 'data-testid="terms"' not in own
