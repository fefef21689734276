"""A scrape token opens the list of targets and nothing else; operators make one in the API and on *Scraping*."""

from __future__ import annotations

import re
from collections.abc import Callable
from uuid import uuid4

import pytest
from django.test import Client
from rest_framework.test import APIClient

from tenants.errors import KeyRefused
from tenants.keys import keys, scrape_tokens
from tenants.models import ApiKey, AuditEntry, ScrapeToken, User
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE, API, TARGETS = "/portal/scraping/", "/api/v1/fleet/scrape-tokens", "/api/v1/fleet/targets"


def test_a_token_from_the_api_finds_targets_until_it_is_revoked(as_operator: APIClient) -> None:
    made = as_operator.post(API, {"name": "prometheus", "days": 30}, format="json")
    assert made.status_code == 201
    document = made.json()
    scraper = bearer(document.pop("secret"))
    targets = scraper.get(TARGETS)
    assert targets.status_code == 200
    assert {each["labels"]["role"] for each in targets.json()} >= {"gateway", "portal"}
    (listed,) = as_operator.get(API).json()["data"]
    assert listed == document
    revoked = as_operator.post(f"{API}/{document['id']}/revoke")
    assert revoked.json()["revoked_at"] is not None
    assert scraper.get(TARGETS).status_code == 401
    assert as_operator.post(f"{API}/{uuid4()}/revoke").status_code == 404


def test_a_scrape_token_opens_nothing_else(world: World) -> None:
    secret = scrape_tokens.issue(fixtures.OPERATOR, name="prometheus").secret
    scraper = bearer(secret)
    entries = AuditEntry.objects.count()
    names = {"tenant": "acme", "project": "default", "name": fixtures.MODEL, "month": "2024-01"}
    tried = 0
    for path, methods in scraper.get("/api/v1/openapi.json").json()["paths"].items():
        if not path.startswith("/api/v1/") or path in (TARGETS, "/api/v1/openapi.json", "/api/v1/tokens"):
            continue
        filled = re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], str(uuid4())), path)
        for method in methods.keys() & {"get", "post", "put", "patch", "delete"}:
            if path in {"/api/v1/fleet/join", "/api/v1/stripe/webhooks/{issuer}"}:
                continue  # tokens of their own, or signatures, open these
            answer = getattr(scraper, method)(filled, {}, format="json")
            assert answer.status_code in (403, 404), (method, path, answer.status_code)
            if answer.status_code == 403:
                assert error_of(answer)["code"] == "permission_denied"
            tried += 1
    assert tried > 60
    assert AuditEntry.objects.count() == entries
    assert scraper.get("/portal/").status_code == 302  # to the sign-in
    with pytest.raises(KeyRefused):
        keys.authenticate(secret)  # as the gateway does


def test_strangers_neither_find_targets_nor_make_tokens(world: World) -> None:
    for key in ApiKey.objects.all():
        assert "scrape" not in key.scopes
    for client in (bearer(world.acme.secret), bearer("hs_aaaaaaaaaaaa_x"), Client()):
        assert client.get(TARGETS).status_code in (401, 403)
        assert client.post(API, {"name": "mine"}).status_code in (401, 403)
    assert not ScrapeToken.objects.exists()


def test_a_token_is_made_shown_once_and_revoked_on_the_page(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    made = browser.post(PAGE, {"name": "prometheus", "days": "30"})
    token = ScrapeToken.objects.get()
    assert made["Location"] == f"{PAGE}?new={token.id}"
    page = browser.get(made["Location"]).content.decode()
    secret = re.search(r'data-testid="secret">(hs_\S+)</pre>', page)
    assert secret is not None
    assert bearer(secret[1]).get(TARGETS).status_code == 200
    again = browser.get(made["Location"]).content.decode()
    assert secret[1] not in again
    assert 'data-testid="shown-before"' in again
    assert 'data-testid="targets"' in again
    revoked = browser.post(f"/portal/scrape-tokens/{token.id}/revoke/", follow=True).content.decode()
    assert "revoked" in revoked
    assert f"/portal/scrape-tokens/{token.id}/revoke/" not in revoked
    assert bearer(secret[1]).get(TARGETS).status_code == 401
    assert browser.post(f"/portal/scrape-tokens/{uuid4()}/revoke/").status_code == 404


@pytest.mark.parametrize(("field", "value"), [("days", "0"), ("days", "1831"), ("name", "")])
def test_a_wrong_field_is_named(world: World, signed_in: SignIn, field: str, value: str) -> None:
    answer = signed_in(world.operator).post(PAGE, {"name": "prometheus", "days": "30", field: value})
    assert answer.status_code == 400
    assert f'id="token-{field}' in answer.content.decode()
    assert not ScrapeToken.objects.exists()
