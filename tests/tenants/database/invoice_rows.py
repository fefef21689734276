"""A row of each table about invoices, and about what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from billing.models import (
    BillingMonth,
    CreditNote,
    DunningCase,
    DunningHold,
    DunningPolicy,
    DunningStep,
    Invoice,
    InvoiceDocument,
    InvoiceLine,
    InvoicePayment,
    Issuer,
    LedgerTransaction,
    PaymentFailure,
    PaymentUndone,
)
from tenants.ids import new_id
from tests.tenants.customers import Customer


def closing(customer: Customer) -> BillingMonth:
    """Write one closing of a month."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return BillingMonth.objects.create(
        tenant_id=customer.tenant.id,
        year=2026,
        month=1,
        revision=BillingMonth.objects.filter(tenant_id=customer.tenant.id).count() + 1,
        timezone="UTC",
        currency="USD",
        starts_at=start,
        ends_at=start,
        first_id=new_id(),
        behind_id=new_id(),
        grace_hours=1,
        amount_pico=0,
        document={},
        closed_by="ada",
        reopen_reason="why",
        reopen_requested_by="ada",
        reopen_requested_at=start,
        reopened_by="eve",
        reopened_at=start,
    )


def invoice(customer: Customer) -> Invoice:
    """Write one invoice, and its issuer, which no tenant reads."""
    number = Invoice.objects.count() + 1
    issuer, _ = Issuer.objects.get_or_create(name="demo", legal_name="Demo", city="Berlin", country="DE")
    return Invoice.objects.create(
        tenant_id=customer.tenant.id,
        issuer=issuer,
        sequence=number,
        number=f"INV-{number}",
        closing=closing(customer),
        year=2030,
        month=number,
        currency="USD",
        exact_pico=0,
        rounding_pico=0,
        net_cents=0,
        tax_cents=0,
        total_cents=0,
        issued_on=date(2030, 1, 1),
        due_on=date(2030, 1, 1),
        document={},
        finalized_by="ada",
    )


def credit_note(taken_back: Invoice) -> CreditNote:
    """Write the credit note of an invoice."""
    assert taken_back.issuer is not None and taken_back.sequence is not None
    return CreditNote.objects.create(
        tenant_id=taken_back.tenant_id,
        invoice=taken_back,
        issuer=taken_back.issuer,
        sequence=taken_back.sequence,
        number=f"CN-{taken_back.sequence}",
        issued_on=date(2030, 1, 1),
        document={},
    )


def payment(customer: Customer, name: str) -> InvoicePayment:
    """Write a payment of an invoice of its own."""
    return InvoicePayment.objects.create(
        invoice=invoice(customer),
        transaction=LedgerTransaction.objects.create(
            tenant_id=customer.tenant.id, kind="payment", source=f"{name} {customer.tenant.slug}"
        ),
        tenant_id=customer.tenant.id,
        amount_cents=1,
        paid_on=date(2030, 1, 1),
        reference="Wire",
        recorded_by="ada",
    )


#: By table.
ROWS: Mapping[str, Callable[[Customer], Any]] = {
    "billing_invoice": invoice,
    "billing_invoiceline": lambda customer: InvoiceLine.objects.create(
        invoice=invoice(customer),
        tenant_id=customer.tenant.id,
        position=0,
        description="demo",
        amount_pico=0,
        amount_cents=0,
    ),
    "billing_creditnote": lambda customer: credit_note(invoice(customer)),
    "billing_invoicedocument": lambda customer: InvoiceDocument.objects.create(
        invoice=invoice(customer),
        tenant_id=customer.tenant.id,
        kind="csv",
        content=b"",
        size_bytes=0,
        sha256="0" * 64,
    ),
    "billing_invoicepayment": lambda customer: payment(customer, "paid"),
    "billing_dunningpolicy": lambda customer: DunningPolicy.objects.create(tenant_id=customer.tenant.id),
    "billing_dunningcase": lambda customer: DunningCase.objects.create(
        invoice=invoice(customer), tenant_id=customer.tenant.id, starts_on=date(2030, 1, 1)
    ),
    "billing_dunningstep": lambda customer: DunningStep.objects.create(
        invoice=invoice(customer), tenant_id=customer.tenant.id, kind="reminder", taken_on=date(2030, 1, 1)
    ),
    "billing_dunninghold": lambda customer: DunningHold.objects.create(
        tenant_id=customer.tenant.id, reason="a dispute", created_by="ada"
    ),
    "billing_paymentundone": lambda customer: PaymentUndone.objects.create(
        payment=payment(customer, "undone"),
        transaction=LedgerTransaction.objects.create(
            tenant_id=customer.tenant.id, kind="payment", source=f"taken back {customer.tenant.slug}"
        ),
        tenant_id=customer.tenant.id,
        reason="a mistake",
        undone_by="ada",
    ),
    "billing_paymentfailure": lambda customer: PaymentFailure.objects.create(
        invoice=invoice(customer),
        tenant_id=customer.tenant.id,
        reference="ch_1",
        reason="The card was declined.",
        failed_on=date(2030, 1, 1),
    ),
}
