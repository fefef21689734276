"""Closed months in the API: operators close and reopen, a tenant reads its own closings and frozen lines."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rest_framework.test import APIClient

from billing.models import BillingMonth
from tenants.models import AuditEntry, Tenant, User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

ACME = "/api/v1/tenants/acme/months"
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
#: Of one answer of the fixtures.
ONE = 600 * 150_000 + 400 * 15_000 + 100 * 600_000


@pytest.fixture
def eve(world: World) -> APIClient:
    """A second operator."""
    client = APIClient()
    client.force_login(User.objects.create(username="eve", is_staff=True))
    return client


@pytest.fixture
def used(world: World) -> World:
    """A request of Acme in March."""
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    fixtures.store([fixtures.answered(world, world.acme, MARCH, 1)])
    return world


def post(client: APIClient, path: str, body: dict[str, Any] | None = None) -> Any:
    return client.post(path, body or {}, format="json")


def test_a_month_is_closed_once_and_its_statement_is_frozen(
    as_operator: APIClient, as_acme: APIClient, used: World
) -> None:
    first = post(as_operator, f"{ACME}/2026-03/close")
    assert (first.status_code, first.json()["amount_pico"], first.json()["closed_by"]) == (201, ONE, "ada")
    again = post(as_operator, f"{ACME}/2026-03/close")
    assert (again.status_code, again.json()) == (200, first.json())
    fixtures.store([fixtures.answered(used, used.acme, MARCH, 2)])
    [row] = as_acme.get(ACME).json()["data"]
    assert (row["month"], row["state"], row["amount_pico"], row["closed_by"]) == ("2026-03", "closed", ONE, None)
    march, april = (as_acme.get(f"/api/v1/tenants/acme/statements/2026-{month}").json() for month in ("03", "04"))
    assert (march["amount_pico"], march["revision"], march["equals_ledger"]) == (ONE, 1, True)
    assert (april["amount_pico"], april["closed_at"], april["equals_ledger"]) == (ONE, None, True)
    assert {line["adjusts_month"] for line in april["lines"]} == {"2026-03"}


def test_closings_are_downloaded_without_peoples_names_by_a_tenant(
    as_operator: APIClient, as_acme: APIClient, as_globex: APIClient, used: World
) -> None:
    post(as_operator, f"{ACME}/2026-03/close")
    header, row = b"".join(as_acme.get(ACME, {"format": "csv"})).decode().splitlines()
    own = dict(zip(header.split(","), row.split(","), strict=True))
    assert (own["month"], own["state"], own["amount_pico"], own["closed_by"]) == ("2026-03", "closed", str(ONE), "")
    assert as_globex.get(ACME, {"format": "csv"}).status_code == 404
    header, acme, globex = b"".join(as_operator.get("/api/v1/months/2026-03", {"format": "csv"})).decode().splitlines()
    assert header.startswith("tenant,month,state,revision,") and header.endswith(",reopened_at,closes_at")
    assert acme.startswith("acme,2026-03,closed,1,UTC,2026-03-01T00:00:00+00:00,") and ",ada," in acme
    assert globex.startswith("globex,2026-03,open,,,") and len(globex.split(",")) == len(header.split(","))


def test_a_second_operator_reopens(as_operator: APIClient, eve: APIClient, used: World) -> None:
    post(as_operator, f"{ACME}/2026-03/close")
    asked = post(as_operator, f"{ACME}/2026-03/reopen", {"reason": "a wrong price"})
    assert (asked.status_code, asked.json()["state"]) == (200, "closed")
    alone = post(as_operator, f"{ACME}/2026-03/confirm-reopening")
    assert (alone.status_code, error_of(alone)["code"]) == (409, "month_not_reopened")
    opened = post(eve, f"{ACME}/2026-03/confirm-reopening")
    assert (opened.status_code, opened.json()["state"], opened.json()["reopened_by"]) == (200, "reopened", "eve")
    every = as_operator.get("/api/v1/months/2026-03").json()["data"]
    assert [(each["tenant"], each["state"]) for each in every] == [("globex", "open"), ("acme", "reopened")]
    assert AuditEntry.objects.get(action="month.reopened").actor == "eve"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("2099-01/close", {}, 409, "month_open"),
        ("march/close", {}, 400, "invalid_value"),
        ("2026-03/close", {"force": True}, 400, "invalid"),
        ("2026-03/reopen", {}, 400, "required"),
        ("2026-03/reopen", {"reason": "why"}, 409, "month_not_reopened"),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(
    as_operator: APIClient, used: World, path: str, body: dict[str, Any], status: int, code: str
) -> None:
    answer = post(as_operator, f"{ACME}/{path}", body)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code), answer.json()
    assert not BillingMonth.objects.exists()


def test_pages_of_closings_have_a_cursor(as_operator: APIClient, used: World) -> None:
    for month in ("2026-03", "2026-04", "2026-05"):
        assert post(as_operator, f"{ACME}/{month}/close").status_code == 201
    first = as_operator.get(f"{ACME}?limit=2").json()
    rest = as_operator.get(f"{ACME}?limit=2&after={first['next_after']}").json()
    assert [row["month"] for row in (*first["data"], *rest["data"])] == ["2026-05", "2026-04", "2026-03"]
    every = as_operator.get("/api/v1/months/2026-03?limit=1").json()
    second = as_operator.get(f"/api/v1/months/2026-03?limit=1&after={every['next_after']}").json()
    assert [each["data"][0]["tenant"] for each in (every, second)] == ["globex", "acme"]


def test_a_stranger_sees_and_changes_nothing(as_operator: APIClient, as_globex: APIClient, used: World) -> None:
    post(as_operator, f"{ACME}/2026-03/close")
    assert as_globex.get(ACME).status_code == 404
    assert as_globex.get("/api/v1/tenants/globex/months").json()["data"] == []
    for path in (f"{ACME}/2026-04/close", f"{ACME}/2026-03/reopen", f"{ACME}/2026-03/confirm-reopening"):
        assert post(as_globex, path, {"reason": "why"}).status_code in {401, 403, 404}
    assert as_globex.get("/api/v1/months/2026-03").status_code == 403
    assert BillingMonth.objects.count() == 1
