"""Second factors, of whom they are required, and what does not get around them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.core.management import call_command
from django.test import Client

from portal.access.identity import mfa
from tenants.identity import second_factor
from tenants.identity.models import SignInProvider
from tenants.keys import tokens
from tenants.models import AuditEntry, User
from tests.portal import fixtures
from tests.portal.conftest import bearer
from tests.portal.fixtures import PASSWORD, World
from tests.portal.identity_provider import Provider
from tests.portal.pages.identity.conftest import through

LOGIN, FACTORS, APP = "/portal/login/", "/portal/account/second-factor/", "/portal/account/second-factor/app/"
CONFIRM = "/portal/account/confirm-password/"


def code_of(secret: str) -> str:
    """Return what an authenticator app shows now."""
    counter = next(iter(yield_hotp_counters_from_time()))
    return str(format_hotp_value(hotp_value(secret, counter)))


def typed(user: User) -> Client:
    browser = Client()
    browser.post(LOGIN, {"username": user.username, "password": PASSWORD})
    return browser


def with_app(user: User) -> tuple[Client, str, list[str]]:
    """Return a browser in which the person set up an app, the app's secret, and the recovery codes."""
    browser = typed(user)
    assert browser.get(APP)["Location"].startswith(CONFIRM)
    browser.post(CONFIRM, {"password": PASSWORD})
    shown = re.search(r'data-testid="totp-secret">(\w+)', browser.get(APP).content.decode())
    assert shown is not None
    done = browser.post(APP, {"code": code_of(shown[1])}, follow=True).content.decode()
    codes = re.search(r'data-testid="codes">([^<]+)', done)
    assert codes is not None
    return browser, shown[1], codes[1].split()


def is_signed_in(browser: Client) -> bool:
    return browser.get("/portal/account/sessions/").status_code == 200


def test_an_app_is_asked_for_and_recovery_codes_work_once(world: World) -> None:
    owner = world.acme.owner
    _, secret, codes = with_app(owner)
    stored = Authenticator.objects.get(user=owner, type="totp").data["secret"]
    assert secret not in stored
    for code, works in ((codes[0], True), (codes[0], False), (codes[1], True), ("000000", False)):
        browser = typed(owner)
        assert not is_signed_in(browser)
        browser.post("/portal/second-factor/", {"code": code})
        assert is_signed_in(browser) is works
    assert '"by": "recovery_codes"' in json.dumps(
        AuditEntry.objects.filter(action="sign_in.succeeded").latest("id").after
    )


def test_guessing_codes_is_slowed_down(world: World) -> None:
    _, _, codes = with_app(world.acme.owner)
    browser = typed(world.acme.owner)
    for _ in range(5):
        browser.post("/portal/second-factor/", {"code": "123456"})
    browser.post("/portal/second-factor/", {"code": codes[0]})
    assert not is_signed_in(browser)


@pytest.mark.parametrize("role", ["owner", "operator"])
def test_without_a_required_factor_only_the_page_that_sets_it_up_opens(world: World, role: str) -> None:
    user, tenant = (world.operator, None) if role == "operator" else (world.acme.owner, world.acme.tenant)
    token = tokens.issue(fixtures.OPERATOR, world.operator, name="laptop").secret
    second_factor.require(fixtures.OPERATOR, tenant, True)
    browser = typed(user)
    for page in ("/portal/", "/portal/tenants/acme/keys/", "/portal/e-mails/", "/portal/tenants/globex/"):
        assert browser.get(page)["Location"] == FACTORS
    assert browser.post("/portal/tenants/acme/keys/create/", {"name": "x"})["Location"] == FACTORS
    assert "is required of you" in browser.get(FACTORS).content.decode()
    assert browser.get("/api/v1/tenants").status_code == 403
    asked = {"username": user.username, "password": PASSWORD}
    assert Client().post("/api/v1/tokens", asked, content_type="application/json").status_code == 403
    if role == "operator":
        assert browser.get("/admin/").status_code != 200
        assert bearer(token).get("/api/v1/tenants").status_code == 403
    elsewhere = typed(world.globex.owner)
    assert elsewhere.get("/portal/tenants/globex/keys/").status_code == 200
    done, _, _ = with_app(user)
    assert done.get("/portal/tenants/acme/keys/").status_code == 200
    assert done.get("/api/v1/tenants").status_code == 200
    remove = done.post(f"{APP}remove/").content.decode()
    assert Authenticator.objects.filter(user=user, type="totp").exists(), remove


def test_a_token_needs_the_code_too(world: World) -> None:
    _, _, codes = with_app(world.operator)

    def ask(**more: str) -> Any:
        given = {"username": "ada", "password": PASSWORD} | more
        return Client().post("/api/v1/tokens", given, content_type="application/json")

    assert ask().status_code == 401
    assert ask(code="000000").json()["error"]["code"] == "second_factor_required"
    assert ask(code=codes[0]).status_code == 201
    assert ask(code=codes[0]).status_code == 401


def test_owners_and_operators_set_the_rules_and_nobody_else(world: World, signed_in: Callable[[User], Client]) -> None:
    page, rule = "/portal/tenants/acme/sign-in/factor/", f"{FACTORS}operators/"
    stranger, owner = signed_in(world.globex.owner), signed_in(world.acme.owner)
    assert stranger.post(page, {"required": "1"}).status_code == 404
    assert owner.post(rule, {"required": "1"}).status_code == 404
    assert not second_factor.is_required(world.acme.tenant)
    owner.post(page, {"required": "1"})
    assert second_factor.is_required(world.acme.tenant)
    assert owner.get("/portal/")["Location"] == FACTORS
    operator = signed_in(world.operator)
    operator.post(rule, {"required": "1"})
    assert operator.get("/portal/")["Location"] == FACTORS
    assert AuditEntry.objects.filter(action="second_factor.rule").count() == 2


def test_people_of_a_provider_have_its_second_factor(world: World, acme: SignInProvider, provider: Provider) -> None:
    second_factor.require(fixtures.OPERATOR, world.acme.tenant, True)
    browser = Client()
    through(browser, provider)
    assert browser.get("/portal/tenants/acme/keys/").status_code == 200
    for page in (FACTORS, APP, "/portal/account/passkeys/add/", "/portal/account/password/", "/portal/account/e-mail/"):
        assert browser.get(page).status_code == 404


def test_nobody_removes_another_persons_passkey(world: World) -> None:
    browser, _, _ = with_app(world.globex.owner)
    theirs = Authenticator.objects.create(user=world.acme.owner, type="webauthn", data={"name": "laptop"})
    assert browser.post(f"/portal/account/passkeys/{theirs.pk}/remove/").status_code == 404
    assert mfa.has_factor(world.acme.owner)


def test_a_command_removes_the_factors_of_somebody_who_lost_them(world: World) -> None:
    with_app(world.acme.owner)
    call_command("secondfactor", world.acme.owner.username, "--remove")
    assert not Authenticator.objects.filter(user=world.acme.owner).exists()
    assert is_signed_in(typed(world.acme.owner))
    assert AuditEntry.objects.get(action="second_factor.removed").object_id == str(world.acme.owner.id)
