"""The policy of retention and the erasure of a tenant in the API: for operators only."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from retention.models import Erasure, RetentionPolicy
from tenants import registry
from tenants.models import AuditEntry, Tenant
from tests.portal.conftest import error_of
from tests.portal.fixtures import OPERATOR, World

URL = "/api/v1/retention"
ERASE = "/api/v1/tenants/acme/erase"


def test_an_operator_reads_and_changes_how_long_records_are_kept(as_operator: APIClient, world: World) -> None:
    first = as_operator.get(URL).json()
    assert (first["policy"]["version"], first["policy"]["requests_months"], first["versions"]) == (0, 13, [])
    assert [each["kind"] for each in first["due"]] == ["requests", "events", "decisions", "deferred", "audit"]
    changed = as_operator.patch(URL, {"requests_months": None, "audit_days": 90}, format="json").json()
    assert (changed["policy"]["version"], changed["policy"]["requests_months"]) == (1, None)
    assert [each["version"] for each in changed["versions"]] == [1]
    assert changed["due"][0]["before"] is None
    entry = AuditEntry.objects.get(action="retention.changed")
    assert (entry.actor, entry.tenant) == (world.operator.username, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"audit_days": 29}, "audit_days"),
        ({"deferred_hours": None}, "deferred_hours"),
        ({"audit_day": 90}, "audit_day"),
    ],
)
def test_a_wrong_value_is_named(as_operator: APIClient, body: dict[str, Any], param: str) -> None:
    answer = as_operator.patch(URL, body, format="json")
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert not RetentionPolicy.objects.exists()


def test_an_archived_tenant_is_erased_once_its_slug_is_sent(as_operator: APIClient, world: World) -> None:
    assert as_operator.post(ERASE, {"confirm": "acme"}, format="json").status_code == 409
    registry.archive(OPERATOR, world.acme.tenant)
    for wrong in ({}, {"confirm": "globex"}):
        assert error_of(as_operator.post(ERASE, wrong, format="json"))["param"] == "confirm"
    done = as_operator.post(ERASE, {"confirm": "acme"}, format="json")
    assert done.status_code == 200, done.json()
    assert (done.json()["people"], done.json()["keys"]) == (1, 1)
    assert Tenant.objects.get(id=world.acme.tenant.id).name == "erased"
    assert as_operator.post(ERASE, {"confirm": "acme"}, format="json").status_code == 404


def test_a_tenant_may_do_neither(as_acme: APIClient, as_globex: APIClient, world: World) -> None:
    registry.archive(OPERATOR, world.globex.tenant)
    for client in (as_acme, as_globex):
        assert client.get(URL).status_code in {401, 403}
        assert client.patch(URL, {"audit_days": 90}, format="json").status_code in {401, 403}
        for slug in ("acme", "globex"):
            answer = client.post(f"/api/v1/tenants/{slug}/erase", {"confirm": slug}, format="json")
            assert answer.status_code in {401, 403}
    assert not Erasure.objects.exists() and not RetentionPolicy.objects.exists()
