"""The page *Operators*, and what an operator's role allows on pages and through tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from django.test import Client

from tenants.keys import tokens
from tenants.models import AuditEntry, User
from tests.portal import fixtures
from tests.portal.conftest import bearer
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE = "/portal/operators/"


def operator(name: str, role: str) -> User:
    return User.objects.create(username=name, is_staff=True, operator_role=role)


def test_an_admin_invites_changes_and_removes(world: World, signed_in: SignIn) -> None:
    ada, mary = signed_in(world.operator), Client()
    page = ada.get(ada.post(PAGE, {"role": "finance"})["Location"]).content.decode()
    link = re.search(r'data-testid="link">http://testserver(\S+)</pre>', page)
    assert link
    assert "an operator of the platform" in mary.get(link[1]).content.decode()
    mary.post(link[1], {"username": "mary", "password": fixtures.PASSWORD})
    assert mary.get(PAGE).status_code == 200
    assert b'data-testid="operator-mary"' in ada.get(PAGE).content
    ada.post(f"{PAGE}mary/change/", {"role": "viewer"})
    assert User.objects.get(username="mary").operator_role == "viewer"
    ada.post(f"{PAGE}mary/change/", {"role": ""})
    assert mary.get(PAGE).status_code == 404
    ada.post(f"{PAGE}acme-owner/change/", {"role": "admin"})
    assert not User.objects.get(username="acme-owner").is_staff


def test_a_revoked_invitation_makes_nobody_an_operator(world: World, signed_in: SignIn) -> None:
    ada = signed_in(world.operator)
    made = ada.post("/api/v1/operator-invitations", {"role": "admin"}, "application/json").json()
    ada.post(f"{PAGE}invitations/{made['id']}/revoke/")
    refused = Client().post(made["link"], {"username": "mary", "password": fixtures.PASSWORD})
    assert (refused.status_code, "was taken back" in refused.content.decode()) == (410, True)
    assert [each["state"] for each in ada.get("/api/v1/operator-invitations").json()["data"]] == ["revoked"]
    owner = signed_in(world.acme.owner)
    assert owner.post("/api/v1/operator-invitations", {"role": "admin"}, "application/json").status_code == 403
    assert owner.get("/api/v1/operator-invitations").status_code == 403


def test_wrong_values_stay_in_the_form_and_the_last_admin_stays(world: World, signed_in: SignIn, settings: Any) -> None:
    settings.EMAIL_IS_SENT = True
    ada = signed_in(world.operator)
    wrong = ada.post(PAGE, {"role": "finance", "email": "no address"})
    assert wrong.status_code == 400
    assert 'value="no address"' in wrong.content.decode()
    told = ada.post(f"{PAGE}ada/change/", {"role": ""}, follow=True).content.decode()
    assert "the last operator with the role admin" in told


def test_a_viewer_sees_no_form_and_is_told_who_may(world: World, signed_in: SignIn) -> None:
    mary = signed_in(operator("mary", "viewer"))
    page = mary.get(PAGE).content.decode()
    assert "data-read-only" in page
    assert 'data-testid="invite-form"' not in page
    refused = mary.post("/portal/secrets/", {"name": "hf", "value": "x"})
    assert refused.status_code == 403
    assert "role &#x27;operator&#x27; or &#x27;admin&#x27;" in refused.content.decode()


def test_a_token_has_the_role_of_its_operator(world: World) -> None:
    mary = operator("mary", "viewer")
    api = bearer(tokens.issue(fixtures.OPERATOR, mary, name="api").secret)
    assert api.get("/api/v1/secrets").status_code == 200
    refused = api.put("/api/v1/secrets/hf", {"value": "x"}, format="json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert "'operator' or 'admin'" in refused.json()["error"]["message"]
    User.objects.filter(id=mary.id).update(operator_role="operator")
    before = AuditEntry.objects.count()
    assert api.put("/api/v1/secrets/hf", {"value": "x"}, format="json").status_code == 201
    assert AuditEntry.objects.count() == before + 1


def test_the_api_lists_gives_and_takes_roles(world: World) -> None:
    api = bearer(tokens.issue(fixtures.OPERATOR, world.operator, name="api").secret)
    assert api.put("/api/v1/operators/mary", {"role": "finance"}, format="json").json()["role"] == "finance"
    assert [each["person"] for each in api.get("/api/v1/operators").json()["operators"]] == ["ada", "mary"]
    assert api.put("/api/v1/operators/mary", {"role": "king"}, format="json").status_code == 400
    assert api.delete("/api/v1/operators/ada").status_code == 409
    assert api.delete("/api/v1/operators/mary").status_code == 204
    assert api.delete("/api/v1/operators/mary").status_code == 404
