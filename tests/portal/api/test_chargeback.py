"""The journal, the FOCUS export and codes over the API and on the page Costs: for operators alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.chargeback import gl_codes
from billing.months import closing
from billing.reports.statements import Month
from tenants.models import Tenant, User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World
from workers.models import Pool, Replica, SlotLease

SignIn = Callable[[User], Client]
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
JOURNAL, FOCUS, CODES = ("/api/v1/chargeback/" + each for each in ("journal/2026-03", "focus/2026-03", "gl-codes"))
PAGE = "/portal/costs/"


@pytest.fixture
def closed(world: World) -> World:
    """Acme's March has 1,000 answers and is closed, globex's is open."""
    Tenant.objects.update(created_at="2024-01-01T00:00:00Z")
    fixtures.store(fixtures.answered(world, world.acme, MARCH, number) for number in range(1, 101))
    fixtures.store([fixtures.answered(world, world.globex, MARCH, 101)])
    closing.close(fixtures.OPERATOR, Month(tenant=world.acme.tenant, year=2026, month=3))
    return world


def cells(answer: Any) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    return list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))


def test_the_journal_needs_codes_and_balances(closed: World, as_operator: APIClient) -> None:
    refused = as_operator.get(JOURNAL)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "gl_code_missing")
    assert "completion of tiny-chat, credit, prompt of tiny-chat" in error_of(refused)["message"]
    for body in ({"code": "6100"}, {"code": "9000", "line_class": "credit"}):
        assert as_operator.put(CODES, body, format="json").status_code == 200
    document = as_operator.get(JOURNAL).json()
    assert document["open_tenants"] == ["globex"]
    # 100 answers of 156,000,000 pico-dollars are 1.56 cents: prompt 0.9, cached 0.06, completion 0.6.
    assert [(each["gl_code"], each["debit_cents"], each["credit_cents"]) for each in document["bookings"]] == [
        ("6100", 2, 0),
        ("9000", 0, 2),
    ]
    rows = cells(as_operator.get(f"{JOURNAL}?format=csv&tenant=acme"))
    assert [(row["debit"], row["credit"]) for row in rows] == [("0.02", ""), ("", "0.02")]
    assert as_operator.get(f"{JOURNAL}?tenant=nobody").status_code == 404
    assert error_of(as_operator.get("/api/v1/chargeback/journal/2026-13"))["param"] == "month"


def test_focus_is_a_dataset_of_text(closed: World, as_operator: APIClient) -> None:
    document = as_operator.get(FOCUS).json()
    assert document["version"] == "1.2"
    usage = [row for row in document["data"] if row["ChargeCategory"] == "Usage"]
    assert {(row["SkuMeter"], row["BilledCost"]) for row in usage} == {
        ("Uncached prompt tokens", "0.009"),
        ("Cached prompt tokens", "0.0006"),
        ("Completion tokens", "0.006"),
    }
    assert {row["ChargeClass"] for row in usage} == {None}
    assert cells(as_operator.get(f"{FOCUS}?format=csv"))[0]["BillingAccountId"] == str(closed.acme.tenant.id)


def test_costs_and_margins_are_shown_and_exported(
    world: World, as_operator: APIClient, as_acme: APIClient, signed_in: SignIn
) -> None:
    fixtures.fleet(world)
    Pool.objects.update(slot_hour_pico=2 * 10**12)
    replica = Replica.objects.filter(leases__isnull=False).order_by("id")[0]
    now = timezone.now()
    SlotLease.objects.exclude(replica=replica).delete()
    SlotLease.objects.update(acquired_at=now - timedelta(minutes=1))
    fixtures.store([fixtures.answered(world, world.acme, now, 1, replica_id=replica.id)])
    month = f"{now.astimezone(UTC):%Y-%m}"
    (one,) = as_operator.get(f"/api/v1/chargeback/costs/{month}").json()["data"]
    assert (one["deployment"], one["tokens"], one["engine_ms"], one["unused_pico"]) == (fixtures.MODEL, 1100, 840, 0)
    (margin,) = as_operator.get(f"/api/v1/chargeback/margin/{month}").json()["data"]
    assert (margin["tenant"], margin["revenue_pico"], margin["engine_ms"]) == ("acme", 156_000_000, 840)
    assert margin["margin_pico"] == 156_000_000 - margin["cost_pico"]
    assert cells(as_operator.get(f"/api/v1/chargeback/costs/{month}?format=csv"))[0]["tokens"] == "1100"
    assert cells(as_operator.get(f"/api/v1/chargeback/margin/{month}?format=csv"))[0]["tenant"] == "acme"
    page = signed_in(world.operator).get(f"{PAGE}?month={month}&engines=1").content.decode()
    assert 'data-testid="deployment-costs"' in page and 'data-testid="margins"' in page
    for name in ("engines", "margin"):
        assert signed_in(world.operator).get(f"{PAGE}{name}.csv?month={month}").status_code == 200
    for what in ("costs", "margin"):
        assert as_acme.get(f"/api/v1/chargeback/{what}/{month}").status_code == 403


def test_codes_are_listed_and_removed(world: World, as_operator: APIClient) -> None:
    body = {"code": "6200", "line_class": "completion", "model": "tiny-chat"}
    assert as_operator.put(CODES, body, format="json").json() == body
    assert as_operator.get(CODES).json() == {"data": [body]}
    assert as_operator.delete(f"{CODES}?line_class=completion").status_code == 404
    assert as_operator.delete(f"{CODES}?line_class=completion&model=tiny-chat").status_code == 204
    assert as_operator.get(CODES).json() == {"data": []}
    for wrong, param in (({"code": ""}, "code"), ({"code": "6", "line_class": "tokens"}, "class"), ({"x": 1}, "code")):
        answer = as_operator.put(CODES, wrong, format="json")
        assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert as_operator.delete(f"{CODES}?model=%00").status_code == 400


def test_nobody_else_sees_or_changes_them(closed: World, as_acme: APIClient, signed_in: SignIn) -> None:
    for path in (JOURNAL, FOCUS, CODES):
        assert as_acme.get(path).status_code == 403
    assert as_acme.put(CODES, {"code": "6100"}, format="json").status_code == 403
    owner = signed_in(closed.acme.owner)
    for path in (PAGE, f"{PAGE}journal.csv", f"{PAGE}focus.csv"):
        assert owner.get(path).status_code in {403, 404}
    owner.post(PAGE, {"action": "set", "code": "6100"})
    assert gl_codes.rows() == []


def test_the_page_sets_codes_and_shows_the_journal(closed: World, signed_in: SignIn) -> None:
    browser = signed_in(closed.operator)
    assert 'data-testid="missing"' in browser.get(f"{PAGE}?month=2026-03").content.decode()
    back = browser.get(f"{PAGE}journal.csv?month=2026-03")
    assert (back.status_code, back.headers["Location"]) == (302, f"{PAGE}?month=2026-03")
    for form in ({"code": "6100"}, {"code": "9000", "line_class": "credit"}):
        browser.post(PAGE, {"action": "set", "month": "2026-03", **form})
    page = browser.get(f"{PAGE}?month=2026-03").content.decode()
    assert 'data-testid="journal"' in page and "$0.02" in page and "globex" in page
    assert "Nothing was changed" in browser.post(PAGE, {"action": "set", "code": ""}, follow=True).content.decode()
    browser.post(PAGE, {"action": "remove", "line_class": "credit"})
    assert [row.code for row in gl_codes.rows()] == ["6100"]
    assert f"{PAGE}?month=2026-03" in browser.get("/portal/months/?month=2026-03").content.decode()
