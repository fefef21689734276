"""Billing accounts in the API and on their page: operators change them, the tenant's billing people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from billing.accounts import account
from billing.accounts.account import Details
from portal.forms.base import CHOOSE
from tenants.models import AuditEntry, Membership, User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

GERMAN = {
    "legal_name": "Acme GmbH",
    "country": "DE",
    "tax_rate_basis_points": 1900,
    "billing_emails": ["a@acme.example"],
}
SignIn = Callable[[User], Client]


def member(world: World, role: str) -> User:
    user = User.objects.create(username=role)
    Membership.objects.create(user=user, tenant=world.acme.tenant, role=role)
    return user


def patch(client: APIClient, **body: Any) -> Any:
    return client.patch("/api/v1/tenants/acme/account", body, format="json")


def test_an_operator_sets_details_and_the_tenants_billing_people_read_them(
    as_operator: APIClient, signed_in: SignIn, world: World
) -> None:
    changed = patch(as_operator, **GERMAN)
    assert changed.status_code == 200, changed.json()
    assert changed.json() | GERMAN == changed.json()
    assert (changed.json()["tenant"], changed.json()["currency"], changed.json()["currency_is_fixed"]) == (
        "acme",
        "USD",
        False,
    )
    for user in (world.acme.owner, member(world, "billing")):
        assert signed_in(user).get("/api/v1/tenants/acme/account").json() == changed.json()
        page = signed_in(user).get("/portal/tenants/acme/billing/").content.decode()
        assert (
            "Acme GmbH" in page and "19 %" in page and 'method="post"' not in page.partition('data-testid="account"')[2]
        )
    viewer = signed_in(member(world, "viewer"))
    assert viewer.get("/portal/tenants/acme/billing/").status_code == 404
    assert "/portal/tenants/acme/billing/" not in viewer.get("/portal/tenants/acme/").content.decode()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"country": "ZZ"}, "country"),
        ({"currency": "DEM"}, "currency"),
        ({"billing_emails": ["nobody"]}, "billing_emails"),
        ({"tax_rate_basis_points": 10001}, "tax_rate_basis_points"),
        ({"legal_name": "A\u0085B"}, "legal_name"),
        ({"iban": "DE00"}, "iban"),
    ],
)
def test_what_is_refused_names_the_field_and_changes_nothing(
    as_operator: APIClient, world: World, body: dict[str, Any], param: str
) -> None:
    refused = patch(as_operator, city="Bonn", **body)
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)
    assert account.of(world.acme.tenant).details == Details()


def test_a_stranger_sees_and_changes_nothing(as_globex: APIClient, signed_in: SignIn, world: World) -> None:
    account.change(fixtures.OPERATOR, world.acme.tenant, legal_name="Acme GmbH")
    stranger = signed_in(world.globex.owner)
    assert as_globex.get("/api/v1/tenants/acme/account").status_code == 404
    assert stranger.get("/api/v1/tenants/acme/account").status_code == 404
    assert stranger.get("/portal/tenants/acme/billing/").status_code == 404
    assert patch(as_globex, legal_name="Mine").status_code == 403
    stranger.post("/portal/tenants/acme/billing/", {"legal_name": "Mine"})
    assert account.of(world.acme.tenant).details.legal_name == "Acme GmbH"


def test_the_form_says_what_is_wrong_and_keeps_what_was_typed(signed_in: SignIn, world: World) -> None:
    browser, address = signed_in(world.operator), "/portal/tenants/acme/billing/"
    typed = {"legal_name": "Acme GmbH", "payment_terms_days": "14", "issuer": "hearth"}
    typed |= {"currency": "USD", "mode": "postpaid"}
    for wrong, problem in (
        ({"country": "ZZ"}, CHOOSE),
        ({"tax_rate": "101"}, "0 to 100"),
        ({"billing_emails": "nobody"}, "e-mail addresses such as"),
        ({"payment_terms_days": "366"}, "from 0 to 365"),
    ):
        refused = browser.post(address, typed | wrong)
        assert refused.status_code == 400
        assert problem in refused.content.decode() and "Acme GmbH" in refused.content.decode()
    assert not AuditEntry.objects.filter(action="account.changed").exists()
    done = browser.post(
        address, typed | {"tax_rate": "7,5", "address_lines": "Hof 2\r\nWerkstraße 1", "billing_emails": "a@b.example"}
    )
    assert done.status_code == 302
    found = account.of(world.acme.tenant).details
    assert (found.tax_rate_basis_points, found.address_lines) == (750, ("Hof 2", "Werkstraße 1"))
    assert found.billing_emails == ("a@b.example",)
