"""The pages of webhooks: an owner makes, tests and removes one; a developer and a stranger find no page."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from notifications.models import Delivery, WebhookEndpoint
from notifications.webhooks import endpoints
from tenants.models import Membership, User
from tests.portal import fixtures
from tests.portal.fixtures import World

ACME = "/portal/tenants/acme/webhooks/"


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def shown_secret(client: Client, page: str, **form: str) -> str:
    answer = client.post(page, form, follow=True)
    found = re.search(r'data-testid="secret">([^<]+)<', answer.content.decode())
    assert found is not None
    return found[1]


def test_an_owner_makes_tests_rotates_and_removes_one(world: World) -> None:
    owner = signed_in(world.acme.owner)
    assert "No webhook yet" in owner.get(ACME).content.decode()
    secret = shown_secret(owner, ACME, url="https://example.com/hook", types="hearth.budget_threshold.reached.v1")
    endpoint = WebhookEndpoint.objects.get(tenant=world.acme.tenant)
    assert endpoints.secrets_of(endpoint.id) == [secret]
    assert secret not in owner.get(f"{ACME}?new={endpoint.id}").content.decode()
    page = f"{ACME}{endpoint.id}/"
    assert "A test is sent" in owner.post(f"{page}test/", follow=True).content.decode()
    delivery = Delivery.objects.get()
    assert f"delivery-{delivery.id}" in owner.get(page).content.decode()
    assert "sent again" in owner.post(f"{page}replay/", {"delivery": delivery.id}, follow=True).content.decode()
    assert "0 events are sent again" in owner.post(f"{page}replay/", {"range": "day"}, follow=True).content.decode()
    assert "Nothing was changed" in owner.post(f"{page}replay/", {"delivery": "x\0"}, follow=True).content.decode()
    assert shown_secret(owner, f"{page}rotate/") == endpoints.secrets_of(endpoint.id)[0]
    assert "paused" in owner.post(f"{page}pause/", follow=True).content.decode()
    assert "resume it first" in owner.post(f"{page}test/", follow=True).content.decode()
    owner.post(f"{page}resume/")
    assert owner.post(page, {"url": "https://example.com/new"}).status_code == 302
    assert WebhookEndpoint.objects.get().url == "https://example.com/new"
    assert owner.post(f"{page}forget/").status_code == 404
    owner.post(f"{page}remove/")
    assert not WebhookEndpoint.objects.exists()


@pytest.mark.parametrize("url", ["http://example.com/", "https://10.0.0.1/", "nonsense"])
def test_a_refused_url_is_said_beside_its_field(world: World, url: str) -> None:
    answer = signed_in(world.acme.owner).post(ACME, {"url": url})
    assert answer.status_code == 400
    assert 'id="webhook-url_error"' in answer.content.decode()


def test_those_without_the_right_find_no_page(world: World) -> None:
    endpoint = endpoints.create(fixtures.OPERATOR, world.acme.tenant, url="https://example.com/").endpoint
    developer = User.objects.create(username="dev")
    Membership.objects.create(user=developer, tenant=world.acme.tenant, role=Membership.Role.DEVELOPER)
    for user in (developer, world.globex.owner):
        client = signed_in(user)
        for path in (ACME, f"{ACME}{endpoint.id}/", "/portal/webhooks/", f"/portal/webhooks/{endpoint.id}/"):
            assert client.get(path).status_code == 404
        assert client.post(f"{ACME}{endpoint.id}/remove/").status_code == 404
        assert ACME not in client.get("/portal/tenants/acme/").content.decode()
    assert WebhookEndpoint.objects.count() == 1


def test_operators_have_a_page_of_their_own(world: World) -> None:
    operator = signed_in(world.operator)
    assert shown_secret(operator, "/portal/webhooks/", url="https://example.com/all")
    endpoint = WebhookEndpoint.objects.get(tenant=None)
    assert "https://example.com/all" in operator.get("/portal/webhooks/").content.decode()
    assert operator.get(f"/portal/webhooks/{endpoint.id}/").status_code == 200
    assert operator.get(f"{ACME}{endpoint.id}/").status_code == 404
