"""The queue of requests and the stored responses of a tenant: set by operators, read by its members."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from tenants import registry
from tenants.keys import keys
from tenants.models import AuditEntry, TenantPolicy
from tests.portal import fixtures as worlds
from tests.portal.conftest import bearer
from tests.portal.fixtures import World

DEFAULT = {
    "queue_seconds": 60,
    "queue_requests": 256,
    "queue_bytes": 64 << 20,
    "idempotency_bytes_per_hour": 64 << 20,
    "priority": "standard",
    "weight": 1,
}
CHANGED = {
    "queue_seconds": 0,
    "queue_requests": 2,
    "queue_bytes": 3000,
    "idempotency_bytes_per_hour": 0,
    "priority": "high",
    "weight": 5,
}
ACME = "/api/v1/tenants/acme"


def terms(client: APIClient) -> dict[str, Any]:
    """Return what acme's policy says of them."""
    policy = client.get(ACME).json()["policy"]
    return {name: policy[name] for name in DEFAULT}


def test_an_operator_sets_them_and_the_tenant_reads_them(
    world: World, as_operator: APIClient, as_acme: APIClient
) -> None:
    assert terms(as_acme) == DEFAULT
    assert as_operator.patch(ACME, CHANGED, format="json").json()["policy"]["version"] == 2
    assert terms(as_acme) == terms(as_operator) == CHANGED
    entry = AuditEntry.objects.get(action="policy.changed")
    assert entry.actor == "ada"
    assert entry.before is not None
    assert entry.after is not None
    assert {name: (entry.before[name], entry.after[name]) for name in DEFAULT} == {
        name: (DEFAULT[name], CHANGED[name]) for name in DEFAULT
    }


def test_a_new_tenant_may_begin_with_them(as_operator: APIClient) -> None:
    asked = {"slug": "initech", "name": "Initech", "policy": {"queue_seconds": 180}}
    policy = as_operator.post("/api/v1/tenants", asked, format="json").json()["policy"]
    assert {name: policy[name] for name in DEFAULT} == {**DEFAULT, "queue_seconds": 180}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue_seconds", -1),
        ("queue_seconds", 3601),
        ("queue_seconds", 0.5),
        ("queue_requests", 10**6 + 1),
        ("queue_bytes", None),
        ("idempotency_bytes_per_hour", 2**40 + 1),
        ("priority", "urgent"),
        ("priority", None),
        ("weight", 0),
        ("weight", 1001),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(world: World, as_operator: APIClient, field: str, value: Any) -> None:
    answer = as_operator.patch(ACME, {field: value}, format="json")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert TenantPolicy.objects.filter(tenant=world.acme.tenant).count() == 1


def test_a_stranger_and_members_change_nothing(world: World, as_globex: APIClient) -> None:
    writer = keys.issue(worlds.OPERATOR, world.acme.project, name="w", scopes=("management:read", "management:write"))
    before = AuditEntry.objects.count()
    for client in (as_globex, bearer(writer.secret)):
        assert client.patch(ACME, CHANGED, format="json").status_code == 403
    assert as_globex.get(ACME).status_code == 404
    assert registry.policy_of(world.acme.tenant).version == 1
    assert AuditEntry.objects.count() == before


def test_the_openapi_document_describes_them(as_operator: APIClient) -> None:
    policy = as_operator.get("/api/v1/openapi.json").json()["components"]["schemas"]["Policy"]["properties"]
    numbers = [name for name in DEFAULT if name != "priority"]
    assert {name: (policy[name]["minimum"], policy[name]["maximum"]) for name in numbers} == {
        "queue_seconds": (0, 3600),
        "queue_requests": (0, 10**6),
        "queue_bytes": (0, 2**40),
        "idempotency_bytes_per_hour": (0, 2**40),
        "weight": (1, 1000),
    }
