"""What made an amount: usage by project, key and model on the pages of an invoice and of a statement."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from uuid import uuid4

import pytest
from django.test import Client

from billing.invoices import steps
from billing.models import Invoice
from portal.reporting.billing import month_usage
from tenants.models import Membership, Tenant, User
from tests.portal import billed, fixtures
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
def invoice(world: World) -> Invoice:
    """Acme's invoice of November 2023: 20,000,000 prompt tokens of one key."""
    return Invoice.objects.get(id=billed.past_invoice(world.acme.tenant, world))


def links(page: str, label: str) -> list[str]:
    """Return where the links with this text, or with this title, lead to."""
    found = re.findall(r'<a (?:class="link" )?href="([^"]+)"(?: title="([^"]*)")?>([^<]*)</a>', page)
    return [unescape(address) for address, title, text in found if label in {title, text}]


def test_an_invoice_shows_its_usage_with_links_to_the_requests(
    world: World, invoice: Invoice, signed_in: SignIn
) -> None:
    browser = signed_in(world.acme.owner)
    page = browser.get(f"/portal/tenants/acme/invoices/{invoice.id}/").content.decode()
    [usage] = invoice.document["usage"]
    assert "Unit price" in page and re.search(r'<td class="num">\$[0-9.]+ / M</td>', page)
    statement = browser.get(f"/portal/tenants/acme/statement/?month={invoice.period}").content.decode()
    assert "Billed, without tax" in statement and f'data-testid="billed">{invoice.number}</a>' in statement
    assert 'data-testid="usage-project-key-model"' in page and usage["key"] in page
    csv = browser.get(f"/portal/tenants/acme/invoices/{invoice.id}/?csv=usage-project-key-model").content.decode()
    assert usage["key"] in csv
    [row] = links(page, "Its requests in the month")
    of_lines = links(page, "The requests of this model in the month")
    assert len(of_lines) == invoice.lines.count()
    for address in {row, *of_lines}:
        found = browser.get(address).content.decode()
        assert found.count('data-testid="request" ') == 1
    assert f"key=hk_{world.acme.key.public_id}" in row
    [of_key] = links(page, "The requests of this key in the month")
    assert f"key=hk_{world.acme.key.public_id}" in of_key and "model=" not in of_key
    assert browser.get(of_key).content.decode().count('data-testid="request" ') == 1


def test_the_largest_rows_of_an_invoice_are_shown_and_the_csv_has_all(world: World, invoice: Invoice) -> None:
    [usage] = invoice.document["usage"]
    deleted = str(uuid4())
    invoice.document["usage"] = [usage | {"key": deleted}]
    table = month_usage.of_invoice(world.acme.tenant, invoice, 1)
    assert table is not None and f"&key={deleted}&" in table.rows[0].link
    invoice.document["usage"] = [usage | {"model": f"m{each}", "amount_pico": each} for each in range(4)]
    table = month_usage.of_invoice(world.acme.tenant, invoice, 3)
    assert table is not None and [row.names[2] for row in table.rows] == ["m3", "m2", "m1"]
    assert (table.more, table.amount_pico) == (1, 6)
    table = month_usage.of_invoice(world.acme.tenant, invoice, 10_001)
    assert table is not None and (len(table.rows), table.more) == (4, 0)


def test_a_statement_shows_its_usage_by_project_and_by_key(world: World, signed_in: SignIn) -> None:
    fixtures.store([fixtures.answered(world, world.acme, MARCH, 1)])
    browser = signed_in(world.acme.owner)
    page = browser.get("/portal/tenants/acme/statement/?month=2026-03").content.decode()
    assert 'data-testid="usage-project"' in page and 'data-testid="usage-key"' in page
    assert "So both sums differ" not in page
    addresses = links(page, "Its requests in the month") + links(page, "Usage") + links(page, "CSV")
    assert len(addresses) == 6
    for address in addresses:
        assert browser.get(address).status_code == 200


def test_a_stranger_and_a_developer_see_no_usage_of_an_invoice(
    world: World, invoice: Invoice, signed_in: SignIn
) -> None:
    member = User.objects.create_user(username="dora", email="dora@acme.example")
    Membership.objects.create(tenant=world.acme.tenant, user=member, role=Membership.Role.DEVELOPER)
    address = f"/portal/tenants/acme/invoices/{invoice.id}/"
    assert [signed_in(each).get(address).status_code for each in (world.globex.owner, member)] == [404, 404]


def test_the_search_finds_an_invoice_for_those_who_may_read_it(
    world: World, invoice: Invoice, signed_in: SignIn
) -> None:
    member = User.objects.create_user(username="dora", email="dora@acme.example")
    Membership.objects.create(tenant=world.acme.tenant, user=member, role=Membership.Role.DEVELOPER)
    address, number = f"/portal/tenants/acme/invoices/{invoice.id}/", invoice.number.lower()
    for user, sees in ((world.operator, True), (world.acme.owner, True), (member, False), (world.globex.owner, False)):
        page = signed_in(user).get(f"/portal/search/?q={number}").content.decode()
        assert (f'href="{address}"' in page) is sees, user.username


def test_operators_see_what_is_open_of_all_months(world: World, invoice: Invoice, signed_in: SignIn) -> None:
    browser = signed_in(world.operator)
    assert "1 invoice of all months is open." in browser.get("/portal/invoices/").content.decode()
    for which in ("open", "all"):
        page = browser.get(f"/portal/invoices/?month={which}").content.decode()
        assert f'<a href="/portal/tenants/acme/invoices/{invoice.id}/">{invoice.number}</a>' in page
    steps.pay(fixtures.OPERATOR, invoice, reference="Wire", paid_on=invoice.issued_on)
    assert invoice.number not in browser.get("/portal/invoices/?month=open").content.decode()
    assert invoice.number in browser.get("/portal/invoices/?month=all").content.decode()
    assert 'href="/portal/invoices/?month=open"' in browser.get("/portal/payments/").content.decode()


def change(browser: Client, invoice: Invoice, action: str, **form: object) -> tuple[int, str]:
    """Send a form of the invoice's page; return the status and the page that follows."""
    address = f"/portal/tenants/acme/invoices/{invoice.id}/change/"
    answer = browser.post(address, {"action": action, **form}, follow=True)
    return answer.status_code, unescape(answer.content.decode())


def test_a_form_that_is_refused_keeps_what_was_typed(world: World, invoice: Invoice, signed_in: SignIn) -> None:
    browser, today = signed_in(world.operator), invoice.issued_on.isoformat()
    status, page = change(browser, invoice, "pay", reference="Wire 7", paid_on=today, amount="99999")
    assert status == 400 and 'value="Wire 7"' in page and 'value="99999"' in page
    assert "are open. Record at most that" in page and "Correct what is marked." in page
    status, page = change(browser, invoice, "pay", reference="Wire 7", paid_on="2023-01-01", amount="1")
    assert status == 400 and "is before its date" in page and 'value="Wire 7"' in page
    status, page = change(browser, invoice, "credit", key="page 1", amount="x", text="Three hours", reason="SLA")
    assert status == 400 and "This is no amount in USD." in page
    assert all(f'value="{typed}"' in page for typed in ("x", "Three hours", "SLA"))
    assert change(browser, invoice, "void", reason=" ")[0] == 400
    steps.pay(fixtures.OPERATOR, invoice, reference="Wire", paid_on=invoice.issued_on, amount_cents=1)
    status, page = change(browser, invoice, "unpay", reference="Wire", reason="no\x07bell")
    assert status == 400 and 'value="no\x07bell"' in page and 'id="unpay-problem"' in page
    status, page = change(browser, invoice, "dance")
    assert status == 200 and "choose what to do" in page
    invoice.refresh_from_db()
    assert (invoice.state, invoice.payments.count(), invoice.credit_notes.count()) == ("final", 1, 0)


def test_a_paid_invoice_says_what_becomes_of_a_second_payment(
    world: World, invoice: Invoice, signed_in: SignIn
) -> None:
    browser, paid_on = signed_in(world.operator), invoice.issued_on.isoformat()
    status, page = change(browser, invoice, "pay", reference="Wire", paid_on=paid_on, amount="")
    assert status == 200 and 'data-testid="paid"' in page and 'data-testid="pay"' not in page
    assert "A second payment of it becomes prepaid credit" in page
    status, page = change(browser, invoice, "pay", reference="Wire 2", paid_on=paid_on, amount="")
    assert status == 200 and "nothing is to be paid" in page
    billing = browser.get("/portal/tenants/acme/billing/").content.decode()
    assert 'data-testid="credit-kinds"' in billing
    for_owner = signed_in(world.acme.owner)
    assert 'data-testid="paid"' not in for_owner.get(f"/portal/tenants/acme/invoices/{invoice.id}/").content.decode()
    assert 'data-testid="credit-kinds"' not in for_owner.get("/portal/tenants/acme/billing/").content.decode()


def test_an_invoice_that_was_credited_in_part_offers_the_rest_instead_of_void(
    world: World, invoice: Invoice, signed_in: SignIn
) -> None:
    browser = signed_in(world.operator)
    page = browser.get(f"/portal/tenants/acme/invoices/{invoice.id}/").content.decode()
    assert 'data-testid="void"' in page and "applied $" not in page and "credited $" not in page
    status, page = change(browser, invoice, "credit", key="page 1", amount="1", text="", reason="SLA")
    assert status == 200 and 'data-testid="void"' not in page and "credited $1.00" in page
    assert "Credit the rest instead: “Credit a part” without an amount." in page
    status, page = change(browser, invoice, "void", reason="all of it")
    assert status == 200 and "Nothing was changed." in page


def test_a_payment_that_stripe_reported_is_not_taken_back_here(world: World, signed_in: SignIn) -> None:
    billed.bank_line(world)
    invoice = Invoice.objects.get(number=billed.INVOICE)
    paid_on = invoice.issued_on
    steps.pay(fixtures.OPERATOR, invoice, reference="Stripe inpay_1", paid_on=paid_on, amount_cents=40)
    steps.pay(fixtures.OPERATOR, invoice, reference="Wire", paid_on=paid_on, amount_cents=40)
    page = signed_in(world.operator).get(f"/portal/tenants/acme/invoices/{invoice.id}/").content.decode()
    assert page.count('data-testid="unpay"') == 1 and page.count('data-testid="stays"') == 1
    assert "Refund it at Stripe: the return is posted here." in page


def test_operators_begin_with_the_last_month_that_has_invoices(
    world: World, invoice: Invoice, signed_in: SignIn
) -> None:
    Tenant.objects.update(created_at=datetime(2023, 1, 1, tzinfo=UTC))
    page = signed_in(world.operator).get("/portal/invoices/").content.decode()
    assert "<h2>November 2023</h2>" in page and invoice.number in page
