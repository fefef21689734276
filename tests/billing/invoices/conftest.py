"""A tenant with usage in a closed month, and who makes its invoices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from billing.accounts import account
from billing.invoices import finalizing, issuers
from billing.models import Invoice, Issuer
from billing.months import closing
from billing.pricing.prices import DEMO_RATES
from billing.reports.statements import Month
from tenants.audit import Actor
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.usage_records import price_from, row_at, store

ADA, EVE = Actor(kind="user", name="ada"), Actor(kind="user", name="eve")
MIDDLE = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
NOW = datetime(2026, 4, 5, 9, 0, tzinfo=UTC)
#: Enough for whole cents: 2.000005, 0.50 and 1.20 at the demo's prices.
TOKENS = (13_333_333, 0, 2_000_000)
SELLER: dict[str, Any] = {
    "legal_name": "Hearth Inference GmbH",
    "address_lines": ["Lindenstraße 12"],
    "postcode": "10969",
    "city": "Berlin",
    "country": "DE",
    "tax_id": "DE123456789",
    "registration": "HRB 12345 B",
    "email": "billing@hearth.example",
    "iban": "DE89 3704 0044 0532 0130 00",
    "bic": "COBADEFFXXX",
    "tax_rate_bp": 1900,
}


def month(tenant: Tenant, number: int = 3) -> Month:
    """Return a month of 2026."""
    return Month(tenant=tenant, year=2026, month=number)


def finalize(tenant: Tenant, number: int = 3, now: datetime = NOW) -> Invoice:
    """Close a month and make its invoice, which must be new."""
    closing.close(ADA, month(tenant, number))
    found, new = finalizing.finalize(ADA, month(tenant, number), now=now)
    assert new
    return found


@pytest.fixture
def issuer(db: None) -> Issuer:
    """The default issuer, with 19 % tax."""
    return issuers.set_issuer(ADA, "berlin", SELLER)


@pytest.fixture
def acme(issuer: Issuer) -> Tenant:
    """A tenant with one large request in March."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    account.change(ADA, tenant, country="DE", city="Hamburg", payment_terms_days=14)
    price_from(MIDDLE - timedelta(days=40), DEMO_RATES)
    store(row_at(MIDDLE, TenantId(tenant.id), tokens=TOKENS))
    return tenant
