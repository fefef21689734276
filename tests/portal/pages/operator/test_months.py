"""The page of months: what is closed, closing all or one, and reopening with a second operator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from django.test import Client
from django.utils import timezone

from billing.models import BillingMonth
from billing.runs import advancing
from tenants.models import Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
URL = "/portal/months/"
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def browser(world: World, signed_in: SignIn) -> Client:
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    fixtures.store([fixtures.answered(world, world.acme, MARCH, 1)])
    return signed_in(world.operator)


def page(browser: Client, month: str = "2026-03") -> str:
    return browser.get(f"{URL}?month={month}").content.decode()


def change(browser: Client, action: str, tenant: str = "", reason: str = "") -> str:
    """Send the form, and return the page that follows."""
    form = {"month": "2026-03", "action": action, "tenant": tenant, "reason": reason}
    return browser.post(URL, form, follow=True).content.decode()


def test_all_months_are_closed_and_one_is_reopened_by_a_second_operator(browser: Client, signed_in: SignIn) -> None:
    eve = signed_in(User.objects.create(username="eve", is_staff=True))
    assert "0 of 2 closed" in page(browser)
    change(browser, "close")
    advancing.go_on()
    closed = page(browser)
    assert "2 of 2 closed" in closed and 'data-testid="close-all"' not in closed
    assert "Closed already. Nothing was changed." in change(browser, "close", "acme")
    asked = change(browser, "reopen", "acme", "a wrong price")
    assert "Another operator confirms it." in asked and "a wrong price" in asked
    assert "a second person confirms it" in change(browser, "confirm", "acme")
    assert "2026-03 of Acme is open" in change(eve, "confirm", "acme")
    assert BillingMonth.objects.filter(reopened_at=None).count() == 1


def test_it_opens_with_this_month_while_no_tenant_is_older(browser: Client) -> None:
    Tenant.objects.update(created_at=timezone.now())
    for address in ("/portal/months/", "/portal/invoices/"):
        assert f"{timezone.now():%B %Y}" in browser.get(address).content.decode()
        assert browser.get(address).context["month"] == timezone.now().date().replace(day=1)


def test_the_statement_says_that_it_is_closed_and_what_is_late(browser: Client, world: World) -> None:
    change(browser, "close", "acme")
    fixtures.store([fixtures.answered(world, world.acme, MARCH, 2)])
    statement = "/portal/tenants/acme/statement/?month=2026-"
    march, april = (browser.get(statement + month).content.decode() for month in ("03", "04"))
    assert 'data-testid="closed"' in march and 'data-testid="adjustment"' not in march
    assert "late, of March 2026" in april and 'data-testid="equals-ledger"' in april


def test_what_cannot_be_done_is_a_message(browser: Client) -> None:
    assert "give a reason" in change(browser, "close", "acme") + change(browser, "reopen", "acme", " ")
    assert "choose a tenant, and what to do" in change(browser, "confirm")
    assert browser.get(f"{URL}?month=march").status_code == 400
    future = page(browser, "2099-01")
    assert "not before" in future and 'value="close"' not in future
    late = browser.post(URL, {"month": "2099-01", "action": "close", "tenant": "acme"}, follow=True).content.decode()
    assert "stays open: it may be closed from February 3, 2099" in late


def test_members_do_not_find_it(browser: Client, world: World, signed_in: SignIn) -> None:
    member = signed_in(world.acme.owner)
    assert member.get(URL).status_code == 404
    assert member.post(URL, {"month": "2026-03", "action": "close"}).status_code == 404
    assert not BillingMonth.objects.exists()
