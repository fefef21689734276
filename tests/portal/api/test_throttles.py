"""A tenant's changes a minute are bounded; nobody else is held up by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from rest_framework.test import APIClient

from portal.access.rights.change_limit import ChangeLimit
from tenants import policy_epoch
from tenants.keys import keys
from tenants.models import Project, User
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

KEYS = "/api/v1/tenants/{}/keys"


@pytest.fixture(autouse=True)
def three_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow three changes a minute."""
    monkeypatch.setattr(ChangeLimit, "rate", "3/min")


def statuses(client: APIClient, slug: str, number: int) -> list[int]:
    """Return the statuses of ``number`` requests for a new key."""
    return [client.post(KEYS.format(slug), {"name": "k"}, format="json").status_code for _ in range(number)]


def test_the_keys_of_a_tenant_share_what_it_may_change_in_a_minute(
    world: World, as_acme: APIClient, as_globex: APIClient, as_operator: APIClient
) -> None:
    second = bearer(keys.issue(fixtures.OPERATOR, world.acme.project, name="2", scopes=list(keys.SCOPES)).secret)
    assert statuses(as_acme, "acme", 2) + statuses(second, "acme", 2) == [201, 201, 201, 429]
    before = policy_epoch.current()
    refused = as_acme.post(KEYS.format("acme"), {"name": "k"}, format="json")
    assert (error_of(refused)["code"], error_of(refused)["type"]) == ("too_many_changes", "rate_limit_error")
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert policy_epoch.current() == before
    assert as_acme.get(KEYS.format("acme")).status_code == 200, "reading is not limited"
    assert statuses(as_globex, "globex", 1) == [201]
    assert statuses(as_operator, "acme", 5) == [201] * 5


def test_a_stranger_uses_up_nothing_of_a_tenants_changes(
    world: World, as_acme: APIClient, as_globex: APIClient
) -> None:
    assert statuses(as_globex, "acme", 3) == [404] * 3
    assert statuses(as_globex, "globex", 1) == [429]
    assert statuses(as_acme, "acme", 3) == [201] * 3


def test_a_member_has_one_allowance_for_pages_and_api(
    world: World, signed_in: Callable[[User], Client], as_acme: APIClient
) -> None:
    member, other, operator = map(signed_in, (world.acme.owner, world.globex.owner, world.operator))
    page, key = "/portal/tenants/{}/projects/", {"name": "k"}

    def create(browser: Client, tenant: str, slug: str) -> int:
        return browser.post(page.format(tenant), {"slug": slug, "name": slug}).status_code

    assert [create(member, "acme", "a"), create(member, "acme", "b")] == [302, 302]
    assert member.post(KEYS.format("acme"), key, content_type="application/json").status_code == 201
    refused = member.post(page.format("acme"), {"slug": "c", "name": "c"})
    assert refused.status_code == 429
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert f"try again in {refused['Retry-After']} s" in refused.content.decode()
    assert not Project.objects.filter(slug="c").exists()
    assert member.post(KEYS.format("acme"), key, content_type="application/json").status_code == 429
    assert member.get(page.format("acme")).status_code == 200, "reading is not limited"
    assert create(other, "globex", "a") == 302
    assert statuses(as_acme, "acme", 1) == [201], "keys have a count of their own"
    assert [create(operator, "acme", slug) for slug in ("d", "e", "f", "g")] == [302] * 4


def test_requests_to_a_strangers_pages_count_too(world: World, signed_in: Callable[[User], Client]) -> None:
    member = signed_in(world.globex.owner)
    path = "/portal/tenants/acme/projects/"
    assert [member.post(path, {"slug": "x", "name": "x"}).status_code for _ in range(4)] == [404, 404, 404, 429]
