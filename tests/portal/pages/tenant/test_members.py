"""The page *Members*: roles, projects and invitations, by each role and a stranger, on the page and through the API."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.core import mail
from django.test import Client

from tenants import members, registry
from tenants.errors import NotAllowed
from tenants.models import ApiKey, Invitation, Membership, User
from tenants.people import invitations
from tests.portal import fixtures
from tests.portal.conftest import bearer
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE, API = "/portal/tenants/acme/members/", "/api/v1/tenants/acme"
#: Roles that neither see nor change members.
OTHERS = ("developer", "billing", "viewer")


def member(world: World, role: str, name: str = "") -> User:
    return members.put(fixtures.OPERATOR, world.acme.tenant, name or role, role).user


def link_in(browser: Client, address: str) -> str:
    found = re.search(r'data-testid="link">http://testserver(\S+)</pre>', browser.get(address).content.decode())
    assert found
    return found[1]


def invited(browser: Client, role: str, **form: str) -> str:
    """Invite somebody and return the path of the link."""
    made = browser.post(PAGE, {"role": role, **form})
    assert made.status_code == 302
    return link_in(browser, made["Location"])


def test_an_owner_invites_by_a_link_that_is_shown_once_and_works_once(world: World, signed_in: SignIn) -> None:
    owner, stranger = signed_in(world.acme.owner), Client()
    assert "billing: reads everything but members" in owner.get(PAGE).content.decode()
    made = owner.post(PAGE, {"role": "developer"})
    link = link_in(owner, made["Location"])
    assert 'data-testid="shown-before"' in owner.get(made["Location"]).content.decode()
    offer = stranger.get(link).content.decode()
    assert "Acme" in offer
    wrong = stranger.post(link, {"username": "mary", "password": "short"})
    assert wrong.status_code == 400
    assert 'value="mary"' in wrong.content.decode()
    assert stranger.post(link, {"username": "mary", "password": fixtures.PASSWORD})["Location"] == (
        "/portal/tenants/acme/"
    )
    assert stranger.get("/portal/tenants/acme/keys/").status_code == 200
    assert stranger.get("/portal/tenants/globex/keys/").status_code == 404
    used = Client().get(link)
    assert (used.status_code, "was used already" in used.content.decode()) == (410, True)
    assert Client().get("/portal/invitation/hi_x/").status_code == 410


def test_somebody_who_is_signed_in_joins_as_who_they_are(world: World, signed_in: SignIn) -> None:
    link = invited(signed_in(world.acme.owner), "viewer")
    globex = signed_in(world.globex.owner)
    assert "Join as globex-owner" in globex.get(link).content.decode()
    assert not Membership.objects.filter(tenant=world.acme.tenant, user=world.globex.owner).exists()
    globex.post(link)
    assert members.one(world.acme.tenant, "globex-owner").role == "viewer"


@pytest.mark.parametrize("is_sent", [True, False])
def test_the_link_is_sent_where_e_mails_are(world: World, signed_in: SignIn, settings: Any, is_sent: bool) -> None:
    settings.EMAIL_IS_SENT = is_sent
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    link = invited(signed_in(world.acme.owner), "viewer", email="mary@example.com")
    assert [message.to for message in mail.outbox] == ([["mary@example.com"]] if is_sent else [])
    assert all(link in str(message.body) for message in mail.outbox)


def test_an_admin_does_what_an_owner_does_but_decides_nothing_about_owners(world: World, signed_in: SignIn) -> None:
    admin = signed_in(member(world, "admin"))
    member(world, "viewer")
    admin.post(f"{PAGE}viewer/change/", {"role": "developer"})
    assert members.one(world.acme.tenant, "viewer").role == "developer"
    assert admin.post(PAGE, {"role": "owner"}).status_code == 400
    for person, form in (
        ("viewer", {"role": "owner"}),
        ("acme-owner", {"role": "viewer"}),
        ("acme-owner", {"action": "remove"}),
    ):
        told = admin.post(f"{PAGE}{person}/change/", form, follow=True).content.decode()
        assert "Only owners of the tenant and operators decide who is an owner." in told
    assert admin.put(f"{API}/members/viewer", {"role": "owner"}, "application/json").status_code == 403
    invite = {"role": "owner"}
    assert admin.post(f"{API}/invitations", invite, "application/json").status_code == 403
    assert members.one(world.acme.tenant, "acme-owner").role == "owner"
    strong = {"name": "new", "scopes": ["management:read", "management:write"]}
    assert admin.post(f"{API}/keys", strong, "application/json").status_code == 201
    assert admin.get("/portal/tenants/acme/billing/").status_code == 200


def test_the_last_owner_stays_and_a_removed_member_sees_nothing(world: World, signed_in: SignIn) -> None:
    owner, viewer = signed_in(world.acme.owner), signed_in(member(world, "viewer"))
    told = owner.post(f"{PAGE}acme-owner/change/", {"action": "remove"}, follow=True)
    assert "the last owner" in told.content.decode()
    assert viewer.get("/portal/tenants/acme/keys/").status_code == 200
    owner.post(f"{PAGE}viewer/change/", {"action": "remove"})
    assert viewer.get("/portal/tenants/acme/keys/").status_code == 404


def test_other_roles_and_strangers_see_and_change_nothing(world: World, signed_in: SignIn) -> None:
    target = invitations.invite(fixtures.OPERATOR, world.acme.tenant, "viewer").invitation
    people = [signed_in(member(world, role)) for role in OTHERS]
    before = list(Membership.objects.order_by("id").values_list("user_id", "role"))
    for browser, status in ((signed_in(world.globex.owner), 404), *((each, 403) for each in people)):
        tried = [
            browser.get(PAGE),
            browser.post(PAGE, {"role": "viewer"}),
            browser.post(f"/portal/tenants/acme/invitations/{target.id}/revoke/"),
            browser.get(f"{API}/members"),
            browser.put(f"{API}/members/viewer", {"role": "owner"}, "application/json"),
            browser.delete(f"{API}/members/acme-owner"),
            browser.get(f"{API}/invitations"),
            browser.post(f"{API}/invitations", {"role": "viewer"}, "application/json"),
            browser.delete(f"{API}/invitations/{target.id}"),
        ]
        assert [each.status_code for each in tried] == [status] * len(tried)
        browser.post(f"{PAGE}acme-owner/change/", {"action": "remove"})
    assert list(Membership.objects.order_by("id").values_list("user_id", "role")) == before
    assert Invitation.objects.count() == 1
    assert bearer(world.acme.secret).get(f"{API}/members").status_code == 403


def test_the_api_invites_changes_and_removes(world: World, signed_in: SignIn) -> None:
    owner = signed_in(world.acme.owner)
    made = owner.post(f"{API}/invitations", {"role": "viewer"}, "application/json").json()
    assert (made["state"], made["was_sent"]) == ("open", False)
    signed_in(world.globex.owner).post(made["link"])
    listed = owner.get(f"{API}/invitations").json()["data"]
    assert [(each["state"], each["accepted_by"]) for each in listed] == [("accepted", "globex-owner")]
    changed = owner.put(f"{API}/members/globex-owner", {"role": "developer"}, "application/json").json()
    assert changed["role"] == "developer"
    assert owner.put(f"{API}/members/nobody", {"role": "viewer"}, "application/json").status_code == 404
    assert not User.objects.filter(username="nobody").exists()
    assert owner.delete(f"{API}/members/globex-owner").status_code == 204
    assert owner.delete(f"{API}/members/acme-owner").status_code == 409
    assert [each["person"] for each in owner.get(f"{API}/members").json()["members"]] == ["acme-owner"]


def test_a_developer_confined_to_a_project_changes_keys_of_no_other(world: World, signed_in: SignIn) -> None:
    hr = registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="hr", name="HR")
    owner, developer = signed_in(world.acme.owner), signed_in(member(world, "developer"))
    owner.post(f"{PAGE}developer/change/", {"action": "projects", "scope": "some", "projects": "hr"})
    assert members.one(world.acme.tenant, "developer").project_ids == [hr.id]
    keys, key = "/portal/tenants/acme/keys/", world.acme.key.id
    new = {"name": "new", "scopes": "inference"}
    developer.post(f"{keys}create/", {**new, "project": "hr"})
    developer.post(f"{keys}create/", {**new, "project": "default"})
    assert [each.project for each in ApiKey.objects.filter(name="new")] == [hr]
    developer.post(f"{keys}{key}/revoke/")
    developer.post(f"{keys}{key}/rotate/", {"overlap": "0"})
    developer.post(f"{keys}{key}/change/", {"name": "changed", "scopes": "keep", "expires": "keep"})
    api = f"{API}/keys"
    for refused in (
        developer.post(api, {"name": "new", "project": "default"}, "application/json"),
        developer.patch(f"{api}/{key}", {"name": "changed"}, "application/json"),
        developer.delete(f"{api}/{key}"),
        developer.post(f"{api}/{key}/rotate", {"overlap_seconds": 0}, "application/json"),
    ):
        assert refused.status_code == 404
    play = "/portal/tenants/acme/playground/key/"
    assert [developer.post(play, {"project": each}).status_code for each in ("hr", "default")] == [200, 409]
    world.acme.key.refresh_from_db()
    assert (world.acme.key.name, world.acme.key.revoked_at) == ("demo", None)
    assert developer.post(api, {"name": "other", "project": "hr"}, "application/json").status_code == 201
    changed = owner.put(f"{API}/members/developer", {"role": "developer", "projects": []}, "application/json")
    assert changed.json()["projects"] == []
    assert developer.delete(f"{api}/{key}").status_code == 200


def test_a_developer_of_an_archived_project_stays_confined_until_all_are_chosen(
    world: World, signed_in: SignIn
) -> None:
    old = registry.create_project(fixtures.OPERATOR, world.acme.tenant, slug="old", name="Old")
    member(world, "developer")
    members.confine(fixtures.OPERATOR, world.acme.tenant, "developer", [old])
    registry.set_project_archived(fixtures.OPERATOR, old, True)
    owner = signed_in(world.acme.owner)
    shown = owner.get(PAGE).content.decode()
    assert re.search(r'value="old" checked> old \(archived\)', shown)
    change = f"{PAGE}developer/change/"
    told = owner.post(change, {"action": "projects", "scope": "some"}, follow=True).content.decode()
    assert "all projects, or at least one of them" in told
    owner.post(change, {"action": "projects", "scope": "some", "projects": "old"})
    assert members.one(world.acme.tenant, "developer").project_ids == [old.id]
    owner.post(change, {"action": "projects", "scope": "all", "projects": "old"})
    assert members.one(world.acme.tenant, "developer").project_ids == []


def test_members_and_the_invited_see_no_operators_name(world: World, signed_in: SignIn, settings: Any) -> None:
    settings.EMAIL_IS_SENT, settings.EMAIL_BACKEND = True, "django.core.mail.backends.locmem.EmailBackend"
    User.objects.filter(id=world.operator.id).update(username="root-zoe")
    world.operator.refresh_from_db()
    operator = signed_in(world.operator)
    link = invited(operator, "viewer", email="mary@example.com")
    assert "root-zoe" not in str(mail.outbox[0].body)
    owner = signed_in(world.acme.owner)
    for text in (owner.get(PAGE), owner.get(f"{API}/invitations"), Client().get(link), owner.get(link)):
        assert "root-zoe" not in text.content.decode()
        assert "operator" in text.content.decode()
    assert operator.get(f"{API}/invitations").json()["data"][0]["created_by"] == "root-zoe"


def test_what_refuses_to_join_is_said(world: World, signed_in: SignIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotAllowed("tenant", "acme", "archived")

    link = invited(signed_in(world.acme.owner), "viewer")
    monkeypatch.setattr(members, "put", refuse)
    refused = signed_in(world.globex.owner).post(link)
    assert (refused.status_code, "is archived" in refused.content.decode()) == (409, True)
