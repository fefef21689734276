"""A key acts within its project unless it has the scope ``management:tenant``: what it sees, changes and grants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from billing.ledger.usage_rows import UsageRow
from tenants import registry
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, CachePurge, Limit, Project
from tenants.policy import budgets, cache_settings, limits
from tenants.policy.budgets import BudgetTerms
from tenants.policy.cache_settings import CacheOverrides
from tenants.policy.limits import LimitValues
from tenants.policy.policy_target import PolicyTarget
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

ACME = "/api/v1/tenants/acme"
#: What ``fixtures.answered`` is charged.
ANSWER_PICO = 600 * 150_000 + 400 * 15_000 + 100 * 600_000
MANAGE = ("inference", "management:read", "management:write")


@dataclass(frozen=True, slots=True, kw_only=True)
class Projects:
    """Acme's projects ``default`` and ``hr``, each with a key that manages it, a limit, a budget and one request."""

    hr: Project
    default_key: ApiKey
    hr_key: ApiKey
    default: APIClient
    in_hr: APIClient
    default_row: UsageRow
    hr_row: UsageRow


@pytest.fixture
def projects(world: World) -> Projects:
    now = timezone.now()
    tenant = world.acme.tenant
    hr = registry.create_project(fixtures.OPERATOR, tenant, slug="hr", name="HR")
    default_key = keys.issue(fixtures.OPERATOR, world.acme.project, name="default", scopes=MANAGE)
    hr_key = keys.issue(fixtures.OPERATOR, hr, name="hr", scopes=MANAGE)
    limits.set_limit(fixtures.OPERATOR, PolicyTarget(tenant=tenant), LimitValues(requests_per_minute=600))
    for project, key in ((world.acme.project, default_key.key), (hr, hr_key.key)):
        of_project, of_key = PolicyTarget(tenant=tenant, project=project), PolicyTarget(tenant=tenant, key=key)
        limits.set_limit(fixtures.OPERATOR, of_project, LimitValues(requests_per_minute=60))
        limits.set_limit(fixtures.OPERATOR, of_key, LimitValues(requests_per_minute=60))
        budgets.create(fixtures.OPERATOR, of_project, BudgetTerms(limit_pico=10**12))
        cache_settings.set_setting(fixtures.OPERATOR, of_project, CacheOverrides(mode="all"))
    rows = [
        _row(world, now, number, project, key)
        for number, (project, key) in enumerate([(world.acme.project, default_key.key), (hr, hr_key.key)], start=1)
    ]
    fixtures.store(rows)
    return Projects(
        hr=hr,
        default_key=default_key.key,
        hr_key=hr_key.key,
        default=bearer(default_key.secret),
        in_hr=bearer(hr_key.secret),
        default_row=rows[0],
        hr_row=rows[1],
    )


def test_a_key_made_without_scopes_calls_models_and_reads_nothing_of_its_tenant(
    world: World, as_operator: APIClient
) -> None:
    made = as_operator.post(f"{ACME}/keys", {"name": "application"}, format="json").json()
    assert made["scopes"] == ["inference", "cache:read", "cache:write"]
    leaked = bearer(made["secret"])
    for path in (f"{ACME}/keys", f"{ACME}/limits", f"{ACME}/budgets", "/api/v1/usage", "/api/v1/audit"):
        refused = leaked.get(path)
        assert (refused.status_code, "management:read" in error_of(refused)["message"]) == (403, True), path


def test_a_key_sees_of_its_tenant_what_belongs_to_its_project(projects: Projects) -> None:
    for client, slug, key in (
        (projects.default, "default", projects.default_key),
        (projects.in_hr, "hr", projects.hr_key),
    ):
        assert _listed(client, f"{ACME}/projects", "slug") == {slug}
        assert str(key.id) in _listed(client, f"{ACME}/keys", "id")
        assert _listed(client, f"{ACME}/keys", "project") == {slug}
        assert _listed(client, f"{ACME}/limits", "project") | _listed(client, f"{ACME}/limits", "key") == {
            slug, str(key.id), None,
        }  # fmt: skip
        assert len(client.get(f"{ACME}/limits").json()["data"]) == 2
        assert _listed(client, f"{ACME}/budgets", "project") == {slug}
        assert _listed(client, f"{ACME}/cache/settings", "project") == {slug}
        assert client.get(f"{ACME}/cache").json()["stored"] is None


def test_a_tenant_wide_key_sees_the_whole_tenant(world: World, projects: Projects, as_acme: APIClient) -> None:
    assert _listed(as_acme, f"{ACME}/projects", "slug") == {"default", "hr"}
    assert _listed(as_acme, f"{ACME}/keys", "project") == {"default", "hr"}
    assert len(as_acme.get(f"{ACME}/limits").json()["data"]) == 5
    assert _listed(as_acme, "/api/v1/usage", "id") == {str(projects.default_row.id), str(projects.hr_row.id)}


def test_usage_is_that_of_the_project(projects: Projects) -> None:
    client, own, other = projects.in_hr, projects.hr_row, projects.default_row
    assert _listed(client, "/api/v1/usage", "id") == {str(own.id)}
    assert client.get(f"/api/v1/usage/{own.id}").status_code == 200
    assert client.get(f"/api/v1/usage/{other.id}").status_code == 404
    assert client.get("/api/v1/usage", {"project": str(other.project_id)}).status_code == 404
    assert client.get("/api/v1/usage", {"key": str(other.key_id)}).json()["data"] == []
    assert client.get("/api/v1/usage", {"request_id": str(other.id)}).json()["data"] == []
    exported = client.get("/api/v1/usage", {"format": "csv"})
    text = b"".join(exported.streaming_content).decode()  # type: ignore[attr-defined]
    assert (str(own.id) in text, str(other.id) in text) == (True, False)
    totals = client.get("/api/v1/usage/totals").json()
    assert (totals["total"]["requests"], totals["total"]["amount_pico"]) == (1, ANSWER_PICO)
    assert [each["sums"]["requests"] for each in totals["by_model"]] == [1]
    for query in ({}, {"step": "3600"}):
        points = client.get("/api/v1/usage/series", query).json()["points"]
        assert sum(each["sums"]["requests"] for each in points) == 1
    for by, name in (("project", "hr"), ("key", "hr"), ("model", fixtures.MODEL)):
        report = client.get("/api/v1/usage/savings", {"group_by": by}).json()
        assert ([each["name"] for each in report["groups"]], report["total"]["requests"]) == ([name], 1)


def test_reasons_to_bypass_the_cache_are_counted_for_the_project(world: World, projects: Projects) -> None:
    bypassed = {"cache_result": "bypass", "cache_reason": "no-store"}
    now = timezone.now()
    fixtures.store(
        [
            msgspec.structs.replace(_row(world, now, number, project, projects.hr_key), **bypassed)
            for number, project in ((7, projects.hr), (8, projects.hr), (9, world.acme.project))
        ]
    )
    found = projects.in_hr.get("/api/v1/usage/savings").json()["bypasses"]
    assert [(each["reason"], each["requests"]) for each in found] == [("no-store", 2)]


def test_the_statement_is_what_the_project_costs(projects: Projects, as_acme: APIClient) -> None:
    path = f"{ACME}/statements/{timezone.now():%Y-%m}"
    own, whole = projects.in_hr.get(path).json(), as_acme.get(path).json()
    assert (own["project"], own["amount_pico"], own["requests"]) == ("hr", ANSWER_PICO, 1)
    assert (own["ledger_pico"], own["equals_ledger"]) == (None, None)
    assert (whole["project"], whole["amount_pico"], whole["equals_ledger"]) == (None, 2 * ANSWER_PICO, True)


def test_the_audit_log_is_that_of_the_project(projects: Projects) -> None:
    entries = projects.in_hr.get("/api/v1/audit", {"limit": 500}).json()["data"]
    assert {each["action"] for each in entries} == {
        "project.created", "key.issued", "limit.set", "budget.created", "cache_setting.set",
    }  # fmt: skip
    shown = str(entries)
    assert projects.hr_key.public_id in shown
    assert projects.default_key.public_id not in shown
    assert "'project': 'default'" not in shown
    assert projects.in_hr.get("/api/v1/audit", {"tenant": "acme", "limit": "500"}).json()["data"] == entries


def test_another_project_is_not_found_and_stays_as_it_is(world: World, projects: Projects) -> None:
    client, foreign = projects.in_hr, projects.default_key
    limit = Limit.objects.get(project=world.acme.project)
    budget = world.acme.project.budgets.get()
    setting = world.acme.project.cache_settings.get()
    before = AuditEntry.objects.count()
    for answer in (
        client.get(f"{ACME}/keys/{foreign.id}"),
        client.patch(f"{ACME}/keys/{foreign.id}", {"name": "x"}, format="json"),
        client.delete(f"{ACME}/keys/{foreign.id}"),
        client.post(f"{ACME}/keys/{foreign.id}/revoke"),
        client.post(f"{ACME}/keys/{foreign.id}/rotate", {}, format="json"),
        client.post(f"{ACME}/keys", {"name": "x", "project": "default", "scopes": ["inference"]}, format="json"),
        client.post(f"{ACME}/projects/default/archive"),
        client.put(f"{ACME}/limits", {"project": "default", "requests_per_minute": 1}, format="json"),
        client.put(f"{ACME}/limits", {"key": str(foreign.id), "requests_per_minute": 1}, format="json"),
        client.get(f"{ACME}/limits/{limit.id}"),
        client.delete(f"{ACME}/limits/{limit.id}"),
        client.put(f"{ACME}/budgets", {"project": "default", "limit_pico": 1}, format="json"),
        client.get(f"{ACME}/budgets/{budget.id}"),
        client.delete(f"{ACME}/budgets/{budget.id}"),
        client.put(f"{ACME}/cache/settings", {"project": "default", "mode": "off"}, format="json"),
        client.delete(f"{ACME}/cache/settings/{setting.id}"),
        client.post(f"{ACME}/cache/purge", {"key": str(foreign.id)}, format="json"),
        client.post(f"{ACME}/cache/purge", {"request": str(projects.default_row.id)}, format="json"),
    ):
        assert answer.status_code == 404, answer.content
    assert AuditEntry.objects.count() == before


def test_a_key_makes_keys_of_its_project_only_and_makes_none_tenant_wide(projects: Projects) -> None:
    made = projects.in_hr.post(f"{ACME}/keys", {"name": "x", "scopes": ["inference"]}, format="json")
    assert (made.status_code, made.json()["project"]) == (201, "hr")
    wide = {"name": "x", "scopes": ["management:read", "management:tenant"]}
    refused = projects.in_hr.post(f"{ACME}/keys", wide, format="json")
    assert (refused.status_code, error_of(refused)["code"]) == (403, "permission_denied")
    own = f"{ACME}/keys/{projects.hr_key.id}"
    assert projects.in_hr.patch(own, {"scopes": [*MANAGE, "management:tenant"]}, format="json").status_code == 403


def test_a_key_of_one_project_purges_what_the_project_stored(projects: Projects) -> None:
    path = f"{ACME}/cache/purge"
    for body in ({"everything": True}, {"model": fixtures.MODEL}):
        refused = projects.in_hr.post(path, body, format="json")
        assert (refused.status_code, "management:tenant" in error_of(refused)["message"]) == (403, True)
    assert not CachePurge.objects.exists()
    for own in ({"key": str(projects.hr_key.id)}, {"request": str(projects.hr_row.id)}):
        assert projects.in_hr.post(path, own, format="json").status_code == 201


def _row(world: World, now: datetime, number: int, project: Project, key: ApiKey) -> UsageRow:
    moment = now - timedelta(seconds=1)
    row = fixtures.answered(world, world.acme, moment, number)
    return msgspec.structs.replace(row, project_id=project.id, key_id=key.id)


def _listed(client: APIClient, path: str, field: str) -> set[Any]:
    return {each[field] for each in client.get(path).json()["data"]}
