"""Invoices of acme, and a line of a bank statement that can pay one."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import msgspec

from billing.accounts import account
from billing.invoices import finalizing, issuers
from billing.models import BankLine, BillingRun, BillingRunPart, Invoice, PriceVersion
from billing.months import closing
from billing.pricing import prices
from billing.reports.statements import Month
from tenants.audit import Actor
from tenants.models import Tenant
from tests.portal import fixtures
from tests.portal.fixtures import World

SOMEONE = Actor(kind="key", name="someone")
#: The line, and an invoice that it can pay.
LINE, INVOICE = UUID("019ac1f0-0000-7000-8000-000000000001"), "ST-1"

#: A run that waits.
RUN = UUID("019ac1f0-0000-7000-8000-000000000002")

#: A bank statement.
STATEMENT = "account,reference,date,amount,currency,text\nDE89,B-2,2024-01-31,1,USD,?\n"


def bank_line(world: World) -> None:
    """Store a line of a bank statement and an invoice, of another system, so that it needs no issuer of ours."""
    closed, _ = closing.close(SOMEONE, Month(tenant=world.acme.tenant, year=2023, month=10))
    day = date(2024, 1, 31)
    Invoice.objects.create(
        tenant_id=world.acme.tenant.id,
        channel=Invoice.Channel.STRIPE,
        number=INVOICE,
        external_id="in_1",
        closing=closed,
        year=2023,
        month=10,
        currency="USD",
        exact_pico=0,
        rounding_pico=0,
        net_cents=100,
        tax_cents=0,
        total_cents=100,
        issued_on=day,
        due_on=day,
        document={},
        finalized_by="someone",
    )
    BankLine.objects.create(
        id=LINE, bank_account="DE89", bank_reference="B-1", booked_on=day, amount_cents=100, currency="USD"
    )


def past_invoice(tenant: Tenant, world: World) -> UUID:
    """Close two months before all others with usage, and make the invoice of the first one."""
    PriceVersion.objects.create(
        book=prices.ensure_price_book(),
        model_name=fixtures.MODEL,
        prompt_pico=150_000,
        cached_prompt_pico=15_000,
        completion_pico=600_000,
        effective_from=datetime(2023, 1, 1, tzinfo=UTC),
    )
    issuers.set_issuer(SOMEONE, "demo", {"legal_name": "Demo", "city": "Berlin", "country": "DE"})
    account.change(SOMEONE, tenant, country="DE", billing_emails=["ap@acme.example"])
    for number in (11, 12):
        row = fixtures.answered(world, world.acme, datetime(2023, number, 9, tzinfo=UTC), number)
        fixtures.store([msgspec.structs.replace(row, prompt_tokens=20_000_000)])
        closing.close(SOMEONE, Month(tenant=tenant, year=2023, month=number))
    return finalizing.finalize(SOMEONE, Month(tenant=tenant, year=2023, month=11))[0].id


def run_that_waits(world: World) -> None:
    """Store a run that nothing was done of yet."""
    run = BillingRun.objects.create(id=RUN, kind="close_months", month="2023-09", actor_kind="user", actor="someone")
    BillingRunPart.objects.create(run=run, subject_id=world.acme.tenant.id)
