"""A tenant's rows about Stripe, for the test of row-level security."""

from __future__ import annotations

from collections.abc import Callable

from billing.models import Issuer, StripeConnection, StripeCustomer, StripeInvoice
from tests.tenants.customers import Customer
from tests.tenants.database.invoice_rows import closing


def connection(customer: Customer) -> StripeConnection:
    """Write an account at Stripe, which no tenant reads."""
    issuer, _ = Issuer.objects.get_or_create(
        name=f"of-{customer.tenant.slug}", legal_name="Demo", city="Berlin", country="DE"
    )
    found, _ = StripeConnection.objects.get_or_create(
        issuer=issuer, defaults={"is_live": False, "sealed_key": b"", "pepper_version": 1}
    )
    return found


def stripe_customer(customer: Customer) -> StripeCustomer:
    """Write a customer of Stripe."""
    return StripeCustomer.objects.create(tenant_id=customer.tenant.id, connection=connection(customer))


def stripe_invoice(customer: Customer) -> StripeInvoice:
    """Write an invoice of Stripe for a closed month."""
    return StripeInvoice.objects.create(
        tenant_id=customer.tenant.id,
        connection=connection(customer),
        closing=closing(customer),
        year=2031,
        month=StripeInvoice.objects.count() + 1,
        currency="USD",
        lines=[],
        heading={},
        net_cents=0,
        tax_cents=0,
        applied_cents=0,
        terms_days=0,
        requested_by="ada",
    )


ROWS: dict[str, Callable[[Customer], object]] = {
    "billing_stripecustomer": stripe_customer,
    "billing_stripeinvoice": stripe_invoice,
}
