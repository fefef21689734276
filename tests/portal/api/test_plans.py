"""Plans in the API: operators set, assign and preview them, a tenant reads its own terms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import Plan, TenantPlan
from billing.plans import terms
from tenants.models import AuditEntry, Tenant
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

#: Of one answer of the fixtures.
ONE = 600 * 150_000 + 400 * 15_000 + 100 * 600_000
TENTH = {"discounts": [{"percent": 10}]}
THIS = f"{timezone.now():%Y-%m}"
LATER = f"{timezone.now().year + 1}-06"


def put(client: APIClient, path: str, **body: Any) -> Any:
    return client.put(f"/api/v1/{path}", body, format="json")


def post(client: APIClient, path: str, **body: Any) -> Any:
    return client.post(f"/api/v1/{path}", body, format="json")


@pytest.fixture
def gold(as_operator: APIClient) -> None:
    """A plan from this month on, and other terms later, assigned to Acme."""
    for month, document in ((THIS, TENTH), (LATER, {})):
        assert put(as_operator, "plans/gold", from_month=month, terms=document).status_code == 200
    assert put(as_operator, "tenants/acme/plan", plan="gold", from_month=THIS).status_code == 200


def test_an_operator_sets_a_plan_and_reads_it(as_operator: APIClient, gold: None) -> None:
    [listed] = as_operator.get("/api/v1/plans").json()["data"]
    assert listed == as_operator.get("/api/v1/plans/gold").json()
    assert (listed["name"], listed["currency"], listed["tenant_id"]) == ("gold", "USD", None)
    assert [(each["from_month"], each["words"]) for each in listed["versions"]] == [(LATER, []), (THIS, ["10 % less."])]
    assert listed["versions"][1]["terms"] == terms.document(terms.read(TENTH))
    assert AuditEntry.objects.filter(action="plan.set").count() == 2
    assert set(as_operator.get("/api/v1/plan-schema").json()) >= {"$ref", "$defs"}


def test_a_tenant_reads_its_own_terms_and_those_to_come(as_acme: APIClient, gold: None) -> None:
    found = as_acme.get("/api/v1/tenants/acme/plan").json()
    assert found["tenant"] == "acme"
    assert [(each["from_month"], each["plan"], each["words"]) for each in found["agreements"]] == [
        (THIS, "gold", ["10 % less."]),
        (LATER, "gold", []),
    ]


def test_the_terms_of_a_tenant_end_with_its_plan(as_operator: APIClient, as_acme: APIClient, gold: None) -> None:
    assert put(as_operator, "tenants/acme/plan", plan=None, from_month=LATER).status_code == 200
    found = as_acme.get("/api/v1/tenants/acme/plan").json()["agreements"]
    assert [(each["from_month"], each["plan"]) for each in found] == [(THIS, "gold"), (LATER, None)]


def test_a_preview_changes_nothing(as_operator: APIClient, world: World) -> None:
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    last = timezone.now().replace(day=1) - timedelta(days=9)
    fixtures.store([fixtures.answered(world, world.acme, last, 1)])
    asked = post(as_operator, "plans/new/preview", terms=TENTH)
    assert asked.status_code == 200, asked.json()
    globex, acme = asked.json()["data"]
    assert (globex["tenant"], globex["was_pico"], globex["change_pico"]) == ("globex", 0, 0)
    assert (acme["month"], acme["usage_pico"], acme["was_pico"]) == (f"{last:%Y-%m}", ONE, ONE)
    assert (acme["would_be_pico"], acme["change_pico"], acme["problem"]) == (ONE - ONE // 10, -ONE // 10, "")
    assert [(each["kind"], each["text"]) for each in acme["terms"]] == [("discount", "10 % less")]
    first = as_operator.post("/api/v1/plans/new/preview?limit=1", {"terms": TENTH}, format="json").json()
    assert (len(first["data"]), first["has_more"]) == (1, True)
    euro = post(as_operator, "plans/new/preview", terms={"minimum": 5}, currency="EUR").json()["data"][1]
    assert (euro["would_be_pico"], euro["problem"]) == (None, "charged in USD")
    assert not Plan.objects.exists()


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (
            "plans/gold",
            {"from_month": LATER, "terms": {"discounts": [{"percent": 101}]}},
            400,
            "invalid_value",
            "terms.discounts[0].percent",
        ),
        ("plans/gold", {"from_month": "2026-13", "terms": {}}, 400, "invalid", "from_month"),
        ("plans/gold", {"from_month": "2026-01", "terms": {}}, 409, "plan_refused", None),
        ("plans/gold", {"from_month": THIS, "terms": {}}, 409, "plan_refused", None),
        ("plans/gold", {"from_month": LATER, "terms": {}, "until": LATER}, 400, "invalid", "until"),
        ("plans/Gold", {"from_month": LATER, "terms": {}}, 400, "invalid_value", "plan"),
        ("plans/gold", {"from_month": LATER, "terms": {}, "currency": "EUR"}, 409, "plan_refused", None),
        ("tenants/acme/plan", {"from_month": LATER, "plan": "silver"}, 404, "plan_not_found", None),
        ("tenants/acme/plan", {"from_month": THIS, "plan": None}, 409, "plan_refused", None),
        ("tenants/nobody/plan", {"from_month": LATER, "plan": "gold"}, 404, "tenant_not_found", None),
    ],
)
def test_what_is_refused_says_why_and_changes_nothing(
    as_operator: APIClient, gold: None, path: str, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    before = list(Plan.objects.values()), list(TenantPlan.objects.values())
    answer = put(as_operator, path, **body)
    error = error_of(answer)
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    assert (list(Plan.objects.values()), list(TenantPlan.objects.values())) == before


def test_a_stranger_sees_and_changes_nothing(as_globex: APIClient, gold: None) -> None:
    assert as_globex.get("/api/v1/tenants/acme/plan").status_code == 404
    assert as_globex.get("/api/v1/tenants/globex/plan").json()["agreements"] == []
    for path in ("plans", "plans/gold", "plan-schema"):
        assert as_globex.get(f"/api/v1/{path}").status_code == 403
    assert put(as_globex, "plans/gold", from_month=LATER, terms=TENTH).status_code == 403
    assert post(as_globex, "plans/gold/preview").status_code == 403
    for tenant, status in (("acme", 403), ("globex", 403)):
        assert put(as_globex, f"tenants/{tenant}/plan", plan="gold", from_month=LATER).status_code == status
    assert TenantPlan.objects.count() == 1
