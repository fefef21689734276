"""Currencies that do not have two decimals, from the closing of a month until it is paid."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest
from django.utils import timezone
from lxml import etree

from billing.accounts import account, credits
from billing.accounts.credits import NewCredit
from billing.errors import BadBankFile, BadCredit
from billing.invoices import finalizing, registry, steps
from billing.models import Invoice, Issuer
from billing.months import closing
from billing.payments import bank_file, importing
from billing.pricing import amounts
from billing.pricing.prices import DEMO_RATES, ensure_price_book
from billing.reports import statements
from notifications.models import Event
from reconciliation import invoices as reconciliation
from reconciliation.models import BookGap
from tenants.ids import TenantId
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA, MIDDLE, finalize, month
from tests.billing.invoices.test_whole_month import FIRST, receivable_pico
from tests.billing.usage_records import price_from, row_at, store

pytestmark = pytest.mark.django_db

#: Per million tokens 15, 1.5 and 60 units.
RATES = replace(DEMO_RATES, prompt_pico=15_000_000, cached_prompt_pico=1_500_000, completion_pico=60_000_000)
#: Lines of 150.00015, 7.5 and 0.1401.
TOKENS = (10_000_010, 5_000_000, 2_335)


def tenant_in(currency: str) -> Tenant:
    """Return a tenant that pays in a currency, with one large request in March."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    account.change(ADA, tenant, currency=currency, country="DE", city="Hamburg", payment_terms_days=14)
    price_from(MIDDLE - timedelta(days=40), RATES)
    tenant.refresh_from_db()
    store(row_at(MIDDLE, TenantId(tenant.id), tokens=TOKENS))
    return tenant


@pytest.fixture
def acme(issuer: Issuer, request: pytest.FixtureRequest) -> Tenant:
    """A tenant that pays in the currency of the test."""
    book = ensure_price_book()
    book.currency = request.param
    book.save()
    return tenant_in(request.param)


@pytest.mark.parametrize(
    ("acme", "digits", "lines", "tax", "shown"),
    [
        # half to even: 7.5 is 8; tax is half away from zero: 30.02
        pytest.param("JPY", 0, [150, 8, 0], 30, "188 JPY", id="JPY"),
        pytest.param("BHD", 3, [150_000, 7_500, 140], 29_952, "187.592 BHD", id="BHD"),
    ],
    indirect=["acme"],
)
def test_a_month_is_invoiced_and_paid_in_its_currency(
    acme: Tenant, digits: int, lines: list[int], tax: int, shown: str
) -> None:
    currency, one = acme.currency, 10 ** (12 - digits)
    invoice = finalize(acme)
    statement = statements.statement(TenantId(acme.id), 2026, 3)
    assert statement.equals_ledger and statement.amount_cents == sum(lines)
    assert sorted(invoice.lines.values_list("amount_cents", flat=True), reverse=True) == lines
    assert sum(invoice.lines.values_list("amount_pico", flat=True)) == invoice.exact_pico == statement.amount_pico
    assert (invoice.net_cents, invoice.tax_cents, invoice.currency) == (sum(lines), tax, currency)
    assert receivable_pico(acme) == invoice.total_cents * one
    check_documents(invoice, shown)
    [event] = Event.objects.filter(type__contains="invoice.finalized")
    assert f"{event.data['due']} {currency}" == shown

    part, rest = invoice.total_cents // 2, invoice.total_cents - invoice.total_cents // 2
    steps.pay(ADA, invoice, reference="Wire 1", paid_on=invoice.issued_on, amount_cents=part)
    assert receivable_pico(acme) == rest * one
    text = amounts.of_minor(rest, currency)
    rows = f"account,reference,date,amount,currency,text\nDE1,R1,{date.today()},{text},{currency},{invoice.number}\n"
    report = importing.run(ADA, bank_file.read(rows.encode()))
    assert [each.outcome for each in report.lines] == ["matched"]
    invoice.refresh_from_db()
    assert (invoice.state, registry.open_cents(invoice), receivable_pico(acme)) == ("paid", 0, 0)
    reconciliation.compare(timezone.now(), since=FIRST)
    assert not BookGap.objects.exists()


def check_documents(invoice: Invoice, shown: str) -> None:
    """Check that each document has the total with the currency's decimals."""

    def content(kind: str) -> bytes:
        return bytes(registry.document(invoice, kind).content)

    number = shown.split(maxsplit=1)[0]
    assert shown in content("html").decode()
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(content("csv").decode()))}
    assert rows["total"]["amount"] == number
    names = {"ram": "urn:un:unece:uncefact:data:standard:ReusableAggregateBusinessInformationEntity:100"}
    totals = etree.fromstring(content("xml")).findall(".//ram:GrandTotalAmount", names)
    assert [each.text for each in totals] == [number]
    document: dict[str, Any] = json.loads(content("json"))
    assert document["total_cents"] == invoice.total_cents


@pytest.mark.parametrize("acme", ["JPY"], indirect=True)
def test_credit_pays_whole_yen_and_parts_of_one_are_refused(acme: Tenant) -> None:
    with pytest.raises(BadCredit, match="an amount in JPY has no decimals"):
        credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=10**12 // 2))
    credits.submit(ADA, acme, "payment-2", NewCredit(kind="top_up", amount_pico=100 * 10**12))
    closing.close(ADA, month(acme))
    invoice, _ = finalizing.finalize(ADA, month(acme))
    assert (invoice.applied_cents, registry.open_cents(invoice)) == (100, 88)


@pytest.mark.parametrize(
    ("currency", "amount", "found"),
    [
        ("JPY", "1234", 1234),
        ("JPY", "12.00", 12),
        ("BHD", "1.234", 1234),
        ("EUR", "12.3", 1230),
        ("KWD", "2", 2000),
    ],
)
def test_a_bank_statement_has_the_decimals_of_its_currency(currency: str, amount: str, found: int) -> None:
    rows = f"account,reference,date,amount,currency,text\nDE1,R1,2026-04-01,{amount},{currency},hello\n"
    assert bank_file.read(rows.encode()).entries[0].amount_cents == found
    camt = CAMT.format(amount=amount, currency=currency)
    assert bank_file.read(camt.encode()).entries[0].amount_cents == found


@pytest.mark.parametrize(("currency", "amount"), [("JPY", "0.50"), ("BHD", "1.2345"), ("EUR", "1.234")])
def test_an_amount_that_its_currency_does_not_have_is_refused(currency: str, amount: str) -> None:
    rows = f"account,reference,date,amount,currency,text\nDE1,R1,2026-04-01,{amount},{currency},hello\n"
    with pytest.raises(BadBankFile, match=f"decimals in {currency}"):
        bank_file.read(rows.encode())


CAMT = """<Document xmlns="urn:iso:std:iso:20022:tech:xsd:camt.053.001.08"><BkToCstmrStmt><Stmt>
<Acct><Id><IBAN>DE89370400440532013000</IBAN></Id></Acct><Ntry><Amt Ccy="{currency}">{amount}</Amt>
<CdtDbtInd>CRDT</CdtDbtInd><Sts><Cd>BOOK</Cd></Sts><BookgDt><Dt>2026-04-01</Dt></BookgDt><AcctSvcrRef>R1</AcctSvcrRef>
</Ntry></Stmt></BkToCstmrStmt></Document>"""


@pytest.mark.parametrize("text", ["9e9999999", "1_000", "1e2", "", " 1", ".5", "1.", "NaN", "1" * 16, "\u0661"])
def test_only_what_is_written_in_digits_is_an_amount(text: str) -> None:
    with pytest.raises(ValueError):
        amounts.to_minor(text, "USD")
