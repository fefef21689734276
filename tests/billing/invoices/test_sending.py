"""An invoice is sent by e-mail with its PDF, to billing addresses and members, each time that somebody sends it."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings
from django.core import mail

from billing.accounts import account, credits, mail_addresses
from billing.accounts.credits import NewCredit
from billing.invoices import steps
from billing.models import InvoiceDocument
from notifications import dispatch
from notifications.mail import sending
from notifications.models import Event, Mail
from tenants.models import AuditEntry, Membership, Tenant, User
from tests.billing.invoices.conftest import ADA, finalize
from tests.notifications.mail import mail_server
from tests.notifications.mail.test_smtp import use

pytestmark = pytest.mark.django_db
SENT = "hearth.invoice.sent.v1"


@pytest.fixture(autouse=True)
def _server(settings: Any) -> None:
    settings.EMAIL_IS_SENT = True
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"


def test_an_invoice_is_sent_with_its_pdf_and_again_when_it_is_sent_again(acme: Tenant) -> None:
    account.change(ADA, acme, billing_emails=["ap@acme.example"])
    mail_addresses.confirm(ADA, acme, "ap@acme.example")
    bea = User.objects.create(username="bea", email="bea@acme.example")
    Membership.objects.create(user=bea, tenant=acme, role="billing")
    stranger = Tenant.objects.create(slug="globex", name="Globex")
    Membership.objects.create(
        user=User.objects.create(username="eve", email="eve@globex.example"), tenant=stranger, role="owner"
    )
    invoice = finalize(acme)
    steps.send(ADA, invoice)
    steps.send(ADA, invoice)
    dispatch.run()
    sending.send_due()
    rows = Mail.objects.filter(event__type=SENT)
    assert sorted(rows.values_list("address", "state")) == [
        ("ap@acme.example", "sent"), ("ap@acme.example", "sent"),
        ("bea@acme.example", "sent"), ("bea@acme.example", "sent"),
    ]  # fmt: skip
    [first, *_] = [each for each in mail.outbox if each.attachments]
    [(name, content, kind)] = first.attachments
    stored = InvoiceDocument.objects.get(invoice=invoice, kind="pdf")
    assert (name, content, kind) == ("INV-000001.pdf", bytes(stored.content), "application/pdf")
    assert first.subject == "Acme: invoice INV-000001 over 3.81 USD"
    entries = AuditEntry.objects.filter(action="invoice.sent", object_id=str(invoice.id))
    assert [(each.after or {}).get("addresses") for each in entries] == [1, 1]
    assert {each for row in mail.outbox for each in row.to} == {"ap@acme.example", "bea@acme.example"}


def test_a_mail_server_gets_the_pdf_as_it_is_stored(acme: Tenant, settings: LazySettings) -> None:
    account.change(ADA, acme, billing_emails=["ap@acme.example"])
    mail_addresses.confirm(ADA, acme, "ap@acme.example")
    invoice = finalize(acme)
    steps.send(ADA, invoice)
    with mail_server.listening() as server:
        use(settings, f"smtp+plain://127.0.0.1:{server.port}")
        dispatch.run()
        sending.send_due()
    [found] = [each for each in server.taken if list(each.iter_attachments())]
    [pdf] = found.iter_attachments()
    stored = InvoiceDocument.objects.get(invoice=invoice, kind="pdf")
    assert (found["To"], pdf.get_filename(), pdf.get_content_type()) == (
        "ap@acme.example", "INV-000001.pdf", "application/pdf",
    )  # fmt: skip
    assert pdf.get_payload(decode=True) == bytes(stored.content)
    assert "INV-000001" in str(found["Subject"])


def test_an_invoice_that_credit_has_paid_is_announced_as_paid(acme: Tenant) -> None:
    account.change(ADA, acme, tax_note="Reverse charge")
    credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=10 * 10**12))
    invoice = finalize(acme)
    assert (invoice.state, invoice.total_cents) == ("paid", 320)
    names = Event.objects.filter(subject=f"invoice/{invoice.id}").order_by("id").values_list("type", flat=True)
    assert list(names) == ["hearth.invoice.finalized.v1", "hearth.invoice.paid.v1"]
