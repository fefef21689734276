"""An address of a billing account gets a link to confirm it, and nothing else before somebody has."""

from __future__ import annotations

from importlib import import_module

import pytest
from allauth.account.models import EmailAddress
from django.core import mail, signing
from django.db import connection
from django.test import Client
from pytest_django.fixtures import Settings

from billing.accounts import account, mail_addresses
from billing.invoices import drafting
from billing.models import BillingAccount
from notifications import dispatch
from notifications.mail import sending
from notifications.models import Mail
from tenants import registry
from tenants.audit import Actor
from tenants.errors import BadName, NotFound
from tenants.models import AuditEntry, Membership, Tenant, User
from tests.portal import fixtures
from tests.portal.conftest import bearer, error_of
from tests.portal.fixtures import World

pytestmark = pytest.mark.django_db
ADA = Actor(kind="user", name="ada")
AP = "AP@acme.example"
ADDED = "hearth.billing_address.added.v1"


@pytest.fixture(autouse=True)
def _server(settings: Settings) -> None:
    settings.EMAIL_IS_SENT = True
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    settings.PORTAL_URL = "https://hearth.example"


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


def send() -> list[str]:
    """Send what is due; return the texts."""
    mail.outbox.clear()
    dispatch.run()
    sending.send_due()
    return [str(each.body) for each in mail.outbox]


def path_in(text: str) -> str:
    """Return the path of the link in an e-mail."""
    [line] = [each for each in text.splitlines() if each.startswith("https://hearth.example/")]
    return line.removeprefix("https://hearth.example")


def test_an_address_gets_one_link_and_nothing_else_until_it_is_confirmed(acme: Tenant) -> None:
    account.change(ADA, acme, billing_emails=[AP])
    assert account.of(acme).unconfirmed_emails == (AP,)
    [text] = send()
    account.change(ADA, acme, city="Köln")
    account.change(ADA, acme, billing_emails=[AP, "boss@acme.example"])
    dispatch.run()
    assert [row.address for row in Mail.objects.order_by("id")] == [AP, "boss@acme.example"]
    assert (mail_addresses.confirmed(acme), drafting.customer(acme).party.email) == ((), "")
    page = Client()
    asked = page.get(path_in(text))
    assert asked.status_code == 200
    assert AP in asked.content.decode()
    assert mail_addresses.confirmed(acme) == ()
    assert 'data-testid="confirmed"' in page.post(path_in(text)).content.decode()
    assert mail_addresses.confirmed(acme) == (AP,)
    assert drafting.customer(acme).party.email == AP
    entry = AuditEntry.objects.get(action="account.email_confirmed")
    assert (entry.actor, entry.after) == ("link by e-mail", {"unconfirmed": 1})


def test_a_link_works_for_three_days_for_its_tenant_and_while_the_account_has_the_address(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.change(ADA, acme, billing_emails=[AP])
    link = mail_addresses.token(acme.id, AP)
    assert mail_addresses.of_token(link) == (acme, AP)
    with monkeypatch.context() as patched:
        patched.setattr(mail_addresses, "LINK_DAYS", 0)
        with pytest.raises(NotFound):
            mail_addresses.of_token(link)
    other = Tenant.objects.create(slug="globex", name="Globex")
    for wrong in (link[:-1], "", "a:b:c", mail_addresses.token(other.id, AP), signing.dumps([str(acme.id), AP])):
        with pytest.raises(NotFound):
            mail_addresses.of_token(wrong)
    assert Client().post("/portal/billing-address/x/").status_code == 410
    account.change(ADA, acme, billing_emails=[])
    with pytest.raises(NotFound):
        mail_addresses.of_token(link)


def test_a_link_of_an_address_that_leaves_the_account_meanwhile_is_refused(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.change(ADA, acme, billing_emails=[AP])
    link, real = mail_addresses.token(acme.id, AP), mail_addresses.of_token

    def read(text: str) -> tuple[Tenant, str]:
        found = real(text)
        account.change(ADA, acme, billing_emails=[])
        return found

    monkeypatch.setattr(mail_addresses, "of_token", read)
    assert Client().post(f"/portal/billing-address/{link}/").status_code == 410


def test_another_link_within_a_day_is_not_sent(acme: Tenant) -> None:
    for addresses in ([AP], [], [AP]):
        account.change(ADA, acme, billing_emails=addresses)
    [text] = send()
    assert path_in(text) and [row.state for row in Mail.objects.order_by("id")] == ["sent", "skipped"]


def test_an_address_that_comes_back_is_confirmed_anew(acme: Tenant) -> None:
    account.change(ADA, acme, billing_emails=[AP])
    mail_addresses.confirm(ADA, acme, AP.lower())
    account.change(ADA, acme, billing_emails=[AP.lower()])
    assert mail_addresses.confirmed(acme) == (AP.lower(),)
    account.change(ADA, acme, billing_emails=[])
    account.change(ADA, acme, billing_emails=[AP])
    assert mail_addresses.confirmed(acme) == ()
    assert BillingAccount.objects.get().confirmed_emails == []


def test_what_a_member_has_verified_needs_no_link_and_a_strangers_does(acme: Tenant) -> None:
    stranger = Tenant.objects.create(slug="globex", name="Globex")
    for name, tenant, verified in (("bea", acme, True), ("bob", acme, False), ("eve", stranger, True)):
        user = User.objects.create(username=name, email=f"{name}@acme.example")
        Membership.objects.create(user=user, tenant=tenant, role="billing")
        EmailAddress.objects.create(user=user, email=user.email, verified=verified)
    account.change(ADA, acme, billing_emails=["bea@acme.example", "bob@acme.example", "eve@acme.example"])
    assert mail_addresses.confirmed(acme) == ("bea@acme.example",)
    dispatch.run()
    assert set(Mail.objects.filter(event__type=ADDED).values_list("address", flat=True)) == {
        "bob@acme.example", "eve@acme.example",
    }  # fmt: skip


def test_without_the_portals_address_the_e_mail_says_who_confirms(acme: Tenant, settings: Settings) -> None:
    settings.PORTAL_URL = ""
    account.change(ADA, acme, billing_emails=[AP])
    [text] = send()
    assert "have an operator of the platform confirm the address" in text
    assert "http" not in text


def test_addresses_from_before_are_confirmed(acme: Tenant) -> None:
    BillingAccount.objects.create(tenant_id=acme.id, billing_emails=[AP, AP.lower()])
    with connection.cursor() as cursor:
        cursor.execute(import_module("billing.migrations.0048_confirmed_emails").CONFIRM)
    assert mail_addresses.confirmed(acme) == (AP, AP.lower())


def test_another_address_than_the_accounts_is_refused(acme: Tenant) -> None:
    with pytest.raises(BadName):
        mail_addresses.confirm(ADA, acme, AP)
    account.change(ADA, acme, billing_emails=[AP])
    with pytest.raises(BadName):
        mail_addresses.confirm(ADA, acme, "eve@acme.example")


def test_no_link_of_an_archived_tenant_works(acme: Tenant) -> None:
    account.change(ADA, acme, billing_emails=[AP])
    link = mail_addresses.token(acme.id, AP)
    registry.archive(ADA, acme)
    with pytest.raises(NotFound):
        mail_addresses.of_token(link)


def test_an_operator_confirms_by_api_and_page_and_nobody_else_does() -> None:
    world: World = fixtures.build()
    acme = world.acme.tenant
    account.change(ADA, acme, billing_emails=[AP, "boss@acme.example"])
    operator, owner = Client(), Client()
    operator.force_login(world.operator)
    owner.force_login(world.acme.owner)
    path, page = "/api/v1/tenants/acme/account/confirm-email", "/portal/tenants/acme/billing/emails/"
    for refused in (bearer(world.acme.secret), bearer(world.globex.secret), owner):
        assert refused.post(path, {"address": AP}, content_type="application/json").status_code in {403, 404, 415}
    assert owner.post(page, {"address": AP}).status_code == 404
    assert AP in owner.get("/portal/tenants/acme/billing/").content.decode()
    assert mail_addresses.confirmed(acme) == ()
    done = operator.post(path, {"address": AP}, content_type="application/json")
    assert done.json()["unconfirmed_emails"] == ["boss@acme.example"]
    wrong = operator.post(path, {"address": "eve@acme.example"}, content_type="application/json")
    assert error_of(wrong)["code"] == "invalid_value"
    assert 'data-testid="confirm-email"' in operator.get("/portal/tenants/acme/billing/").content.decode()
    operator.post(page, {"address": "boss@acme.example"})
    assert account.of(acme).unconfirmed_emails == ()
    assert AuditEntry.objects.filter(action="account.email_confirmed", actor="ada").count() == 2
