"""Billing accounts: what an operator may set, what is refused, and the currency that stays."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from billing.accounts import account
from billing.accounts.account import Details
from billing.models import BillingAccount, LedgerAccount, PriceBook
from tenants.audit import Actor
from tenants.errors import BadName, NotAllowed
from tenants.ids import PLATFORM_SLUG
from tenants.models import AuditEntry, Tenant

pytestmark = pytest.mark.django_db

ADA = Actor(kind="user", name="ada")
GMBH: dict[str, Any] = {
    "legal_name": "Acme GmbH",
    "address_lines": ("Werkstraße 1", "Hof 2"),
    "city": "Köln",
    "postcode": "50667",
    "country": "DE",
    "tax_id": "DE123456789",
    "tax_rate_basis_points": 1900,
    "tax_note": "",
    "payment_terms_days": 14,
    "billing_emails": ("billing@acme.example", "boss@acme.example"),
    "issuer": "stripe",
    "charge_automatically": True,
}


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


def test_a_tenant_without_details_has_the_defaults(acme: Tenant) -> None:
    found = account.of(acme)
    assert (found.currency, found.currency_is_fixed, found.details) == ("USD", False, Details())
    assert not BillingAccount.objects.exists()


def test_details_are_set_one_by_one_and_the_same_again_changes_nothing(acme: Tenant) -> None:
    assert asdict(account.change(ADA, acme, **GMBH).details) == GMBH
    changed = account.change(ADA, acme, city="Bonn", currency="EUR")
    assert (changed.details, changed.currency) == (Details(**GMBH | {"city": "Bonn"}), "EUR")
    assert account.change(ADA, acme, city="Bonn", currency="EUR") == changed
    first, second = AuditEntry.objects.filter(action="account.changed").order_by("id")
    assert (second.before, second.after) == ({"currency": "USD"}, {"currency": "EUR", "fields": ["city", "currency"]})
    # What may be personal data is not in the log, which is kept for longer and read by more people.
    assert "Acme" not in str(first.after)
    assert "acme.example" not in str(first.after)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("country", "Germany"),
        ("country", "XX"),
        ("country", "de"),
        ("country", 49),
        ("currency", "EURO"),
        ("currency", "DEM"),
        ("currency", "X\0Y"),
        ("legal_name", "A\0B"),
        ("legal_name", "two\nlines"),
        ("legal_name", "x" * 201),
        ("tax_rate_basis_points", -1),
        ("tax_rate_basis_points", 10_001),
        ("tax_rate_basis_points", True),
        ("payment_terms_days", 366),
        ("address_lines", ("x",) * 5),
        ("address_lines", ("x" * 101,)),
        ("address_lines", "one line"),
        ("billing_emails", ("nobody",)),
        ("billing_emails", ("a@b.example\nBcc: c@d.example",)),
        ("billing_emails", tuple(f"a{number}@b.example" for number in range(11))),
        ("issuer", "paypal"),
        ("iban", "DE00"),
    ],
)
def test_what_is_not_valid_is_refused_and_changes_nothing(acme: Tenant, name: str, value: Any) -> None:
    with pytest.raises(BadName) as caught:
        account.change(ADA, acme, **dict[str, Any](city="Bonn") | {name: value})
    assert caught.value.kind == ("account field" if name == "iban" else name)
    assert account.of(acme).details == Details()
    assert not AuditEntry.objects.exists()


def test_the_currency_stays_once_something_was_posted_in_the_database_too(acme: Tenant) -> None:
    LedgerAccount.objects.create(tenant_id=acme.id, kind="receivable", currency="USD")
    assert account.of(acme).currency_is_fixed
    with pytest.raises(NotAllowed, match="fixed"):
        account.change(ADA, acme, currency="EUR", city="Bonn")
    assert account.of(acme).details == Details()
    with pytest.raises(IntegrityError, match="the currency of acme is fixed"), transaction.atomic():
        Tenant.objects.filter(id=acme.id).update(currency="EUR")


def test_an_account_in_another_currency_than_its_ledger_can_be_set_to_the_ledgers(acme: Tenant) -> None:
    """Releases that charged every tenant by the platform's prices have left such accounts."""
    Tenant.objects.filter(id=acme.id).update(currency="EUR")
    LedgerAccount.objects.create(tenant_id=acme.id, kind="receivable", currency="USD")
    acme.refresh_from_db()
    with pytest.raises(NotAllowed, match="fixed"):
        account.change(ADA, acme, currency="CHF")
    assert account.change(ADA, acme, currency="USD").currency == "USD"


def test_the_currency_is_that_of_the_tenants_prices(acme: Tenant) -> None:
    PriceBook.objects.create(name="acme's", tenant_id=acme.id)
    with pytest.raises(NotAllowed, match="a price book"):
        account.change(ADA, acme, currency="EUR")


def test_nobody_bills_the_platform() -> None:
    with pytest.raises(NotAllowed):
        account.change(ADA, Tenant.objects.create(slug=PLATFORM_SLUG, name="Platform"), city="Bonn")


def test_erasing_empties_what_may_be_personal_and_keeps_how_it_was_taxed(acme: Tenant) -> None:
    account.change(ADA, acme, **GMBH)
    assert (account.erase(acme), account.erase(acme)) == (1, 0)
    assert account.of(acme).details == Details(
        country="DE",
        tax_rate_basis_points=1900,
        payment_terms_days=14,
        issuer="stripe",
        charge_automatically=True,
    )
