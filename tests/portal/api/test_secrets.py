"""Secrets over the API and the page: set, used, listed without a value, removed once nothing uses them."""

from __future__ import annotations

import pytest
from django.test import Client
from rest_framework.test import APIClient

from catalogue.models import Model
from tests.portal.fixtures import MODEL, World
from workers.weights import secrets

pytestmark = pytest.mark.django_db

ONE = "/api/v1/secrets/hf-meta"
TINY = f"/api/v1/models/{MODEL}"
VALUE = "hf_" + "x" * 34


def test_a_secret_goes_in_and_never_comes_out(as_operator: APIClient, as_acme: APIClient, world: World) -> None:
    made = as_operator.put(ONE, {"value": VALUE}, format="json")
    again = as_operator.put(ONE, {"value": VALUE}, format="json")
    assert (made.status_code, again.status_code) == (201, 200)
    named = as_operator.patch(TINY, {"secret": "hf-meta"}, format="json")
    assert named.json()["secret"] == "hf-meta"
    listed = as_operator.get("/api/v1/secrets")
    assert [(row["name"], row["models"]) for row in listed.json()["secrets"]] == [("hf-meta", [MODEL])]
    seen = [made, again, named, listed, as_operator.get(TINY), as_acme.get(TINY)]
    assert not any(VALUE in answer.content.decode() for answer in seen)
    assert as_acme.get(TINY).json()["secret"] == ""
    assert as_acme.get("/api/v1/secrets").status_code == as_acme.put(ONE, {"value": "hf_mine"}).status_code == 403
    assert secrets.read_of_model(Model.objects.get(name=MODEL).id) == VALUE


def test_a_secret_that_is_used_stays_and_says_by_what(as_operator: APIClient, world: World) -> None:
    as_operator.put(ONE, {"value": VALUE}, format="json")
    as_operator.patch(TINY, {"secret": "hf-meta"}, format="json")
    refused = as_operator.delete(ONE)
    assert refused.status_code == 409 and f"{MODEL} uses it" in refused.json()["error"]["message"]
    assert as_operator.patch(TINY, {"secret": None}, format="json").status_code == 200
    assert as_operator.delete(ONE).status_code == 204
    assert as_operator.delete(ONE).status_code == 404


def test_what_is_no_secret_is_refused_without_showing_it(as_operator: APIClient, world: World) -> None:
    refused = as_operator.put(ONE, {"value": "two words"}, format="json")
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "value"
    assert "two words" not in refused.content.decode()
    unknown = as_operator.patch(TINY, {"secret": "nobody"}, format="json")
    assert unknown.status_code == 404 and "there is no secret 'nobody'" in unknown.json()["error"]["message"].lower()


def test_the_page_sets_chooses_and_removes_a_secret(world: World) -> None:
    browser = Client()
    browser.force_login(world.operator)
    page = browser.post("/portal/secrets/", {"name": "hf-meta", "value": VALUE}, follow=True).content.decode()
    assert 'data-testid="secret-hf-meta"' in page and VALUE not in page
    bad = browser.post("/portal/secrets/", {"name": "Bad Name", "value": VALUE})
    assert bad.status_code == 400 and VALUE not in bad.content.decode()
    browser.post(f"/portal/models/{MODEL}/", {"name": MODEL, "visibility": "public", "secret": "hf-meta"})
    assert secrets.listed()[0].models == (MODEL,)
    kept = browser.post("/portal/secrets/hf-meta/remove/", follow=True).content.decode()
    assert f"{MODEL} uses it" in kept
    browser.post(f"/portal/models/{MODEL}/", {"name": MODEL, "visibility": "public", "secret": ""})
    browser.post("/portal/secrets/hf-meta/remove/")
    assert secrets.listed() == []
