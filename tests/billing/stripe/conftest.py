"""An issuer that is connected with the stand-in, and a tenant whose closed month Stripe invoices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import LazySettings

from billing.accounts import account, mail_addresses
from billing.models import Issuer, StripeConnection, StripeInvoice
from billing.months import closing
from billing.stripe import api, connections, pushing
from billing.stripe.connections import Wanted
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA, acme, issuer, month
from tests.stripe_stand_in import server
from tests.stripe_stand_in.server import StandIn

__all__ = ["acme", "issuer"]

KEY, SECRET = "sk_test_standInKey1234", "whsec_firstSecret1234"


@pytest.fixture(scope="session")
def _server() -> Iterator[StandIn]:
    with server.running() as found:
        yield found


@pytest.fixture
def stripe(_server: StandIn, settings: LazySettings, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in with an empty account. Nothing is sent again by itself: tests count requests."""
    url = _server.url
    fresh = StandIn(url=url)
    _server.__dict__.update({name: value for name, value in fresh.__dict__.items() if name != "url"})
    settings.STRIPE_API = url
    monkeypatch.setattr(api, "RETRIES", 0)
    monkeypatch.setattr(api, "WAITS_SECONDS", ())
    return _server


@pytest.fixture
def connection(stripe: StandIn, issuer: Issuer) -> StripeConnection:
    """The default issuer's account."""
    return connections.connect(ADA, None, Wanted(key=KEY, webhook_secret=SECRET))


@pytest.fixture
def closed(acme: Tenant, connection: StripeConnection) -> Tenant:
    """A tenant with a closed month that Stripe invoices."""
    account.change(ADA, acme, issuer="stripe", billing_emails=["pay@acme.example"], tax_id="DE999999999")
    mail_addresses.confirm(ADA, acme, "pay@acme.example")
    closing.close(ADA, month(acme))
    return acme


def push(tenant: Tenant, number: int = 3) -> StripeInvoice:
    """Make a month Stripe's invoice."""
    begun, _ = pushing.begin(ADA, month(tenant, number))
    return pushing.run(ADA, begun)
