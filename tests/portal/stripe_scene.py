"""An account at Stripe, and a tenant's month that is not there yet, for the tables of who may do what."""

from __future__ import annotations

from uuid import UUID

from billing.models import BillingMonth, Issuer, StripeConnection, StripeInvoice
from notifications.webhooks import sealing
from tests.portal.fixtures import World

INVOICE = UUID(int=8)


def build(world: World) -> None:
    """Store them for the issuer demo and the closed October 2023."""
    sealed, version = sealing.seal(INVOICE, "sk_test_ofNobody")
    connection = StripeConnection.objects.create(
        id=INVOICE,
        issuer=Issuer.objects.get(name="demo"),
        account_id="acct_1",
        is_live=False,
        sealed_key=sealed,
        pepper_version=version,
    )
    StripeInvoice.objects.create(
        id=INVOICE,
        tenant_id=world.acme.tenant.id,
        connection=connection,
        closing=BillingMonth.objects.get(tenant_id=world.acme.tenant.id, year=2023, month=10),
        year=2023,
        month=10,
        currency="USD",
        lines=[],
        heading={},
        net_cents=0,
        tax_cents=0,
        applied_cents=0,
        terms_days=0,
        requested_by="someone",
    )
