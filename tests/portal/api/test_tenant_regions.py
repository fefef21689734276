"""The regions in which a tenant's requests may run: set by operators, read by its members."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from rest_framework.test import APIClient

from tenants.models import AuditEntry, Tenant, User
from tests.portal.fixtures import World
from workers.models import Pool

SignedIn = Callable[[User], Client]
ACME = "/api/v1/tenants/acme"
PAGE = "/portal/tenants/acme/policy/"
FORM = "/portal/tenants/acme/regions/"


@pytest.fixture(autouse=True)
def pools(world: World) -> None:
    """Pools in two regions."""
    for region in ("eu-west", "us-east"):
        Pool.objects.create(name=f"pool-{region}", kind="simulated", region=region)


def test_an_operator_sets_them_and_the_tenant_reads_them(as_operator: APIClient, as_acme: APIClient) -> None:
    assert as_acme.get(ACME).json()["allowed_regions"] == []
    sent = {"allowed_regions": ["us-east", "eu-west", "us-east"], "queue_seconds": 5}
    answer = as_operator.patch(ACME, sent, format="json").json()
    assert answer["allowed_regions"] == as_acme.get(ACME).json()["allowed_regions"] == ["eu-west", "us-east"]
    assert answer["policy"]["queue_seconds"] == 5
    entry = AuditEntry.objects.get(action="tenant.regions_changed")
    assert (entry.before, entry.after) == ({"allowed_regions": []}, {"allowed_regions": ["eu-west", "us-east"]})
    as_operator.patch(ACME, {"allowed_regions": ["us-east", "eu-west"]}, format="json")
    as_operator.patch(ACME, {"queue_seconds": 6}, format="json")
    assert AuditEntry.objects.filter(action="tenant.regions_changed").count() == 1
    assert as_operator.patch(ACME, {"allowed_regions": []}, format="json").json()["allowed_regions"] == []
    assert as_acme.patch(ACME, {"allowed_regions": ["eu-west"]}, format="json").status_code == 403


@pytest.mark.parametrize(
    "regions", [["mars"], ["eu-west,us-east"], ["eu-west", ""], "eu-west", None, [7], [["eu-west"]]]
)
def test_a_region_that_no_pool_has_changes_nothing(as_operator: APIClient, regions: object) -> None:
    answer = as_operator.patch(ACME, {"allowed_regions": regions, "queue_seconds": 5}, format="json")
    assert answer.status_code == 400
    assert as_operator.get(ACME).json()["policy"]["version"] == 1
    if regions == ["mars"]:
        assert "eu-west | us-east" in answer.json()["error"]["message"]


def test_a_tenant_may_begin_with_them(as_operator: APIClient) -> None:
    sent = {"slug": "initech", "name": "Initech", "allowed_regions": ["eu-west"]}
    assert as_operator.post("/api/v1/tenants", sent, format="json").json()["allowed_regions"] == ["eu-west"]
    refused = as_operator.post("/api/v1/tenants", {**sent, "slug": "other", "allowed_regions": ["mars"]}, format="json")
    assert refused.status_code == 400
    assert not Tenant.objects.filter(slug="other").exists()


def test_the_page_sets_them_for_operators_and_shows_them_to_members(world: World, signed_in: SignedIn) -> None:
    operator, member = signed_in(world.operator), signed_in(world.acme.owner)
    refused = operator.post(FORM, {"allowed_regions": "mars"})
    assert refused.status_code == 400
    assert "“mars” is not valid. Use eu-west | us-east." in refused.content.decode()
    assert operator.post(FORM, {"allowed_regions": "eu-west, us-east"}).status_code == 302
    assert 'value="eu-west, us-east"' in operator.get(PAGE).content.decode()
    assert "<dd>eu-west, us-east</dd>" in member.get(PAGE).content.decode()
    assert member.post(FORM, {"allowed_regions": ""}).status_code == 404
    assert Tenant.objects.get(slug="acme").allowed_regions == ["eu-west", "us-east"]
