"""Changing and rotating a key, as a page and as a dialog, and who may do it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from tenants import registry
from tenants.keys import keys
from tenants.models import ApiKey, AuditEntry, Membership, User
from tests.portal import fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]

PAGES = "/portal/tenants/acme/keys/"
FORM = {"name": "demo", "scopes": "keep", "models": "", "networks": "", "expires": "keep"}


def test_a_developers_form_for_a_key_that_manages_is_shown_again_with_the_reason(
    world: World, signed_in: SignIn
) -> None:
    developer = User.objects.create_user("dev", password=fixtures.PASSWORD)
    Membership.objects.create(user=developer, tenant=world.acme.tenant, role=Membership.Role.DEVELOPER)
    browser = signed_in(developer)
    managing = keys.issue(fixtures.OPERATOR, world.acme.project, name="managing", scopes=keys.SCOPES).key
    path = "/portal/tenants/acme/keys/"
    for refused in (
        browser.post(path + "create/", {"name": "mine", "scopes": "manage", "project": "default"}),
        browser.post(f"{path}{managing.id}/rotate/", {"overlap": "0"}),
        browser.post(f"{path}{managing.id}/change/", {"name": "x", "scopes": "keep", "expires": "keep"}),
    ):
        assert refused.status_code == 400
        assert "Only owners and admins of the tenant and operators" in refused.content.decode()
    managing.refresh_from_db()
    assert (managing.name, managing.expires_at) == ("managing", None)
    assert ApiKey.objects.filter(tenant=world.acme.tenant).count() == 2


def test_a_key_is_changed_and_the_list_says_so(world: World, signed_in: SignIn) -> None:
    key, browser = world.acme.key, signed_in(world.acme.owner)
    form = {
        "name": "office",
        "scopes": "inference",
        "models": "tiny-chat\r\nother",
        "networks": "192.0.2.0/24, 2001:db8::1\r\n",
        "expires": "30",
    }
    answer = browser.post(f"{PAGES}{key.id}/change/", form)
    assert (answer.status_code, answer.headers["Location"]) == (302, PAGES)
    key.refresh_from_db()
    assert (key.name, key.scopes, key.allowed_models) == (
        "office",
        ["inference", "cache:read", "cache:write"],
        ["tiny-chat", "other"],
    )
    assert key.allowed_networks == ["192.0.2.0/24", "2001:db8::1/128"]
    assert key.expires_at is not None
    assert abs(key.expires_at - timezone.now() - timedelta(days=30)) < timedelta(minutes=1)
    listed = browser.get(PAGES).content.decode()
    assert "192.0.2.0/24, 2001:db8::1/128" in listed
    assert AuditEntry.objects.get(action="key.changed").actor == world.acme.owner.username


def test_what_is_kept_stays_and_leaves_no_trace(world: World, signed_in: SignIn) -> None:
    own = keys.issue(fixtures.OPERATOR, world.acme.project, name="demo", scopes=["management:read"]).key
    assert signed_in(world.acme.owner).post(f"{PAGES}{own.id}/change/", FORM).status_code == 302
    own.refresh_from_db()
    assert (own.scopes, own.expires_at) == (["management:read"], None)
    assert not AuditEntry.objects.filter(action="key.changed").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"networks": "10.0.0.1/8"},
        {"networks": "\n".join(f"10.0.{number}.0/24" for number in range(65))},
        {"name": ""},
        {"models": "x" * 201},
        {"scopes": "root"},
        {"expires": "tomorrow"},
    ],
)
def test_a_form_that_is_not_understood_comes_back_filled_in_and_changes_nothing(
    world: World, signed_in: SignIn, wrong: dict[str, str]
) -> None:
    before = ApiKey.objects.filter(id=world.acme.key.id).values().get()
    form = {**FORM, "models": "tiny-chat", **wrong}
    answer = signed_in(world.acme.owner).post(f"{PAGES}{world.acme.key.id}/change/", form)
    assert answer.status_code == 400
    said = answer.content.decode()
    assert "Nothing was changed" in said
    assert form["models"] in said
    assert ApiKey.objects.filter(id=world.acme.key.id).values().get() == before


def test_a_rotation_shows_the_new_secret_once_and_when_the_old_key_expires(world: World, signed_in: SignIn) -> None:
    browser, path = signed_in(world.acme.owner), f"{PAGES}{world.acme.key.id}/rotate/"
    answer = browser.get(browser.post(path, {"overlap": "3600"})["Location"])
    secret = answer.context["secret"]
    assert secret in answer.content.decode()
    assert "It replaces" in answer.content.decode()
    assert keys.authenticate(secret).rotated_from == keys.authenticate(world.acme.secret)
    listed = browser.get(PAGES).content.decode()
    assert secret not in listed
    assert path not in listed  # it has its successor
    assert browser.get(path).headers["Location"] == PAGES
    again = browser.post(path, {"overlap": "3600"})
    assert (again.status_code, "rotated already" in again.content.decode()) == (400, True)
    assert browser.post(path, {"overlap": "7"}).status_code == 400


def test_a_new_key_expires_as_the_form_says(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    for name, days in (("for a month", "30"), ("for good", "never"), ("as before", "")):
        sent = {"name": name, "project": "default", "scopes": "inference", "expires": days}
        assert browser.post(f"{PAGES}create/", sent).status_code == 302
    until = dict(ApiKey.objects.filter(name__contains=" ").values_list("name", "expires_at"))
    assert until["for a month"] is not None
    assert timedelta(days=29) < until["for a month"] - timezone.now() < timedelta(days=31)
    assert (until["for good"], until["as before"]) == (None, None)
    refused = browser.post(f"{PAGES}create/", {"name": "x", "project": "default", "expires": "5"})
    assert (refused.status_code, ApiKey.objects.filter(name="x").exists()) == (400, False)


@pytest.mark.parametrize("verb", ["create/", "rotate/"])
def test_reloading_after_a_new_key_makes_no_second_one(world: World, signed_in: SignIn, verb: str) -> None:
    browser = signed_in(world.acme.owner)
    path = PAGES + (verb if verb == "create/" else f"{world.acme.key.id}/{verb}")
    made = browser.post(path, {"name": "laptop", "project": "default", "scopes": "inference", "overlap": "3600"})
    assert (made.status_code, ApiKey.objects.filter(tenant=world.acme.tenant).count()) == (302, 2)
    first, again = browser.get(made["Location"]), browser.get(made["Location"])
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.context["secret"] is not None
    assert first.context["secret"] not in again.content.decode()
    assert "is shown only once" in again.content.decode()
    assert ApiKey.objects.filter(tenant=world.acme.tenant).count() == 2


def test_a_form_that_is_sent_twice_makes_one_key(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)

    def filled() -> dict[str, str]:
        token = re.search(r'name="form_token" value="([^"]+)"', browser.get(PAGES).content.decode())
        assert token is not None
        return {"name": "laptop", "project": "default", "scopes": "inference", "form_token": token[1]}

    form = filled()
    first, second = browser.post(f"{PAGES}create/", form), browser.post(f"{PAGES}create/", form, follow=True)
    assert browser.get(first["Location"]).context["secret"] is not None
    assert "the key was created once" in second.content.decode()
    assert ApiKey.objects.filter(tenant=world.acme.tenant).count() == 2
    browser.post(f"{PAGES}create/", filled())
    assert ApiKey.objects.filter(tenant=world.acme.tenant).count() == 3


def test_a_key_of_an_archived_project_says_so_and_leads_to_the_project(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    registry.set_project_archived(fixtures.OPERATOR, world.acme.project, True)
    page = browser.get(PAGES).content.decode()
    assert 'href="/portal/tenants/acme/projects/" title="The key is refused until' in page
    refused = browser.post(f"{PAGES}{world.acme.key.id}/rotate/", {"overlap": "0"}).content.decode()
    assert "The project default is archived. Restore the project first." in refused


def test_a_new_secret_is_in_neither_the_session_nor_the_browser(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    made = browser.post(f"{PAGES}create/", {"name": "laptop", "project": "default", "scopes": "inference"})
    kept = f"{dict(browser.session)} {browser.cookies.output()}"
    cookies = {name: each for name, each in browser.cookies.items() if name.startswith("hearth-new-")}
    assert [(each["httponly"], each["samesite"]) for each in cookies.values()] == [(True, "Strict")]
    secret = browser.get(made["Location"]).context["secret"]
    assert keys.authenticate(secret).name == "laptop"
    assert secret not in made.content.decode() + made["Location"] + kept
    assert secret.encode().hex() not in kept
    assert "hearth-new-" not in str({name: each.value for name, each in browser.cookies.items() if each.value})


def test_a_new_secret_is_shown_to_the_browser_that_made_it_alone(world: World, signed_in: SignIn) -> None:
    browser, other = signed_in(world.acme.owner), signed_in(world.acme.owner)
    path = browser.post(f"{PAGES}create/", {"name": "laptop", "project": "default", "scopes": "inference"})["Location"]
    assert other.get(path).context["secret"] is None
    assert signed_in(world.globex.owner).get(path).status_code == 404
    assert browser.get(path.replace("acme", "globex")).status_code == 404
    assert browser.get(path).context["secret"] is not None


def test_the_address_of_every_form_leads_to_the_page_that_has_it(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    key, missing = world.acme.key.id, "0190a000-0000-7000-8000-000000000001"
    tenant = "/portal/tenants/acme/"
    for path, page in (
        ("keys/create/", "keys/"),
        (f"keys/{key}/revoke/", "keys/"),
        ("limits/set/", "limits/"),
        (f"limits/{missing}/remove/", "limits/"),
        ("budgets/set/", "limits/"),
        (f"budgets/{missing}/archive/", "limits/"),
        ("cache/set/", "cache/"),
        (f"cache/{missing}/remove/", "cache/"),
        ("cache/purge/", "cache/"),
        ("state/", "policy/"),
    ):
        answer = browser.get(tenant + path)
        assert (answer.status_code, answer.headers.get("Location")) == (302, tenant + page), path
        assert browser.put(tenant + path).status_code == 405, path
    assert browser.get("/portal/create-tenant/").headers["Location"] == "/portal/tenants/"


def test_a_key_that_expired_is_listed_among_those_that_are_over(world: World, signed_in: SignIn) -> None:
    keys.rotate(fixtures.OPERATOR, world.acme.key, timedelta(0))
    answer = signed_in(world.acme.owner).get(PAGES)
    assert [key.id for key in answer.context["ended"]] == [world.acme.key.id]
    assert len(answer.context["live"]) == 1


def test_a_question_is_a_page_or_the_content_of_a_dialog(world: World, signed_in: SignIn) -> None:
    browser = signed_in(world.acme.owner)
    for verb in ("change", "rotate"):
        path = f"{PAGES}{world.acme.key.id}/{verb}/"
        assert "<html" in browser.get(path).content.decode()
        fragment = browser.get(path, headers={"HX-Request": "true"}).content.decode()
        assert fragment.lstrip().startswith("<form")


def test_a_viewer_is_asked_nothing(world: World, signed_in: SignIn) -> None:
    guest = User.objects.create(username="guest")
    Membership.objects.create(user=guest, tenant=world.acme.tenant, role=Membership.Role.VIEWER)
    browser = signed_in(guest)
    for verb in ("change", "rotate"):
        path = f"{PAGES}{world.acme.key.id}/{verb}/"
        assert browser.get(path).status_code == 403
        assert browser.post(path, {**FORM, "overlap": "0"}).status_code == 403
        assert path not in browser.get(PAGES).content.decode()


def test_a_stranger_finds_no_question_and_changes_nothing(world: World, signed_in: SignIn) -> None:
    key, browser = world.acme.key, signed_in(world.globex.owner)
    before = ApiKey.objects.filter(id=key.id).values().get()
    for tenant in ("acme", "globex"):
        for verb in ("change", "rotate"):
            path = f"/portal/tenants/{tenant}/keys/{key.id}/{verb}/"
            assert browser.get(path).status_code == 404
            assert browser.post(path, {**FORM, "name": "mine", "overlap": "0"}).status_code == 404
    assert ApiKey.objects.filter(id=key.id).values().get() == before
    assert not ApiKey.objects.filter(rotated_from=key).exists()
