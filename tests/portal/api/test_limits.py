"""Limits and budgets by API: who may set and read which, and the status of budgets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone
from redis import Redis
from rest_framework.test import APIClient

from billing.budgets import spending
from billing.budgets.holds import counter_name, hold_value, holds_key
from billing.budgets.reconciler import BudgetReconciler
from billing.budgets.redis_counters import BudgetCounters
from billing.drain import batch
from billing.models import BudgetAlert
from tenants.ids import TenantId, new_id
from tenants.keys import keys
from tenants.models import AuditEntry, Budget, Limit
from tenants.snapshot import snapshot
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

LIMITS, BUDGETS = "/api/v1/tenants/acme/limits", "/api/v1/tenants/acme/budgets"
DOLLAR_PICO = 10**12
#: What ``fixtures.answered`` is charged: 600 uncached and 400 cached prompt tokens, 100 completion tokens.
ANSWER_PICO = 600 * 150_000 + 400 * 15_000 + 100 * 600_000


def put(client: APIClient, path: str, body: dict[str, Any]) -> Any:
    """Send a PUT with JSON."""
    return client.put(path, body, format="json")


@pytest.fixture
def counters() -> Iterator[BudgetReconciler]:
    """A drain's reconciler of the session's Redis."""
    opened = BudgetCounters(os.environ["REDIS_URL"], timeout_seconds=5)
    yield BudgetReconciler(opened, list)
    opened.close()


@pytest.fixture
def as_reader(world: World) -> APIClient:
    """A client with a key of acme that may read the whole tenant."""
    scopes = ["management:read", "management:tenant"]
    return bearer(keys.issue(fixtures.OPERATOR, world.acme.project, name="r", scopes=scopes).secret)


def test_an_operator_sets_changes_and_lifts_a_limit_of_a_tenant(world: World, as_operator: APIClient) -> None:
    made = put(as_operator, LIMITS, {"requests_per_minute": 60})
    assert made.status_code == 200
    figures = {"requests_per_minute": 60, "tokens_per_minute": None, "concurrent_requests": None}
    assert {name: made.json()[name] for name in figures} == figures
    assert {name: made.json()[name] for name in ("project", "key", "model")} == {
        "project": None, "key": None, "model": "",
    }  # fmt: skip
    again = put(as_operator, LIMITS, {"tokens_per_minute": 9})
    assert again.json()["id"] == made.json()["id"]
    assert again.json()["requests_per_minute"] is None
    assert as_operator.get(f"{LIMITS}/{made.json()['id']}").json() == again.json()
    assert as_operator.get(LIMITS).json()["data"] == [again.json()]
    assert as_operator.delete(f"{LIMITS}/{made.json()['id']}").status_code == 204
    assert as_operator.get(LIMITS).json()["data"] == []
    assert AuditEntry.objects.filter(action__startswith="limit.", actor="ada").count() == 3


def test_a_number_is_no_id_of_a_key(world: World, as_operator: APIClient) -> None:
    for path, body in ((LIMITS, {"requests_per_minute": 60}), (BUDGETS, {"limit_pico": DOLLAR_PICO})):
        refused = put(as_operator, path, {"key": world.acme.key.id.int, **body})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "key")
    assert not Limit.objects.exists()
    assert not Budget.objects.exists()


def test_a_key_that_may_change_things_bounds_its_own_projects_and_keys(world: World, as_acme: APIClient) -> None:
    of_project = put(as_acme, LIMITS, {"project": "default", "concurrent_requests": 4})
    of_key = put(as_acme, LIMITS, {"key": str(world.acme.key.id), "model": fixtures.MODEL, "tokens_per_minute": 500})
    assert (of_project.status_code, of_key.status_code) == (200, 200)
    assert (of_project.json()["project"], of_key.json()["key"]) == ("default", str(world.acme.key.id))
    budget = put(as_acme, BUDGETS, {"project": "default", "limit_pico": DOLLAR_PICO, "alert_percents": [80]})
    assert budget.status_code == 201
    caller = snapshot.load().authenticate(world.acme.secret)
    assert {line.scope for line in caller.limits} == {"project", "key"}
    assert [line.limit_pico for line in caller.budgets] == [DOLLAR_PICO]
    assert as_acme.delete(f"{BUDGETS}/{budget.json()['id']}").status_code == 204
    assert as_acme.get(f"{BUDGETS}/{budget.json()['id']}").status_code == 404


def test_what_bounds_the_tenant_as_a_whole_is_not_its_own_to_set(
    world: World, as_operator: APIClient, as_acme: APIClient
) -> None:
    limit = put(as_operator, LIMITS, {"requests_per_minute": 60}).json()["id"]
    budget = put(as_operator, BUDGETS, {"limit_pico": DOLLAR_PICO}).json()["id"]
    for refused in (
        put(as_acme, LIMITS, {"requests_per_minute": 10**6}),
        put(as_acme, BUDGETS, {"limit_pico": 10**6 * DOLLAR_PICO}),
        as_acme.delete(f"{LIMITS}/{limit}"),
        as_acme.delete(f"{BUDGETS}/{budget}"),
    ):
        assert refused.status_code == 403
        assert error_of(refused)["type"] == "permission_error"
    assert Limit.objects.get().requests_per_minute == 60
    assert Budget.objects.get(archived_at=None).limit_pico == DOLLAR_PICO


def test_a_raised_budget_is_right_at_once(world: World, as_operator: APIClient, counters: BudgetReconciler) -> None:
    now = timezone.now()
    batch.store([fixtures.answered(world, world.acme, now, 1)], {}, node="here")
    made = put(as_operator, BUDGETS, {"limit_pico": 0}).json()
    counters.round(now)
    running, settled = new_id(), fixtures.request_id(now, 1)
    name = counter_name(UUID(made["id"]), int(datetime.fromisoformat(made["starts_at"]).timestamp()))
    with Redis.from_url(os.environ["REDIS_URL"]) as redis:
        holds = holds_key(TenantId(world.acme.tenant.id))
        redis.hset(holds, running.hex, hold_value(7, [name]))
        redis.hset(holds, settled.hex, f"={hold_value(ANSWER_PICO, [name])}")
    raised = put(as_operator, BUDGETS, {"limit_pico": 25 * DOLLAR_PICO}).json()
    assert (raised["spent_pico"], raised["held_pico"]) == (ANSWER_PICO, 7)
    assert raised["left_pico"] == 25 * DOLLAR_PICO - ANSWER_PICO - 7
    found = as_operator.get(f"{BUDGETS}/{made['id']}").json()
    assert {**found, "forecast_pico": raised["forecast_pico"]} == raised  # a forecast follows the clock


def test_a_key_that_may_only_look_sees_them_and_sets_none(
    world: World, as_operator: APIClient, as_reader: APIClient
) -> None:
    put(as_operator, LIMITS, {"requests_per_minute": 60})
    put(as_operator, BUDGETS, {"limit_pico": DOLLAR_PICO})
    assert len(as_reader.get(LIMITS).json()["data"]) == len(as_reader.get(BUDGETS).json()["data"]) == 1
    assert put(as_reader, LIMITS, {"project": "default", "requests_per_minute": 1}).status_code == 403
    assert put(as_reader, BUDGETS, {"project": "default", "limit_pico": 1}).status_code == 403


def test_a_stranger_sees_and_sets_nothing(world: World, as_operator: APIClient, as_globex: APIClient) -> None:
    limit = put(as_operator, LIMITS, {"requests_per_minute": 60}).json()["id"]
    budget = put(as_operator, BUDGETS, {"limit_pico": DOLLAR_PICO}).json()["id"]
    before = AuditEntry.objects.count()
    for answer in (
        as_globex.get(LIMITS),
        as_globex.get(f"{LIMITS}/{limit}"),
        as_globex.get(f"/api/v1/tenants/globex/limits/{limit}"),
        as_globex.get(BUDGETS),
        as_globex.get(f"/api/v1/tenants/globex/budgets/{budget}"),
        put(as_globex, LIMITS, {"project": "default", "requests_per_minute": 1}),
        put(as_globex, BUDGETS, {"project": "default", "limit_pico": 1}),
        put(as_globex, "/api/v1/tenants/globex/limits", {"key": str(world.acme.key.id), "requests_per_minute": 1}),
        put(as_globex, "/api/v1/tenants/globex/budgets", {"key": str(world.acme.key.id), "limit_pico": 1}),
        as_globex.delete(f"/api/v1/tenants/globex/limits/{limit}"),
        as_globex.delete(f"/api/v1/tenants/globex/budgets/{budget}"),
    ):
        assert answer.status_code == 404, answer.content
    assert as_globex.get("/api/v1/tenants/globex/limits").json()["data"] == []
    assert as_globex.get("/api/v1/tenants/globex/budgets").json()["data"] == []
    assert AuditEntry.objects.count() == before


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (LIMITS, {}, 400, "limit"),
        (LIMITS, {"requests_per_minute": -1}, 400, "requests_per_minute"),
        (LIMITS, {"request_per_minute": 1}, 400, "request_per_minute"),
        (LIMITS, {"project": "no-such", "requests_per_minute": 1}, 404, None),
        (LIMITS, {"model": "no-such", "requests_per_minute": 1}, 404, None),
        (BUDGETS, {}, 400, "limit_pico"),
        (BUDGETS, {"limit_pico": 2**63}, 400, "limit_pico"),
        (BUDGETS, {"limit_pico": 1, "period": "year"}, 400, "period"),
        (BUDGETS, {"limit_pico": 1, "alert_percents": [0]}, 400, "alert_percents.0"),
        (BUDGETS, {"limit_pico": 1, "model": "no-such"}, 404, None),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_set(
    world: World, as_operator: APIClient, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = put(as_operator, path, body)
    assert (answer.status_code, error_of(answer)["param"]) == (status, param)
    assert not Limit.objects.exists()
    assert not Budget.objects.exists()


def test_a_budget_says_what_is_spent_left_and_forecast(
    world: World, as_operator: APIClient, as_acme: APIClient
) -> None:
    now = timezone.now()
    batch.store([fixtures.answered(world, world.acme, now, number) for number in range(4)], {}, node="here")
    made = put(as_operator, BUDGETS, {"limit_pico": 10 * ANSWER_PICO, "alert_percents": [50, 20]})
    assert made.status_code == 201
    windows = [(each, each.window(now)) for each in spending.active_budgets()]
    spending.open_windows(windows)
    spending.raise_alerts(windows)
    (found,) = as_acme.get(BUDGETS).json()["data"]
    assert (found["spent_pico"], found["held_pico"], found["left_pico"]) == (4 * ANSWER_PICO, 0, 6 * ANSWER_PICO)
    assert [(alert["percent"], alert["spent_pico"]) for alert in found["alerts"]] == [(20, 4 * ANSWER_PICO)]
    start, end = (datetime.fromisoformat(found[name]) for name in ("starts_at", "ends_at"))
    assert (start.day, start.hour, start.tzinfo) == (1, 0, UTC)
    assert start <= now < end
    assert found["forecast_pico"] >= found["spent_pico"]
    assert BudgetAlert.objects.count() == 1
    changed = put(as_operator, BUDGETS, {"limit_pico": 2 * ANSWER_PICO, "action": "alert"})
    assert (changed.status_code, changed.json()["id"]) == (200, found["id"])
    assert (changed.json()["left_pico"], changed.json()["held_pico"]) == (-2 * ANSWER_PICO, 0)
