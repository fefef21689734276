"""Runs of billing: begun and stopped on pages and in the API, their progress, and who may see them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.invoices import issuers
from billing.models import BillingMonth, BillingRun, Invoice
from billing.runs import advancing, registry
from tenants.ids import new_id
from tenants.models import Tenant, User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
MONTHS, INVOICES, RUNS = "/portal/months/", "/portal/invoices/", "/api/v1/billing/runs"
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
CLOSE = {"kind": "close_months", "month": "2026-03"}


@pytest.fixture
def browser(world: World, signed_in: SignIn) -> Client:
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    fixtures.store([fixtures.answered(world, world.acme, MARCH, 1)])
    return signed_in(world.operator)


def post(browser: Client, address: str, **form: str) -> str:
    return browser.post(address, {"month": "2026-03", **form}, follow=True).content.decode()


def test_all_months_are_closed_behind_the_page_which_shows_how_far_it_is(browser: Client) -> None:
    page = post(browser, MONTHS, action="close")
    run = BillingRun.objects.get()
    address = f"/portal/billing/runs/{run.id}/"
    assert f'hx-get="{address}"' in page and "0 of 2 tenants." in page and 'data-testid="close-all"' not in page
    assert not BillingMonth.objects.exists()
    assert "This runs already." in post(browser, MONTHS, action="close") and BillingRun.objects.count() == 1
    advancing.go_on(seconds=0)
    part = browser.get(address)
    assert "1 of 2 tenants." in part.content.decode() and 'data-testid="show-changed"' not in part.content.decode()
    advancing.go_on()
    over = browser.get(address)
    ended = over.content.decode()
    assert "HX-Refresh" not in over and "hx-get" not in ended  # forms of the page keep what was typed
    assert f'href="{MONTHS}?month=2026-03" data-testid="show-changed"' in ended
    page = browser.get(f"{MONTHS}?month=2026-03").content.decode()
    assert "2 of 2 closed" in page and "2 closed, 0 were closed already." in page and "show-changed" not in page
    BillingRun.objects.update(finished_at=timezone.now() - timedelta(days=1, minutes=1))
    assert 'data-testid="run"' not in browser.get(f"{MONTHS}?month=2026-03").content.decode()
    assert 'data-testid="run"' not in browser.get(f"{MONTHS}?month=2026-02").content.decode()


def test_invoices_that_are_refused_are_named_and_one_is_made_at_once(browser: Client, world: World) -> None:
    registry.begin(fixtures.OPERATOR, BillingRun.Kind.CLOSE_MONTHS, date(2026, 3, 1))
    advancing.go_on()
    assert "set your legal entity first" in post(browser, INVOICES)
    issuers.set_issuer(fixtures.OPERATOR, "demo", {"legal_name": "Demo", "city": "Berlin", "country": "DE"})
    assert "0 of 2 tenants." in post(browser, INVOICES)
    advancing.go_on()
    page = browser.get(f"{INVOICES}?month=2026-03").content.decode()
    assert '<details open data-testid="run-problems">' in page
    assert "2 refused." in page and page.count("has no country") == 2
    assert page.count('<a class="warn" href="/portal/tenants/acme/billing/#account" data-testid="no-country"') == 1
    assert "has no country" in post(browser, INVOICES, tenant="acme") and BillingRun.objects.count() == 2
    assert not Invoice.objects.exists()


def test_a_run_is_stopped_on_its_page(browser: Client) -> None:
    post(browser, MONTHS, action="close")
    run = BillingRun.objects.get()
    page = browser.post(f"/portal/billing/runs/{run.id}/", follow=True).content.decode()
    assert "Stopped. What is done stays." in page and "2 not begun: stopped by ada" in page
    advancing.go_on()
    assert not BillingMonth.objects.exists()


def test_a_run_is_begun_polled_and_stopped_in_the_api(browser: Client, as_operator: APIClient) -> None:
    begun = as_operator.post(RUNS, CLOSE, format="json")
    assert (begun.status_code, begun.json()["state"], begun.json()["waiting"]) == (202, "waiting", 2)
    address = f"{RUNS}/{begun.json()['id']}"
    assert as_operator.post(RUNS, CLOSE, format="json").json() == begun.json()
    advancing.go_on(seconds=0)
    found = as_operator.get(address).json()
    assert (found["state"], found["total"], found["done"], found["problems"]) == ("running", 2, 1, [])
    stopped = as_operator.post(f"{address}/stop")
    assert (stopped.status_code, stopped.json()["state"], stopped.json()["stopped"]) == (200, "stopped", 1)
    assert as_operator.get(RUNS).json()["data"] == [stopped.json()]
    assert as_operator.get(f"{RUNS}/{new_id()}").status_code == 404
    wrong = as_operator.post(RUNS, {**CLOSE, "kind": "pay"}, format="json")
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "kind")
    assert as_operator.post(RUNS, {**CLOSE, "month": "March"}, format="json").status_code == 400


def test_nobody_but_operators_sees_a_run(browser: Client, world: World, signed_in: SignIn, as_acme: APIClient) -> None:
    run, _ = registry.begin(fixtures.OPERATOR, BillingRun.Kind.CLOSE_MONTHS, date(2026, 3, 1))
    viewer = User.objects.create(username="vera", is_staff=True, operator_role="viewer")
    address, member = f"/portal/billing/runs/{run.id}/", signed_in(world.acme.owner)
    assert [member.get(address).status_code, member.post(address).status_code] == [404, 404]
    assert [as_acme.get(f"{RUNS}/{run.id}").status_code, as_acme.post(RUNS, CLOSE).status_code] == [403, 403]
    part = signed_in(viewer).get(address).content.decode()
    assert "0 of 2 tenants." in part and 'data-testid="stop-run"' not in part
    assert signed_in(viewer).post(address).status_code == 403
    run.refresh_from_db()
    assert run.finished_at is None
