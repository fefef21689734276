"""Operators sign in through the provider of the tenant ``platform``, and one break-glass operator without it."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from alerting import open_alerts, watch
from tenants.errors import BadName, NotAllowed
from tenants.identity import operator_sign_in, second_factor
from tenants.identity.models import ProviderMember, SignInProvider
from tenants.identity.operator_sign_in import Sealed
from tenants.keys import tokens
from tenants.models import AuditEntry, Membership, OperatorToken, Tenant, User
from tenants.people import invitations, operators
from tenants.people.invitations import NewPerson
from tests.portal import fixtures
from tests.portal.fixtures import PASSWORD, World
from tests.portal.identity_provider import Provider
from tests.portal.pages.identity.conftest import overdue, set_up, through
from tests.portal.pages.identity.test_second_factor import code_of

OPERATORS = (("platform-admins", "admin"), ("on-call", "operator"))


@pytest.fixture
def platform(world: World, provider: Provider) -> Tenant:
    """The tenant whose provider is the operators'."""
    tenant = Tenant.objects.get(slug="platform")
    set_up(tenant, provider, roles=OPERATORS)
    return tenant


@pytest.fixture
def sealed(world: World) -> Sealed:
    """The break-glass operator."""
    return operator_sign_in.make_break_glass(fixtures.OPERATOR, "break-glass")


def sign_in(browser: Client, name: str, password: str = PASSWORD) -> Any:
    """Send name and password."""
    return browser.post("/portal/login/", {"username": name, "password": password})


def with_code(browser: Client, sealed: Sealed) -> Any:
    """Sign in as the break-glass operator."""
    assert sign_in(browser, sealed.name, sealed.password)["Location"] == "/portal/second-factor/"
    return browser.post("/portal/second-factor/", {"code": code_of(sealed.totp_secret)})


def test_groups_of_the_platform_s_provider_give_an_operator_s_role_and_take_it(
    platform: Tenant, provider: Provider
) -> None:
    provider.person |= {"sub": "1", "preferred_username": "anna", "groups": ["on-call"]}
    browser = Client()
    assert through(browser, provider, "platform").status_code == 302
    anna = User.objects.get(username="anna@platform")
    assert (anna.is_staff, anna.operator_role) == (True, "operator")
    assert browser.get("/portal/fleet/").status_code == 200
    assert not Membership.objects.filter(user=anna).exists()
    second_factor.require(fixtures.OPERATOR, None, True)
    assert not second_factor.is_required_of(anna)  # her provider has its own
    token = tokens.issue(fixtures.OPERATOR, anna, name="spare").token
    provider.person["groups"] = ["somebody else"]
    overdue()
    assert browser.get("/portal/fleet/").status_code == 302
    anna.refresh_from_db()
    assert not anna.is_staff
    assert OperatorToken.objects.get(id=token.id).revoked_at is not None


def test_a_tenant_s_provider_makes_no_operator_and_its_owner_sets_not_the_operators_one(
    world: World, provider: Provider, platform: Tenant
) -> None:
    with pytest.raises(BadName):
        set_up(world.acme.tenant, provider, roles=OPERATORS)
    Membership.objects.create(user=world.acme.owner, tenant=platform, role="owner")
    owner = Client()
    owner.force_login(world.acme.owner)
    assert owner.get("/portal/tenants/platform/sign-in/").status_code == 404
    assert owner.get("/api/v1/tenants/platform/sign-in-provider").status_code == 403


def test_with_provider_only_passwords_let_no_operator_in_but_the_break_glass_one(
    world: World, platform: Tenant, sealed: Sealed
) -> None:
    before, after = Client(), Client()
    assert sign_in(before, "ada").status_code == 302
    operator_sign_in.set_provider_only(fixtures.OPERATOR, True)
    assert before.get("/portal/fleet/").status_code == 302
    refused = sign_in(after, "ada")
    assert (refused.status_code, "/portal/login/platform/" in refused.content.decode()) == (403, True)
    assert after.get("/portal/fleet/").status_code == 302
    assert sign_in(Client(), "acme-owner").status_code == 302  # members are no operators
    for_token = {"username": "ada", "password": PASSWORD, "name": "x"}
    answer = APIClient().post("/api/v1/tokens", for_token, format="json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "provider_required")
    assert with_code(after, sealed).status_code == 302
    assert after.get("/portal/fleet/").status_code == 200
    page = after.get("/portal/operators/").content.decode()
    assert "only the break-glass operator" in page
    after.post("/portal/operators/sign-in/", {"provider_only": ""})
    assert sign_in(Client(), "ada").status_code == 302


def test_each_sign_in_of_the_break_glass_operator_is_audited_and_raises_its_own_alert(sealed: Sealed) -> None:
    watch.run()
    assert open_alerts.newest(is_open=True) == []
    with_code(Client(), sealed)
    codes = {"username": sealed.name, "password": sealed.password, "code": sealed.recovery_codes[0], "name": "x"}
    assert APIClient().post("/api/v1/tokens", codes, format="json").status_code == 201
    uses = AuditEntry.objects.filter(action="break_glass.used").order_by("id")
    assert [each.actor for each in uses] == ["break-glass", "break-glass"]
    watch.run()
    alerts = open_alerts.newest(is_open=True)
    assert {each.kind for each in alerts} == {"break-glass-used"}
    assert {each.about for each in alerts} == {
        f"break-glass at {each.created_at:%Y-%m-%d %H:%M:%S.%f} UTC" for each in uses
    }


def test_provider_only_needs_a_provider_and_a_break_glass_operator(world: World, provider: Provider) -> None:
    admin = APIClient()
    admin.force_login(world.operator)
    wanted = {"provider_only": True}
    assert admin.patch("/api/v1/operator-sign-in", wanted, format="json").status_code == 409
    set_up(Tenant.objects.get(slug="platform"), provider, roles=OPERATORS)
    assert admin.patch("/api/v1/operator-sign-in", wanted, format="json").status_code == 409
    operator_sign_in.make_break_glass(fixtures.OPERATOR, "glass")
    ProviderMember.objects.all().delete()
    assert admin.patch("/api/v1/operator-sign-in", wanted, format="json").json() == {
        "second_factor_required": False,
        "provider_only": True,
        "has_provider": True,
        "break_glass": "glass",
    }
    with pytest.raises(NotAllowed):
        operator_sign_in.remove_break_glass(fixtures.OPERATOR)


def test_the_command_makes_one_account_anew_and_removes_it(world: World) -> None:
    def told(*words: str) -> str:
        out = StringIO()
        call_command("operators", *words, stdout=out)
        return out.getvalue()

    first, second = told("break-glass"), told("break-glass")
    assert first.splitlines()[0] == second.splitlines()[0] == "name            break-glass"
    assert first.splitlines()[1] != second.splitlines()[1]
    for other in ("another", "ada"):
        with pytest.raises(CommandError):
            told("break-glass", other)
    assert "cannot sign in any more" in told("break-glass", "--remove")
    assert not User.objects.get(username="break-glass").is_active


def test_the_last_factor_of_the_break_glass_operator_stays(sealed: Sealed) -> None:
    browser = Client()
    with_code(browser, sealed)
    browser.post("/portal/account/confirm-password/", {"password": sealed.password})
    browser.post("/portal/account/second-factor/app/remove/")
    assert browser.get("/portal/account/second-factor/app/").status_code in {302, 403}
    user = User.objects.get(username=sealed.name)
    assert Authenticator.objects.filter(user=user, type="totp").exists()


def test_the_rule_of_a_tenant_is_its_owners_by_session_and_nobody_else_s(world: World) -> None:
    owner, stranger, key = APIClient(), APIClient(), APIClient()
    owner.force_login(world.acme.owner)
    stranger.force_login(world.globex.owner)
    key.credentials(HTTP_AUTHORIZATION=f"Bearer {world.acme.secret}")
    address, wanted = "/api/v1/tenants/acme/sign-in-rules", {"second_factor_required": True}
    assert stranger.put(address, wanted, format="json").status_code == 404
    assert key.put(address, wanted, format="json").status_code == 403
    assert owner.get(address).json() == {"second_factor_required": False}
    assert owner.put(address, wanted, format="json").json() == wanted
    assert second_factor.is_required(world.acme.tenant)


def test_roles_of_memberships_from_before_give_nobody_an_operator_s_role(
    world: World, platform: Tenant, provider: Provider
) -> None:
    set_up(world.acme.tenant, provider)
    SignInProvider.objects.filter(tenant=platform).update(roles=[["staff", "owner"]], default_role="admin")
    provider.person |= {"sub": "1", "preferred_username": "anna", "groups": ["staff"]}
    refused = through(Client(), provider, "platform")
    assert (refused.status_code, "owner" in refused.content.decode()) == (401, True)
    assert not User.objects.filter(username="anna@platform").exists()
    with connection.cursor() as cursor:
        cursor.execute(import_module("tenants.identity.migrations.0003_operator_sign_in").CLEAR_ROLES)
    row = SignInProvider.objects.get(tenant=platform)
    assert (row.roles, row.default_role) == ([], "")
    assert SignInProvider.objects.get(tenant=world.acme.tenant).roles != []


def test_the_break_glass_operator_stays_an_admin_while_it_is_needed(
    world: World, platform: Tenant, sealed: Sealed
) -> None:
    operators.put(fixtures.OPERATOR, sealed.name, "viewer")
    with pytest.raises(NotAllowed, match="break-glass"):
        operator_sign_in.set_provider_only(fixtures.OPERATOR, True)
    operators.put(fixtures.OPERATOR, sealed.name, "admin")
    operator_sign_in.set_provider_only(fixtures.OPERATOR, True)
    for change in (
        lambda: operators.put(fixtures.OPERATOR, sealed.name, "viewer"),
        lambda: operators.remove(fixtures.OPERATOR, sealed.name),
    ):
        with pytest.raises(NotAllowed, match="change that first"):
            change()
    operator_sign_in.set_provider_only(fixtures.OPERATOR, False)
    operators.remove(fixtures.OPERATOR, sealed.name)


def test_with_provider_only_no_invitation_and_no_new_role_lets_a_password_in(
    world: World, platform: Tenant, sealed: Sealed
) -> None:
    made = invitations.invite(fixtures.OPERATOR, None, "viewer")
    member = Client()
    assert sign_in(member, "acme-owner").status_code == 302
    operator_sign_in.set_provider_only(fixtures.OPERATOR, True)
    with pytest.raises(NotAllowed):
        invitations.invite(fixtures.OPERATOR, None, "viewer")
    with pytest.raises(NotAllowed):
        invitations.accept(made.secret, NewPerson(username="mary", password="correct horse battery"))
    assert not User.objects.filter(username="mary").exists()
    assert member.get("/portal/tenants/acme/").status_code == 200
    operators.put(fixtures.OPERATOR, "acme-owner", "viewer")
    for path in ("/portal/fleet/", "/admin/", "/portal/tenants/acme/"):
        assert member.get(path).status_code == 302
    assert member.get("/api/v1/tenants").status_code == 401
    assert AuditEntry.objects.filter(action="sign_in.refused").count() == 1
