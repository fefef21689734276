"""An invoice of a closed month: its number, lines, postings and documents, made once."""

from __future__ import annotations

import hashlib
import json
import threading
from datetime import date, timedelta

import pytest
from django.db import Error, connection, connections, transaction
from django.db.models import Sum

from billing.accounts import account, credits
from billing.accounts.credits import NewCredit
from billing.errors import BadIssuer, InvoiceRefused
from billing.invoices import finalizing, issuers, registry
from billing.models import Invoice, InvoiceDocument, InvoiceLine, Issuer, LedgerEntry
from billing.months import closing
from billing.pricing.amounts import pico_per_minor
from notifications.models import Event
from tenants.audit import Actor
from tenants.database import rls
from tenants.errors import NotFound
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tests.billing.invoices.conftest import ADA, EVE, MIDDLE, NOW, TOKENS, finalize, month
from tests.billing.usage_records import row_at, store

PICO_PER_CENT = pico_per_minor("USD")

pytestmark = pytest.mark.django_db


def as_app() -> None:
    rls.grant("hearth_app")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE hearth_app")


def owed_pico(tenant: Tenant) -> int:
    debits = LedgerEntry.objects.filter(account__kind="receivable", account__tenant_id=tenant.id)
    return int(debits.aggregate(total=Sum("amount_pico"))["total"])


def test_a_final_invoice_has_the_months_lines_and_equals_the_ledger(acme: Tenant) -> None:
    as_app()
    invoice = finalize(acme)
    assert (invoice.number, invoice.state, invoice.sequence) == ("INV-000001", "final", 1)
    # 13,333,333 * 0.15 and 2,000,000 * 0.60, for a million each
    assert list(invoice.lines.order_by("position").values_list("description", "quantity", "amount_cents")) == [
        ("demo: uncached prompt tokens", 13_333_333, 200),
        ("demo: completion tokens", 2_000_000, 120),
    ]
    assert (invoice.net_cents, invoice.tax_cents, invoice.total_cents) == (320, 61, 381)
    assert (int(invoice.exact_pico), int(invoice.rounding_pico)) == (3_199_999_950_000, 50_000)
    assert (invoice.issued_on, invoice.due_on) == (date(2026, 4, 5), date(2026, 4, 19))
    assert owed_pico(acme) == 381 * PICO_PER_CENT
    entry = AuditEntry.objects.get(action="invoice.finalized")
    assert (entry.actor, entry.after and entry.after["number"]) == ("ada", "INV-000001")
    assert finalizing.finalize(EVE, month(acme)) == (invoice, False)
    event = Event.objects.get(type="hearth.invoice.finalized.v1", tenant=acme)
    assert event.data == {
        "invoice": str(invoice.id),
        "number": "INV-000001",
        "month": "2026-03",
        "currency": "USD",
        "total": "3.81",
        "due": "3.81",
        "issued_on": "2026-04-05",
        "due_on": "2026-04-19",
    }
    assert (owed_pico(acme), Issuer.objects.get().next_invoice) == (381 * PICO_PER_CENT, 2)


def test_credit_that_paid_for_the_month_is_taken_from_the_total(acme: Tenant) -> None:
    credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=3 * 10**12))
    invoice = finalize(acme)
    assert (invoice.total_cents, invoice.applied_cents, registry.open_cents(invoice)) == (381, 300, 81)
    assert owed_pico(acme) == 81 * PICO_PER_CENT
    assert invoice.document["applied"] == [{"text": "Prepaid credit", "cents": 300}]


def test_its_documents_are_kept_with_their_hashes(acme: Tenant) -> None:
    invoice = finalize(acme)
    found = {each.kind: bytes(each.content) for each in invoice.documents.all()}
    assert set(found) == {"pdf", "html", "xml", "csv", "json"}
    for each in invoice.documents.all():
        assert (each.sha256, each.size_bytes) == (hashlib.sha256(each.content).hexdigest(), len(each.content))
    assert found["pdf"].startswith(b"%PDF-1.7") and b"PDF/A" not in found["html"]
    assert json.loads(found["json"]) == invoice.document
    assert invoice.document["usage"] == [
        {
            "project": invoice.document["usage"][0]["project"],
            "key": invoice.document["usage"][0]["key"],
            "model": "demo",
            "requests": 1,
            "prompt_tokens": 13_333_333,
            "cached_prompt_tokens": 0,
            "completion_tokens": 2_000_000,
            "amount_pico": 3_199_999_950_000,
        }
    ]


def test_an_open_month_gets_no_invoice_and_no_number_is_used(acme: Tenant) -> None:
    with pytest.raises(InvoiceRefused, match="2026-03 of acme gets no invoice: the month is open"):
        finalizing.finalize(ADA, month(acme))
    closing.close(ADA, month(acme, 3))
    closing.close(ADA, month(acme, 4))
    with pytest.raises(InvoiceRefused, match="nothing was used and nothing is due"):
        finalizing.finalize(ADA, month(acme, 4))
    assert (Issuer.objects.get().next_invoice, Invoice.objects.count()) == (1, 0)


def test_a_tenant_without_a_country_or_with_another_issuer_gets_no_invoice(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    account.change(ADA, acme, country="")
    with pytest.raises(InvoiceRefused, match="its account has no country"):
        finalizing.finalize(ADA, month(acme))
    account.change(ADA, acme, country="DE", issuer="stripe")
    with pytest.raises(InvoiceRefused, match="its invoices come from stripe"):
        finalizing.finalize(ADA, month(acme))
    assert Issuer.objects.get().next_invoice == 1


def test_an_archived_tenant_without_a_legal_name_gets_no_invoice(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    Tenant.objects.filter(id=acme.id).update(state="archived", archived_at=NOW)
    archived = month(Tenant.objects.get(id=acme.id))
    with pytest.raises(InvoiceRefused, match="its account has no legal name, as after an erasure"):
        finalizing.finalize(ADA, archived)
    assert Issuer.objects.get().next_invoice == 1
    account.change(ADA, acme, legal_name="Acme Ltd")
    assert finalizing.finalize(ADA, archived, now=NOW)[0].document["buyer"]["name"] == "Acme Ltd"


def test_what_cannot_be_set_uses_no_number(acme: Tenant) -> None:
    """A character that no font has: U+0378 is not assigned."""
    closing.close(ADA, month(acme))
    Tenant.objects.filter(id=acme.id).update(name="Acme \u0378")
    before = owed_pico(acme)
    with pytest.raises(InvoiceRefused, match="no font has the text"), transaction.atomic():
        finalizing.finalize(ADA, month(Tenant.objects.get(id=acme.id)))
    assert (Issuer.objects.get().next_invoice, Invoice.objects.count(), owed_pico(acme)) == (1, 0, before)


def test_each_issuer_has_numbers_of_its_own_without_a_gap(acme: Tenant) -> None:
    paris = {"legal_name": "Hearth SAS", "city": "Paris", "country": "FR", "invoice_prefix": "F-"}
    with pytest.raises(BadIssuer, match="'CN-' is that of berlin"):
        issuers.set_issuer(ADA, "paris", paris)
    paris["credit_note_prefix"] = "A-"
    issuers.set_issuer(ADA, "paris", paris)
    globex = Tenant.objects.create(slug="globex", name="Globex")
    account.change(ADA, globex, country="FR", payment_terms_days=14)
    for number in (3, 4):
        store(row_at(MIDDLE + timedelta(days=31 * (number - 3)), TenantId(globex.id), tokens=TOKENS))
    assert [finalize(acme).number, finalize(globex).number] == ["INV-000001", "INV-000002"]
    closing.close(ADA, month(globex, 4))
    french, _ = finalizing.finalize(ADA, month(globex, 4), issuer="paris", now=NOW)
    assert (french.number, french.tax_cents, french.document["seller"]["name"]) == ("F-000001", 0, "Hearth SAS")
    closing.close(ADA, month(globex, 5))
    with pytest.raises(NotFound):
        finalizing.finalize(ADA, month(globex, 5), issuer="rome")


def test_no_process_changes_what_an_invoice_says(acme: Tenant) -> None:
    finalize(acme)
    as_app()
    for statement in (
        "UPDATE billing_invoice SET total_cents = 0, net_cents = 0, tax_cents = 0",
        "UPDATE billing_invoice SET number = 'INV-9'",
        "UPDATE billing_invoice SET document = '{}'",
        "DELETE FROM billing_invoice",
        "UPDATE billing_invoiceline SET amount_cents = 0",
        "DELETE FROM billing_invoicedocument",
        "UPDATE billing_invoicedocument SET content = ''",
        "UPDATE billing_invoice SET state = 'draft'",
        "UPDATE billing_invoice SET state = 'void'",  # without a reason
    ):
        with pytest.raises(Error), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement)


def test_another_tenant_sees_neither_the_invoice_nor_its_documents(acme: Tenant) -> None:
    stranger = Tenant.objects.create(slug="globex", name="Globex")
    finalize(acme)
    tables = (Invoice, InvoiceLine, InvoiceDocument)
    with rls.as_tenant(TenantId(acme.id)):
        assert [table.objects.count() for table in tables] == [1, 2, 5]
    with rls.as_tenant(TenantId(stranger.id)):
        assert [table.objects.count() for table in tables] == [0, 0, 0]


@pytest.mark.django_db(transaction=True)
def test_two_operators_who_finalise_at_once_make_one_invoice(acme: Tenant) -> None:
    closing.close(ADA, month(acme))
    start, made = threading.Barrier(2), []

    def run(actor: Actor) -> None:
        try:
            start.wait(timeout=60)
            made.append(finalizing.finalize(actor, month(acme), now=NOW)[1])
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(actor,)) for actor in (ADA, EVE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, True]
    assert (Invoice.objects.count(), InvoiceDocument.objects.count(), Issuer.objects.get().next_invoice) == (1, 5, 2)
    assert AuditEntry.objects.filter(action="invoice.finalized").count() == 1
