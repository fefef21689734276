"""The catalogue: what a tenant may call, as pages and the API show it, and that others' models do not exist for it."""

from __future__ import annotations

import html
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from billing.pricing import prices
from billing.pricing.prices import DEMO_RATES
from catalogue import administration, registry
from catalogue.models import Model
from catalogue.registry import Description
from tenants.keys import keys
from tenants.models import Membership, User
from tests.portal import fixtures
from tests.portal.conftest import bearer
from tests.portal.fixtures import MODEL, OPERATOR, World

SignIn = Callable[[User], Client]
PAGES = "/portal/tenants/acme/models/"
API = "/api/v1/tenants/acme/models"


@pytest.fixture
def catalogue(world: World) -> World:
    """A fleet, a model of acme's own, and one of globex's."""
    fixtures.fleet(world)
    for owner, name in ((world.acme.tenant, "acmes"), (world.globex.tenant, "globexs")):
        description = Description(name=name, source=f"/models/{name}", engine="simulated", context_length_tokens=0)
        registry.register(OPERATOR, owner, description)
    return world


def text(client: Client, path: str) -> str:
    """Return a page that this client may see."""
    answer = client.get(path)
    assert answer.status_code == 200, path
    return html.unescape(answer.content.decode())


def test_each_role_sees_the_models_of_its_tenant_and_a_stranger_none(catalogue: World, signed_in: SignIn) -> None:
    for role in Membership.Role.values:
        person = User.objects.create_user(username=f"a-{role}", password=None)
        Membership.objects.create(tenant=catalogue.acme.tenant, user=person, role=role)
        page = text(signed_in(person), PAGES)
        assert "model-acmes" in page
        assert f"model-{MODEL}" in page
        assert "globexs" not in page
        assert signed_in(person).get(f"{PAGES}globexs/").status_code == 404
    stranger = signed_in(catalogue.globex.owner)
    assert [stranger.get(path).status_code for path in (PAGES, f"{PAGES}{MODEL}/")] == [404, 404]


def test_a_model_shows_its_price_state_context_and_how_to_call_it(catalogue: World, signed_in: SignIn) -> None:
    own = prices.book_of(catalogue.acme.tenant)
    prices.set_price(OPERATOR, own, MODEL, DEMO_RATES, confirm=True)
    administration.set_aliases(OPERATOR, MODEL, ["team/default"])
    owner = signed_in(catalogue.acme.owner)
    page = text(owner, f"{PAGES}team/default/")
    assert 'data-state="up"' in page
    assert "2,048 tokens" in page
    assert "$0.60" in page
    assert f'"model": "{MODEL}"' in page
    assert "/v1/chat/completions" in page
    unknown = text(owner, f"{PAGES}acmes/")
    assert "not known: no engine has said it" in unknown
    assert "There is no price yet" in unknown
    assert "requests are refused" in unknown


def test_a_retirement_is_shown_with_what_to_call_instead(catalogue: World, signed_in: SignIn) -> None:
    administration.set_retirement(OPERATOR, MODEL, timezone.now() + timedelta(days=9), "acmes")
    owner = signed_in(catalogue.acme.owner)
    page = text(owner, f"{PAGES}{MODEL}/")
    assert 'data-testid="retirement"' in page
    assert f"{PAGES}acmes/" in page
    assert 'data-state="retiring"' in text(owner, PAGES)
    other = text(signed_in(catalogue.globex.owner), f"/portal/tenants/globex/models/{MODEL}/")
    assert "acmes" not in other
    Model.objects.filter(name=MODEL).update(retires_at=timezone.now() - timedelta(seconds=1))
    assert 'data-state="retired"' in text(owner, PAGES)


def test_the_api_has_the_fields_of_v1_models(catalogue: World, as_acme: APIClient, as_globex: APIClient) -> None:
    found = as_acme.get(f"{API}/{MODEL}").json()
    assert (found["name"], found["state"], found["context_tokens"]) == (MODEL, "ready", 2048)
    assert found["price"]["per_million_tokens"]["completion"] == "0.6"
    assert found["capabilities"]["vision"] is None
    assert [each["name"] for each in as_acme.get(API).json()["data"]] == ["acmes", MODEL]
    assert as_acme.get(f"{API}/globexs").status_code == 404
    assert [as_globex.get(path).status_code for path in (API, f"{API}/{MODEL}")] == [404, 404]


def test_a_key_that_may_call_some_models_sees_only_those(catalogue: World) -> None:
    key = keys.issue(
        OPERATOR,
        catalogue.acme.project,
        name="narrow",
        scopes=("inference", "management:read"),
        allowed_models=("acmes",),
    )
    client = bearer(key.secret)
    assert [each["name"] for each in client.get(API).json()["data"]] == ["acmes"]
    assert client.get(f"{API}/{MODEL}").status_code == 404


def test_operators_set_a_retirement_by_api_and_form(
    catalogue: World, as_operator: APIClient, as_acme: APIClient, signed_in: SignIn
) -> None:
    path = f"/api/v1/models/{MODEL}"
    wanted = {"retires_at": "2100-01-02T00:00:00Z", "replacement": "acmes"}
    changed = as_operator.patch(path, wanted, format="json")
    assert (changed.status_code, changed.json()["replacement"]) == (200, "acmes")
    assert as_acme.get(path).json()["retires_at"] == "2100-01-02T00:00:00Z"
    for body, param in (
        ({"retires_at": "2001-01-02T00:00:00Z"}, None),
        ({"retires_at": "2100-01-02T00:00:00Z", "replacement": MODEL}, None),
        ({"replacement": "acmes"}, "replacement"),
    ):
        refused = as_operator.patch(path, body, format="json")
        assert refused.status_code == 400, body
        assert param is None or refused.json()["error"]["param"] == param
    assert as_acme.patch(path, wanted, format="json").status_code == 403
    form = {"name": MODEL, "visibility": "public", "aliases": "", "secret": "", "hub_token": ""}
    operator = signed_in(catalogue.operator)
    page = operator.post(f"/portal/models/{MODEL}/", {**form, "retires_at": "2001-01-01T00:00", "replacement": ""})
    assert page.status_code == 400
    assert "2001-01-01T00:00" in page.content.decode()
    cancelled = operator.post(f"/portal/models/{MODEL}/", {**form, "retires_at": "", "replacement": ""})
    assert cancelled.status_code == 302
    assert Model.objects.get(name=MODEL).retires_at is None
