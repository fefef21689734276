"""Somebody whom the provider does not confirm any more loses their sessions within 15 minutes."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore
from django.test import Client

from portal.access.identity import provider_sessions
from portal.live import viewers
from portal.live.viewers import Viewer
from tenants.identity.models import ProviderMember, ProviderSession, SignInProvider
from tenants.ids import TenantId
from tenants.models import ApiKey, Membership, Tenant
from tests.portal.fixtures import World
from tests.portal.identity_provider import Provider
from tests.portal.pages.identity.conftest import overdue, set_up, through

SESSIONS = "/portal/account/sessions/"


@pytest.fixture
def anna(acme: SignInProvider, provider: Provider) -> Client:
    """A browser in which anna is signed in."""
    browser = Client()
    through(browser, provider)
    return browser


def is_signed_in(browser: Client) -> bool:
    return browser.get(SESSIONS).status_code == 200


async def _nothing() -> None:
    return None


def watches(browser: Client, tenant: Tenant) -> bool:
    """Return whether a live page of the tenant stays open for this browser's session."""
    key = browser.cookies[settings.SESSION_COOKIE_NAME].value
    page = Viewer(session_key=key, tenant_id=TenantId(tenant.id), end=_nothing)
    return viewers.without_right([page]) == []


def test_a_live_page_closes_for_a_session_that_the_provider_does_not_confirm(
    world: World, anna: Client, provider: Provider
) -> None:
    assert watches(anna, world.acme.tenant)
    overdue()
    assert not watches(anna, world.acme.tenant)
    assert is_signed_in(anna)
    assert watches(anna, world.acme.tenant)
    provider.confirms = False
    overdue()
    session = SessionStore(anna.cookies[settings.SESSION_COOKIE_NAME].value)
    assert not provider_sessions.is_confirmed(session)  # what a handshake asks
    assert not watches(anna, world.acme.tenant)


def test_a_confirmed_session_goes_on_and_each_refresh_token_is_used_once(anna: Client, provider: Provider) -> None:
    for refreshes in (1, 2, 3):
        overdue()
        assert is_signed_in(anna)
        assert is_signed_in(anna)
        assert provider.refreshes == refreshes


def test_a_session_that_the_provider_does_not_confirm_ends_at_the_next_request(
    anna: Client, provider: Provider
) -> None:
    provider.confirms = False
    assert is_signed_in(anna)
    overdue()
    assert anna.get("/portal/tenants/acme/keys/")["Location"].startswith("/portal/login/")
    assert anna.get("/api/v1/tenants").status_code == 401
    assert not ProviderSession.objects.exists()
    assert ProviderMember.objects.get().refused_at is not None


def test_the_background_role_ends_sessions_that_nobody_uses(anna: Client, provider: Provider) -> None:
    assert provider_sessions.run() == 0
    assert provider.refreshes == 0
    overdue(11)
    assert provider_sessions.run() == 0
    assert provider.refreshes == 1
    provider.confirms = False
    overdue(11)
    assert provider_sessions.run() == 1
    assert not is_signed_in(anna)


def test_without_a_refresh_token_a_session_lasts_15_minutes(acme: SignInProvider, provider: Provider) -> None:
    provider.gives_refresh_tokens = False
    browser = Client()
    through(browser, provider)
    overdue(14)
    assert is_signed_in(browser)
    overdue()
    assert not is_signed_in(browser)
    assert provider.refreshes == 0


def test_a_provider_that_is_away_keeps_a_session_until_its_15_minutes_are_over(
    anna: Client, provider: Provider, settings: Any
) -> None:
    settings.WEBHOOK_NETWORKS = ()
    overdue(14)
    assert provider_sessions.run() == 0
    assert is_signed_in(anna)
    overdue()
    assert not is_signed_in(anna)


@pytest.mark.parametrize(
    ("change", "stays"), [({"groups": ["admins"]}, True), ({"groups": []}, False), ({"sub": "2"}, False)]
)
def test_groups_count_each_time_the_provider_is_asked(
    anna: Client, provider: Provider, change: dict[str, Any], stays: bool
) -> None:
    provider.person |= change
    overdue()
    assert is_signed_in(anna) is stays
    roles = list(Membership.objects.filter(user__username="anna@acme").values_list("role", flat=True))
    assert roles == (["owner"] if stays else ["developer"] if "sub" in change else [])


def test_owners_read_which_keys_are_of_somebody_who_has_left(
    world: World, anna: Client, provider: Provider, acme: SignInProvider
) -> None:
    anna.post("/portal/tenants/acme/keys/create/", {"name": "left behind", "scopes": "inference", "project": "default"})
    owner, stranger = Client(), Client()
    owner.force_login(world.acme.owner)
    stranger.force_login(world.globex.owner)
    page = "/portal/tenants/acme/keys/"
    assert "who has left" not in owner.get(page).content.decode()
    provider.person["groups"] = []
    overdue()
    provider_sessions.run()
    shown = owner.get(page).content.decode()
    assert "made by anna@acme, who has left" in shown
    assert stranger.get(page).status_code == 404
    assert (
        ApiKey.objects.get(name="left behind").revoked_at is None
    )  # what runs with it goes on until somebody revokes it


def test_a_session_ends_with_its_provider(world: World, anna: Client, acme: SignInProvider, provider: Provider) -> None:
    owner = Client()
    owner.force_login(world.acme.owner)
    page = "/portal/tenants/acme/sign-in/"
    assert "in order" in owner.post(f"{page}test/", follow=True).content.decode()
    provider.answers["/keys"] = b"[]"
    assert "The test failed" in owner.post(f"{page}test/", follow=True).content.decode()
    owner.post(f"{page}remove/")
    assert not is_signed_in(anna)
    assert not Membership.objects.filter(user__username="anna@acme").exists()


def test_an_owner_sets_the_provider_and_strangers_and_developers_do_not_see_it(
    world: World, anna: Client, provider: Provider
) -> None:
    owner, stranger = Client(), Client()
    owner.force_login(world.acme.owner)
    stranger.force_login(world.globex.owner)
    page = "/portal/tenants/acme/sign-in/"
    typed = {"issuer": provider.issuer, "client_id": "new", "groups_claim": "roles", "roles": "a=b = owner\nx"}
    assert "is not a group" in owner.post(page, typed).content.decode()
    saved = owner.post(page, typed | {"roles": "a=b = owner"}, follow=True).content.decode()
    assert "Saved." in saved
    assert "client-secret" not in saved
    shown = owner.get("/api/v1/tenants/acme/sign-in-provider").json()
    assert (shown["client_id"], shown["roles"]) == ("new", [{"group": "a=b", "role": "owner"}])
    assert "client_secret" not in shown
    for other in (stranger, anna):
        assert other.get(page).status_code == 404
        assert other.post(page, typed).status_code == 404
        assert other.post(f"{page}remove/").status_code == 404
    for refused in ("https://10.0.0.1/x", "ftp://example.com", "https://a@example.com"):
        assert owner.post(page, typed | {"roles": "", "issuer": refused, "client_secret": "s"}).status_code == 400


def test_the_two_tenants_of_one_issuer_do_not_share_sessions(world: World, anna: Client, provider: Provider) -> None:
    set_up(world.globex.tenant, provider)
    other = Client()
    through(other, provider, "globex")
    overdue()
    assert is_signed_in(anna)
    assert is_signed_in(other)
    assert provider.refreshes == 2
