"""Signing in through a tenant's provider, and providers that lie."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.core import mail
from django.test import Client

from tenants import members
from tenants.errors import NotAllowed
from tenants.identity.models import ProviderMember, SignInProvider
from tenants.models import AuditEntry, Membership, Tenant, User
from tests.portal import fixtures
from tests.portal.fixtures import PASSWORD, World
from tests.portal.identity_provider import Claims, Provider
from tests.portal.pages.identity.conftest import back, set_up, through

SESSIONS = "/portal/account/sessions/"


def roles_of(name: str) -> list[tuple[str, str]]:
    return list(Membership.objects.filter(user__username=name).values_list("tenant__slug", "role"))


def is_signed_in(browser: Client) -> bool:
    return browser.get(SESSIONS).status_code == 200


def why_refused(answer: Any) -> str:
    assert answer.status_code == 401, answer.content.decode()
    reason: str = answer.context["reason"]
    assert reason.split("'", maxsplit=1)[0] in answer.content.decode()
    return reason


def test_a_member_is_made_at_the_first_sign_in_and_has_the_role_of_their_group(
    world: World, acme: SignInProvider, provider: Provider
) -> None:
    browser = Client()
    assert "Sign in to" in browser.get("/portal/login/acme/").content.decode()
    assert (
        through(browser, provider, query="?next=/portal/tenants/acme/keys/")["Location"] == "/portal/tenants/acme/keys/"
    )
    assert roles_of("anna@acme") == [("acme", "developer")]
    assert browser.get("/portal/tenants/acme/keys/").status_code == 200
    assert browser.get("/portal/tenants/globex/keys/").status_code == 404
    assert browser.get("/portal/fleet/").status_code == 404
    provider.person["groups"] = ["dev", "admins"]
    through(Client(), provider)
    assert roles_of("anna@acme") == [("acme", "owner")]
    entry = AuditEntry.objects.filter(action="sign_in.succeeded").latest("id")
    assert (entry.tenant, entry.actor) == (world.acme.tenant, "anna@acme")


def test_a_tenant_is_typed_on_the_sign_in_page(acme: SignInProvider) -> None:
    assert Client().get("/portal/company-login/", {"tenant": " Acme "})["Location"] == "/portal/login/acme/"
    unknown, without = (Client().get(f"/portal/login/{slug}/") for slug in ("nobody", "globex"))
    assert (unknown.status_code, without.status_code) == (404, 404)
    assert unknown.content == without.content


def test_without_a_group_nobody_becomes_or_stays_a_member(acme: SignInProvider, provider: Provider) -> None:
    browser = Client()
    through(browser, provider)
    provider.person["groups"] = ["sales"]
    assert "none of this person's groups" in why_refused(through(Client(), provider))
    assert roles_of("anna@acme") == []
    assert not is_signed_in(browser)
    provider.person = {"sub": "2", "preferred_username": "bob", "groups": ["sales"]}
    why_refused(through(Client(), provider))
    assert not User.objects.filter(username__startswith="bob").exists()


@pytest.mark.parametrize("groups", [None, 7, {"dev": 1}, [["dev"], 1, None], "", [], "developer", ["DEV"]])
def test_groups_of_odd_types_are_no_groups(acme: SignInProvider, provider: Provider, groups: Any) -> None:
    provider.person["groups"] = groups
    assert "none of this person's groups" in why_refused(through(Client(), provider))


def test_a_default_role_is_for_people_without_a_group(world: World, acme: SignInProvider, provider: Provider) -> None:
    set_up(world.acme.tenant, provider, default_role="viewer")
    provider.person["groups"] = []
    through(Client(), provider)
    assert roles_of("anna@acme") == [("acme", "viewer")]


# ------------------------------------------------------------------------------------- providers that lie


def test_nobody_is_found_by_a_name_or_an_address(
    world: World, acme: SignInProvider, provider: Provider, mailing: None
) -> None:
    User.objects.filter(id=world.operator.id).update(email="ada@example.com")
    provider.person |= {"preferred_username": "ada", "email": "ada@example.com", "email_verified": True}
    browser = Client()
    through(browser, provider)
    assert roles_of("ada@acme") == [("acme", "developer")]
    assert browser.get("/portal/fleet/").status_code == 404
    assert not mail.outbox
    Client().post("/portal/password-reset/", {"email": "ada@example.com"})
    assert [message.body.count(" for ada.") for message in mail.outbox] == [1]


def test_a_name_that_is_taken_gets_a_number_whatever_its_case(acme: SignInProvider, provider: Provider) -> None:
    taken = User.objects.create_user("Anna@acme")
    through(Client(), provider)
    assert roles_of("anna-2@acme") == [("acme", "developer")]
    assert not taken.memberships.exists()


@pytest.mark.parametrize("called", ["", "<b>", "a" * 5000, 7, None, "../../admin", "ada@acme\0"])
def test_a_name_is_made_of_what_names_are_made_of(acme: SignInProvider, provider: Provider, called: Any) -> None:
    provider.person |= {"preferred_username": called, "given_name": {"x": 1}, "family_name": "n" * 900}
    browser = Client()
    through(browser, provider)
    assert is_signed_in(browser)


def test_the_same_subject_of_another_tenants_provider_is_another_person(
    world: World, acme: SignInProvider, provider: Provider
) -> None:
    set_up(world.globex.tenant, provider)
    first, second = Client(), Client()
    through(first, provider)
    through(second, provider, "globex")
    assert (roles_of("anna@acme"), roles_of("anna@globex")) == ([("acme", "developer")], [("globex", "developer")])
    assert second.get("/portal/tenants/acme/").status_code == 404


def test_an_answer_for_one_tenant_is_not_taken_for_another(
    world: World, acme: SignInProvider, provider: Provider
) -> None:
    other = set_up(world.globex.tenant, provider)
    browser = Client()
    answer = back(browser, provider).replace(str(acme.id), str(other.id))
    assert "begun in another browser" in why_refused(browser.get(answer))


def with_claims(**changed: Any) -> Callable[[Claims], Claims]:
    return lambda claims: {key: value for key, value in (claims | changed).items() if value is not None}


@pytest.mark.parametrize(
    ("twist", "reason"),
    [
        (with_claims(aud="another"), "for another application"),
        (with_claims(aud=["hearth", "another"]), "for another application"),
        (with_claims(azp="another"), "for another application"),
        (with_claims(iss="https://accounts.example.com"), "another issuer"),
        (with_claims(nonce="of-an-earlier-one"), "made for another sign-in"),
        (with_claims(nonce=None), "made for another sign-in"),
        (with_claims(exp=int(time.time()) - 3600), "is not valid"),
        (with_claims(exp=None), "is not valid"),
        (with_claims(iat=int(time.time()) + 3600), "is not valid"),
        (with_claims(sub=None), "is not valid"),
        (with_claims(sub=""), "names nobody"),
        (with_claims(sub="x" * 5000), "names nobody"),
        (with_claims(sub="1\0"), "names nobody"),
    ],
)
def test_a_wrong_token_is_refused(
    acme: SignInProvider, provider: Provider, twist: Callable[[Claims], Claims], reason: str
) -> None:
    provider.twist = twist
    assert reason in why_refused(through(Client(), provider))
    assert not ProviderMember.objects.exists()


@pytest.mark.parametrize("algorithm", ["HS256", "none"])
def test_a_signature_that_others_could_make_is_refused(
    acme: SignInProvider, provider: Provider, algorithm: str
) -> None:
    provider.algorithm = algorithm
    assert "token is not" in why_refused(through(Client(), provider))


def test_a_signature_of_another_key_is_refused(acme: SignInProvider, provider: Provider) -> None:
    provider.signing = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert "is not valid" in why_refused(through(Client(), provider))


def test_an_answer_is_used_once_and_by_the_browser_that_asked(acme: SignInProvider, provider: Provider) -> None:
    browser = Client()
    answer = back(browser, provider)
    assert "begun in another browser" in why_refused(Client().get(answer))
    assert browser.get(answer).status_code == 302
    assert "begun in another browser" in why_refused(browser.get(answer))


def test_the_provider_gets_a_state_a_nonce_and_a_challenge(acme: SignInProvider, provider: Provider) -> None:
    asked = parse_qs(urlsplit(Client().get("/portal/login/acme/begin/?process=connect&scope=x")["Location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["response_type"] == ["code"]
    assert all(len(asked[name][0]) >= 16 for name in ("state", "nonce", "code_challenge"))
    assert set(asked["scope"][0].split()) == {"openid", "profile", "email", "offline_access"}


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        ("/.well-known/openid-configuration", b"{" + b" " * (600 << 10) + b"}", "too large"),
        ("/.well-known/openid-configuration", b"[]", "not the JSON"),
        ("/.well-known/openid-configuration", b'{"issuer": "https://example.com"}', "another issuer"),
        ("/.well-known/openid-configuration", b"[" * 200_000, "not the JSON"),
    ],
)
def test_a_wrong_description_is_refused(
    acme: SignInProvider, provider: Provider, path: str, answer: bytes, reason: str
) -> None:
    provider.answers[path] = answer
    assert reason in why_refused(Client().get("/portal/login/acme/begin/"))


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/keys", b"{}"),
        ("/keys", b'{"keys": [{"kty": "oct", "k": "eA", "kid": "k1"}]}'),
        ("/token", b"[1]"),
        ("/token", b"x"),
    ],
)
def test_wrong_keys_and_a_wrong_answer_are_refused(
    acme: SignInProvider, provider: Provider, path: str, answer: bytes
) -> None:
    provider.answers[path] = answer
    why_refused(through(Client(), provider))


def test_a_private_address_is_not_asked(acme: SignInProvider, provider: Provider, settings: Any) -> None:
    settings.WEBHOOK_NETWORKS = ()
    assert "not allowed" in why_refused(Client().get("/portal/login/acme/begin/"))
    assert provider.requests == []


@pytest.mark.parametrize("where", ["https://example.com/", "//example.com/", "javascript:alert(1)"])
def test_a_sign_in_leads_nowhere_else(acme: SignInProvider, provider: Provider, where: str) -> None:
    assert through(Client(), provider, query=f"?next={where}")["Location"] == "/portal/"


def test_another_site_does_not_begin_a_sign_in(acme: SignInProvider, provider: Provider) -> None:
    answer = Client().get("/portal/login/acme/begin/", headers={"sec-fetch-site": "cross-site"})
    assert answer["Location"] == "/portal/login/acme/"
    assert provider.requests == []


# ------------------------------------------------------------------------- what people of a provider are not


def test_they_have_no_password_and_no_other_tenant_and_never_operate(
    world: World, acme: SignInProvider, provider: Provider
) -> None:
    browser = Client()
    through(browser, provider)
    anna = User.objects.get(username="anna@acme")
    anna.set_password(PASSWORD)
    anna.save()
    local = Client()
    local.post("/portal/login/", {"username": "anna@acme", "password": PASSWORD})
    assert not is_signed_in(local)
    with pytest.raises(NotAllowed):
        members.put(fixtures.OPERATOR, world.globex.tenant, "anna@acme", "owner")
    User.objects.filter(id=anna.id).update(is_staff=True)
    assert "does not sign in through this provider" in why_refused(through(Client(), provider))


def test_a_suspended_tenant_lets_nobody_in(world: World, acme: SignInProvider, provider: Provider) -> None:
    Tenant.objects.filter(id=world.acme.tenant.id).update(state="suspended")
    assert Client().get("/portal/login/acme/begin/", follow=True).status_code == 404


def test_with_another_issuer_the_people_of_the_one_before_are_no_members(
    world: World, acme: SignInProvider, provider: Provider
) -> None:
    browser = Client()
    through(browser, provider)
    provider.issuer += "/other"
    again = set_up(world.acme.tenant, provider)
    assert again.id != acme.id
    assert not is_signed_in(browser)
    assert roles_of("anna@acme") == []


def test_an_answer_that_nobody_asked_for_leaves_no_row_in_the_audit_log(
    world: World, acme: SignInProvider, provider: Provider
) -> None:
    for query in ("state=x&code=y", "error=access_denied", ""):
        assert Client().get(f"/portal/login/back/{acme.id}/?{query}").status_code == 401
    assert not AuditEntry.objects.filter(action="sign_in.refused").exists()


def test_description_and_keys_are_fetched_once_and_again_for_a_key_that_is_new(
    acme: SignInProvider, provider: Provider
) -> None:
    for sub in ("1", "2"):
        provider.person["sub"] = sub
        assert through(Client(), provider).status_code == 302
    fetched = [each for each in provider.requests if each in {"/.well-known/openid-configuration", "/keys"}]
    assert fetched == ["/.well-known/openid-configuration", "/keys"]
    provider.kid = "k2"
    assert through(Client(), provider).status_code == 302
    provider.signing = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    provider.published = provider.signing.public_key()
    assert through(Client(), provider).status_code == 302
    assert provider.requests.count("/keys") == 3
