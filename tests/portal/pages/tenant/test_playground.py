"""Who gets the playground and its key, what the page may call, and what others do not get."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client
from django.test.utils import override_settings
from rest_framework.test import APIClient

from tenants import members, registry
from tenants.audit import SYSTEM
from tenants.errors import KeyRefused
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, Project, User
from tests.portal import fixtures
from tests.portal.conftest import bearer
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]

PLAYGROUND = "/portal/tenants/acme/playground/"
KEY = f"{PLAYGROUND}key/"
GATEWAY = f"http://testserver:{settings.GATEWAY_PORT}"
SCRIPT = Path(fixtures.__file__).parents[2] / "platform/portal/static/portal/playground.js"


def member(world: World, role: str, name: str = "dana") -> User:
    return members.put(SYSTEM, world.acme.tenant, name, role).user


def called(policy: str) -> str:
    """Return what scripts of a page with this policy may call."""
    found = re.search(r"connect-src ([^;]*)", policy)
    assert found
    return found[1]


def test_the_page_names_models_projects_and_the_gateway_that_it_alone_may_call(world: World, signed_in: SignIn) -> None:
    browser = signed_in(member(world, "developer"))
    shown = browser.get(f"{PLAYGROUND}?project=default&model={fixtures.MODEL}")
    text = shown.content.decode()
    assert f'data-base="{GATEWAY}/v1"' in text
    assert f'<option value="{fixtures.MODEL}" selected>' in text
    assert called(shown.headers["Content-Security-Policy"]) == f"'self' ws://testserver {GATEWAY}"
    assert "script-src 'self';" in shown.headers["Content-Security-Policy"]
    home = browser.get("/portal/tenants/acme/")
    assert called(home.headers["Content-Security-Policy"]) == "'self' ws://testserver"
    assert home.content.decode().count(f'"{PLAYGROUND}"') == 2  # in the rail, and beside the quick start


def test_the_page_calls_the_gateway_at_the_address_that_is_set(world: World, signed_in: SignIn) -> None:
    with override_settings(API_URL="https://api.example"):
        shown = signed_in(member(world, "developer")).get(PLAYGROUND)
    assert 'data-base="https://api.example/v1"' in shown.content.decode()
    assert called(shown.headers["Content-Security-Policy"]).endswith(" https://api.example")


def test_a_member_gets_a_key_that_calls_models_in_one_project_and_reads_nothing(
    world: World, signed_in: SignIn
) -> None:
    registry.create_project(SYSTEM, world.acme.tenant, slug="search", name="Search")
    browser = signed_in(member(world, "developer"))
    issued = browser.post(KEY, {"project": "search"})
    assert issued.json()["lifetime_seconds"] == 900
    assert "no-store" in issued.headers["Cache-Control"]
    secret = issued.json()["key"]
    key = keys.authenticate(secret)
    assert (key.project.slug, key.purpose) == ("search", "playground")
    client = bearer(secret)
    for path in ("/api/v1/tenants/acme", "/api/v1/usage", "/api/v1/tenants/acme/keys"):
        assert client.get(path).status_code in {403, 404}, path
    assert client.post("/api/v1/tenants/acme/keys", {"name": "x"}, format="json").status_code in {403, 404}


@pytest.mark.parametrize("role", ["billing", "viewer"])
def test_who_may_not_create_keys_has_no_playground(world: World, signed_in: SignIn, role: str) -> None:
    browser = signed_in(member(world, role))
    assert browser.get(PLAYGROUND).status_code == 403
    assert browser.post(KEY, {"project": "default"}).status_code == 403
    assert PLAYGROUND not in browser.get("/portal/tenants/acme/").content.decode()


def test_an_operator_charges_no_tenant_for_an_experiment(world: World, signed_in: SignIn) -> None:
    assert signed_in(world.operator).post(KEY, {"project": "default"}).status_code == 403


def test_strangers_get_nothing(world: World, signed_in: SignIn) -> None:
    stranger = signed_in(world.globex.owner)
    assert (stranger.get(PLAYGROUND).status_code, stranger.post(KEY, {"project": "default"}).status_code) == (404, 404)
    assert Client().post(KEY, {"project": "default"}).headers["Location"].startswith("/portal/login/")
    assert not ApiKey.objects.filter(purpose="playground").exists()


def test_the_key_needs_the_forms_token_and_no_address_gives_one(world: World) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(world.acme.owner)
    assert browser.post(KEY, {"project": "default"}).status_code == 403
    assert browser.get(KEY).headers["Location"] == PLAYGROUND
    assert not ApiKey.objects.filter(purpose="playground").exists()


@pytest.mark.parametrize("named", ["", "nothing", "of-globex", "a\0b", "closed"])
def test_a_project_that_is_not_an_open_one_of_the_tenant_gets_no_key(
    world: World, signed_in: SignIn, named: str
) -> None:
    registry.create_project(SYSTEM, world.globex.tenant, slug="of-globex", name="Of globex")
    closed = registry.create_project(SYSTEM, world.acme.tenant, slug="closed", name="Closed")
    registry.set_project_archived(SYSTEM, Project.objects.get(id=closed.id), True)
    refused = signed_in(world.acme.owner).post(KEY, {"project": named})
    assert (refused.status_code, set(refused.json())) == (409, {"problem"})
    assert not ApiKey.objects.filter(purpose="playground").exists()


def test_a_developer_who_is_confined_to_projects_plays_in_those_alone(world: World, signed_in: SignIn) -> None:
    search = registry.create_project(SYSTEM, world.acme.tenant, slug="search", name="Search")
    browser = signed_in(member(world, "developer"))
    secret = browser.post(KEY, {"project": "default"}).json()["key"]
    members.confine(SYSTEM, world.acme.tenant, "dana", [search])
    with pytest.raises(KeyRefused, match="revoked"):
        keys.authenticate(secret)
    assert [each.slug for each in browser.get(PLAYGROUND).context["projects"]] == ["search"]
    assert browser.post(KEY, {"project": "default"}).status_code == 409
    assert browser.post(KEY, {"project": "search"}).status_code == 200


def test_a_member_who_is_removed_in_the_middle_loses_the_key_at_once(world: World, signed_in: SignIn) -> None:
    browser = signed_in(member(world, "developer"))
    secret = browser.post(KEY, {"project": "default"}).json()["key"]
    members.remove(SYSTEM, world.acme.tenant, "dana")
    with pytest.raises(KeyRefused, match="revoked"):
        keys.authenticate(secret)
    assert browser.post(KEY, {"project": "default"}).status_code == 404


def test_signing_out_revokes_the_key(world: World, signed_in: SignIn) -> None:
    browser = signed_in(member(world, "developer"))
    secret = browser.post(KEY, {"project": "default"}).json()["key"]
    browser.post("/portal/logout/")
    with pytest.raises(KeyRefused, match="revoked"):
        keys.authenticate(secret)


def test_the_key_is_shown_as_what_it_is_and_can_only_be_revoked(
    world: World, signed_in: SignIn, as_acme: APIClient
) -> None:
    signed_in(member(world, "developer")).post(KEY, {"project": "default"})
    key = ApiKey.objects.get(purpose="playground")
    owner, listed = signed_in(world.acme.owner), "/api/v1/tenants/acme/keys"
    shown = owner.get("/portal/tenants/acme/keys/")
    assert key not in [*shown.context["live"], *shown.context["ended"]]
    assert shown.context["playing"] == [key]
    assert str(key.id) not in owner.get("/portal/tenants/acme/limits/").content.decode()
    assert str(key.id) not in as_acme.get(listed).content.decode()
    of_playground = as_acme.get(f"{listed}?purpose=playground").json()["data"]
    assert [(each["id"], each["purpose"]) for each in of_playground] == [(str(key.id), "playground")]
    assert as_acme.get(f"{listed}?purpose=other").status_code == 400
    assert as_acme.patch(f"{listed}/{key.id}", {"name": "mine"}, format="json").status_code == 409
    assert as_acme.post(f"{listed}/{key.id}/rotate", {}, format="json").status_code == 409
    owner.post(f"/portal/tenants/acme/keys/{key.id}/revoke/")
    assert owner.get("/portal/tenants/acme/keys/").context["playing"] == []
    assert AuditEntry.objects.filter(action="key.revoked", object_id=str(key.id)).exists()


def test_the_script_never_writes_html() -> None:
    script = SCRIPT.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", script)
    assert not re.search(r"localStorage|sessionStorage|document\.cookie", script)
