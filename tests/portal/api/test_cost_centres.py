"""Cost centres of tenants and projects: who sets them, and reports that divide usage by them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from tenants import registry
from tenants.models import AuditEntry, Project, Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignedIn = Callable[[User], Client]
ACME = "/api/v1/tenants/acme"
RESEARCH = f"{ACME}/projects/research"
BREAKDOWN = "/api/v1/usage/breakdown?group_by=cost_centre"
#: 600 × 150,000 + 400 × 15,000 + 100 × 600,000 pico-dollars.
ANSWER_PICO = 156_000_000


@pytest.fixture
def research(world: World) -> Project:
    return registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="research", name="Research")


@pytest.fixture
def used(world: World, research: Project) -> World:
    """Acme: two answers of its project default, one of research. Globex: one."""
    now = timezone.now() - timedelta(minutes=30)
    of_research = msgspec.structs.replace(fixtures.answered(world, world.acme, now, 3), project_id=research.id)
    mine = [fixtures.answered(world, world.acme, now, number) for number in (1, 2)]
    fixtures.store([*mine, of_research, fixtures.answered(world, world.globex, now, 4)])
    return world


def billed(answer: Any) -> dict[str, int]:
    return {group["name"]: group["sums"]["amount_pico"] for group in answer.json()["groups"]}


def cells(answer: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))


def test_a_project_has_its_own_or_its_tenants(used: World, as_operator: APIClient, as_acme: APIClient) -> None:
    assert billed(as_acme.get(BREAKDOWN)) == {"": 3 * ANSWER_PICO}
    assert as_operator.patch(ACME, {"cost_centre": " CC-4711 "}, format="json").json()["cost_centre"] == "CC-4711"
    assert as_acme.patch(RESEARCH, {"cost_centre": "CC-0815"}, format="json").json()["cost_centre"] == "CC-0815"
    assert billed(as_acme.get(BREAKDOWN)) == {"CC-4711": 2 * ANSWER_PICO, "CC-0815": ANSWER_PICO}
    assert billed(as_operator.get(BREAKDOWN)) == {"CC-4711": 2 * ANSWER_PICO, "CC-0815": ANSWER_PICO, "": ANSWER_PICO}
    changes = AuditEntry.objects.filter(action__endswith="cost_centre_changed").order_by("id")
    assert [(each.action, each.before, each.after) for each in changes] == [
        ("tenant.cost_centre_changed", {"cost_centre": ""}, {"cost_centre": "CC-4711"}),
        ("project.cost_centre_changed", {"cost_centre": ""}, {"cost_centre": "CC-0815"}),
    ]
    as_acme.patch(RESEARCH, {"cost_centre": "CC-0815"}, format="json")
    assert changes.count() == 2
    rows = cells(as_acme.get(f"{BREAKDOWN}&format=csv"))
    assert [(row["by"], row["name"], row["requests"], row["billed"]) for row in rows] == [
        ("total", "", "3", "0.000468000000"),
        ("cost_centre", "CC-4711", "2", "0.000312000000"),
        ("cost_centre", "CC-0815", "1", "0.000156000000"),
    ]
    rows = cells(as_acme.get("/api/v1/usage?format=csv"))
    assert sorted(row["cost_centre"] for row in rows) == ["CC-0815", "CC-4711", "CC-4711"]


def test_a_new_tenant_or_project_may_begin_with_one(world: World, as_operator: APIClient, as_acme: APIClient) -> None:
    sent = {"slug": "initech", "name": "Initech", "cost_centre": "CC-1"}
    assert as_operator.post("/api/v1/tenants", sent, format="json").json()["cost_centre"] == "CC-1"
    sent = {"slug": "hr", "name": "HR", "cost_centre": "CC-2"}
    assert as_acme.post(f"{ACME}/projects", sent, format="json").json()["cost_centre"] == "CC-2"
    refused = as_acme.post(f"{ACME}/projects", {**sent, "slug": "it", "cost_centre": "a\nb"}, format="json")
    assert (refused.status_code, Project.objects.filter(slug="it").exists()) == (400, False)


@pytest.mark.parametrize("code", ["x" * 65, "a\0b", "a\tb", "a\u202eb", None, ["CC"]])
def test_a_code_that_is_none_changes_nothing(research: Project, as_operator: APIClient, code: object) -> None:
    for path in (ACME, RESEARCH):
        answer = as_operator.patch(path, {"cost_centre": code}, format="json")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cost_centre")
    assert not AuditEntry.objects.filter(action__endswith="cost_centre_changed").exists()


def test_a_stranger_sees_and_changes_nothing(
    used: World, as_operator: APIClient, as_acme: APIClient, as_globex: APIClient
) -> None:
    as_operator.patch(RESEARCH, {"cost_centre": "CC-0815"}, format="json")
    assert billed(as_globex.get(BREAKDOWN)) == {"": ANSWER_PICO}
    assert as_globex.get(f"{BREAKDOWN}&tenant=acme").status_code == 404
    assert as_globex.patch(RESEARCH, {"cost_centre": "mine"}, format="json").status_code == 404
    assert as_acme.patch(ACME, {"cost_centre": "mine"}, format="json").status_code == 403
    assert as_acme.get("/api/v1/usage/breakdown?group_by=tenant").status_code == 400
    assert Project.objects.get(slug="research").cost_centre == "CC-0815"
    assert Tenant.objects.get(slug="acme").cost_centre == ""


def test_an_archived_tenant_keeps_what_it_has(world: World, as_operator: APIClient) -> None:
    registry.archive(fixtures.OPERATOR, world.acme.tenant)
    answer = as_operator.patch(ACME, {"cost_centre": "CC-1"}, format="json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "not_allowed")


@pytest.mark.parametrize(("group_by", "names"), [
    ("model", [fixtures.MODEL]), ("project", ["default", "research"]), ("tenant", ["acme", "globex"]), ("day", None),
])  # fmt: skip
def test_usage_is_divided_in_other_ways_too(
    used: World, as_operator: APIClient, group_by: str, names: list[str] | None
) -> None:
    document = as_operator.get(f"/api/v1/usage/breakdown?group_by={group_by}").json()
    groups = document["groups"]
    assert sum(group["sums"]["amount_pico"] for group in groups) == document["total"]["amount_pico"]
    if names is None:
        assert [group["name"] for group in groups] == [f"{timezone.now() - timedelta(minutes=30):%Y-%m-%d}"]
    else:
        assert {group["name"] for group in groups} >= set(names)
    assert all((group["id"] is None) == (group_by in {"model", "day"}) for group in groups)
    assert all(UUID(group["id"]) for group in groups if group["id"])


def test_each_group_has_its_percentiles(used: World, as_acme: APIClient, signed_in: SignedIn) -> None:
    document = as_acme.get("/api/v1/usage/breakdown?group_by=project").json()
    counts = {group["name"]: group["latency"]["ttft"]["requests"] for group in document["groups"]}
    assert (counts, document["latency"]["ttft"]["requests"]) == ({"default": 2, "research": 1}, 3)
    assert document["latency"]["ttft"]["p99_ms"] == pytest.approx(62.0, rel=0.049)
    assert document["latency"]["tpot"] == {"requests": 0, "p50_ms": None, "p95_ms": None, "p99_ms": None}
    rows = cells(as_acme.get("/api/v1/usage/breakdown?group_by=key&format=csv"))
    assert [float(row["ttft_p95_ms"]) for row in rows] == [pytest.approx(62.0, rel=0.049)] * 2
    assert {row["tpot_p95_ms"] for row in rows} == {""}
    page = signed_in(used.acme.owner).get("/portal/tenants/acme/usage/?by=key").content.decode()
    assert "TTFT p50 / p95 / p99" in page


def test_pages_set_and_show_them(used: World, signed_in: SignedIn) -> None:
    operator, owner = signed_in(used.operator), signed_in(used.acme.owner)
    page = "/portal/tenants/acme"
    assert operator.post(f"{page}/cost-centre/", {"cost_centre": "CC-4711"}).status_code == 302
    assert "<dd>CC-4711</dd>" in owner.get(f"{page}/policy/").content.decode()
    assert owner.post(f"{page}/cost-centre/", {"cost_centre": "mine"}).status_code == 404
    refused = operator.post(f"{page}/cost-centre/", {"cost_centre": "x" * 65})
    assert (refused.status_code, "at most 64 printable characters" in refused.content.decode()) == (400, True)
    owner.post(f"{page}/projects/research/cost-centre/", {"cost_centre": "CC-0815"})
    assert 'value="CC-0815"' in owner.get(f"{page}/projects/").content.decode()
    answer = owner.post(f"{page}/projects/research/cost-centre/", {"cost_centre": "a\0b"}, follow=True)
    assert "Nothing was changed." in answer.content.decode()
    shown = owner.get(f"{page}/usage/?by=cost_centre").content.decode()
    assert all(f'data-testid="usage-by-{code}"' in shown for code in ("CC-4711", "CC-0815"))
    assert 'data-testid="usage-by-no cost centre"' in operator.get("/portal/usage/?by=cost_centre").content.decode()
    rows = cells(owner.get(f"{page}/usage-by.csv?by=cost_centre"))
    assert {row["name"]: row["requests"] for row in rows} == {"": "3", "CC-4711": "2", "CC-0815": "1"}
    assert owner.get(f"{page}/usage/?by=tenant").status_code == 400
    assert signed_in(used.globex.owner).get(f"{page}/usage/").status_code == 404
