"""Invoices in the API and on their pages: operators make and change them, a tenant's billing people read its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models import Sum
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from billing.accounts import account
from billing.invoices import finalizing, issuers, steps
from billing.models import CreditRequest, Invoice, InvoicePayment
from billing.months import closing
from billing.reports.statements import Month
from billing.runs import advancing
from portal.api.billing import invoices as invoices_api
from tenants.models import AuditEntry, Membership, Tenant, User
from tests.portal import fixtures
from tests.portal.conftest import error_of
from tests.portal.fixtures import OPERATOR, World

SignIn = Callable[[User], Client]
MARCH = datetime(2026, 3, 16, 12, 0, tzinfo=UTC)
INVOICES, PAGE = "/api/v1/invoices", "/portal/tenants/acme/invoices/"
TODAY = f"{timezone.now():%Y-%m-%d}"


@pytest.fixture
def closed(world: World) -> World:
    """Acme's March, closed, with 3.00006 of usage; an issuer with 19 % tax."""
    Tenant.objects.update(created_at=datetime(2026, 1, 1, tzinfo=UTC))
    row = msgspec.structs.replace(fixtures.answered(world, world.acme, MARCH, 1), prompt_tokens=20_000_000)
    fixtures.store([row])
    values = {"legal_name": "Hearth", "city": "Berlin", "country": "DE", "tax_id": "DE1", "tax_rate_bp": 1900}
    issuers.set_issuer(OPERATOR, "berlin", values)
    account.change(OPERATOR, world.acme.tenant, country="DE")
    closing.close(OPERATOR, march(world))
    return world


@pytest.fixture
def invoice(closed: World) -> Invoice:
    """The invoice of it, over 3.57."""
    return finalizing.finalize(OPERATOR, march(closed))[0]


def march(world: World) -> Month:
    return Month(tenant=world.acme.tenant, year=2026, month=3)


def post(client: APIClient, path: str, body: dict[str, Any] | None = None, **headers: Any) -> Any:
    return client.post(path, body or {}, format="json", **headers)


def member(world: World, role: str) -> User:
    user = User.objects.create(username=role)
    Membership.objects.create(user=user, tenant=world.acme.tenant, role=role)
    return user


def test_an_invoice_is_made_once_sent_paid_and_voided(as_operator: APIClient, closed: World) -> None:
    made = post(as_operator, INVOICES, {"tenant": "acme", "month": "2026-03"})
    assert made.status_code == 201, made.json()
    found = made.json()
    assert (found["number"], found["state"], found["total_cents"], found["open_cents"]) == (
        "INV-000001",
        "final",
        357,
        357,
    )
    assert [line["amount_cents"] for line in found["lines"]] == [300, 0, 0]
    again = post(as_operator, INVOICES, {"tenant": "acme", "month": "2026-03"})
    assert (again.status_code, again.json()) == (200, found)
    path = f"{INVOICES}/{found['id']}"
    assert post(as_operator, f"{path}/send").json()["state"] == "sent"
    part = {"reference": "Wire 1", "paid_on": TODAY, "amount_cents": 100}
    assert [post(as_operator, f"{path}/pay", part).status_code for _ in range(2)] == [201, 200]
    rest = post(as_operator, f"{path}/pay", {"paid_on": TODAY}, HTTP_IDEMPOTENCY_KEY="Wire 2")
    assert (rest.status_code, rest.json()["state"], rest.json()["open_cents"]) == (201, "paid", 0)
    assert [each["reference"] for each in rest.json()["payments"]] == ["Wire 1", "Wire 2"]
    void = post(as_operator, f"{path}/void", {"reason": "wrong name"}).json()
    assert (void["state"], void["credit_note"]["number"], void["voided_by"]) == ("void", "CN-000001", "ada")
    refused = post(as_operator, f"{path}/void", {"reason": "again"})
    assert (refused.status_code, error_of(refused)["code"]) == (409, "invoice_refused")
    assert InvoicePayment.objects.count() == 2


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("", {"tenant": "acme", "month": "2026-04"}, (409, "invoice_refused")),
        ("", {"tenant": "acme", "month": "2026-13"}, (400, "invalid_value")),
        ("", {"tenant": "nobody", "month": "2026-03"}, (404, "tenant_not_found")),
        ("", {"tenant": "acme", "month": "2026-03", "issuer": "rome"}, (404, "issuer_not_found")),
        ("", {"tenant": "acme"}, (400, "required")),
        ("", {"tenant": "acme", "month": "2026-03", "number": "INV-9"}, (400, "invalid")),
        ("/pay", {"paid_on": TODAY}, (400, "invalid")),
        ("/pay", {"paid_on": TODAY, "reference": "a\0"}, (400, "null_characters_not_allowed")),
        ("/pay", {"paid_on": TODAY, "reference": "a", "amount_cents": 10**18}, (400, "max_value")),
        ("/pay", {"paid_on": TODAY, "reference": "a", "amount_cents": 9999}, (409, "invoice_refused")),
        ("/pay", {"paid_on": "soon", "reference": "a"}, (400, "invalid")),
        ("/void", {}, (400, "required")),
        ("/credit-notes", {"lines": [{"text": "x", "net_cents": 1}]}, (400, "required")),
        ("/credit-notes", {"reason": "SLA", "lines": [{"text": "x", "net_cents": 0}]}, (400, "min_value")),
        ("/credit-notes", {"reason": "SLA", "lines": []}, (400, "empty")),
        ("/credit-notes", {"reason": "SLA", "lines": [{"text": "x", "net_cents": 301}]}, (409, "invoice_refused")),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(
    as_operator: APIClient, closed: World, path: str, body: dict[str, Any], code: tuple[int, str]
) -> None:
    if path:
        path = f"/{finalizing.finalize(OPERATOR, march(closed))[0].id}{path}"
    before = AuditEntry.objects.count(), Invoice.objects.count()
    headers = {"HTTP_IDEMPOTENCY_KEY": "key"} if "credit" in path else {}
    answer = post(as_operator, f"{INVOICES}{path}", body, **headers)
    assert (answer.status_code, error_of(answer)["code"]) == code
    assert (AuditEntry.objects.count(), Invoice.objects.count()) == before


def test_the_tenants_billing_people_read_their_own_invoices_and_nobody_elses(
    signed_in: SignIn, as_operator: APIClient, invoice: Invoice, closed: World
) -> None:
    path = f"{INVOICES}/{invoice.id}"
    for user in (closed.acme.owner, member(closed, "billing")):
        reader = signed_in(user)
        [row] = reader.get(INVOICES).json()["data"]
        assert (row["number"], row["state"], row["finalized_by"]) == ("INV-000001", "final", None)
        assert reader.get(path).json()["lines"][0]["amount_cents"] == 300
        for each in invoice.documents.all():
            answer = reader.get(f"{path}/documents/{each.kind}")
            assert hashlib.sha256(answer.content).hexdigest() == each.sha256
        assert "INV-000001" in reader.get(PAGE).content.decode()
        shown = reader.get(f"{PAGE}{invoice.id}/").content.decode()
        assert "3.57" in shown and 'data-testid="pay"' not in shown
        assert reader.post(f"{path}/void", {"reason": "mine"}, content_type="application/json").status_code == 403
        assert reader.post(f"{PAGE}{invoice.id}/change/", {"action": "void", "reason": "mine"}).status_code == 404
    stranger = signed_in(closed.globex.owner)
    assert stranger.get(INVOICES).json()["data"] == []
    assert stranger.get(f"{INVOICES}?tenant=acme").status_code == 404
    for address in (path, f"{path}/documents/pdf", PAGE, f"{PAGE}{invoice.id}/", f"{PAGE}{invoice.id}/pdf/"):
        assert stranger.get(address).status_code == 404, address
    own = address.replace("acme", "globex")
    assert stranger.get(own).status_code == 404
    viewer = signed_in(member(closed, "viewer"))
    assert (viewer.get(path).status_code, viewer.get(PAGE).status_code) == (403, 404)
    assert "/invoices/" not in viewer.get("/portal/tenants/acme/").content.decode()


def test_a_part_is_credited_in_the_api_and_on_the_page(
    signed_in: SignIn, as_operator: APIClient, invoice: Invoice, closed: World, settings: Any
) -> None:
    path, body = f"{INVOICES}/{invoice.id}", {"reason": "SLA", "lines": [{"text": "An hour", "net_cents": 100}]}
    assert error_of(post(as_operator, f"{path}/credit-notes", body))["param"] == "Idempotency-Key"
    answers = [post(as_operator, f"{path}/credit-notes", body, HTTP_IDEMPOTENCY_KEY="a") for _ in range(2)]
    assert [each.status_code for each in answers] == [201, 200], answers[0].json()
    assert answers[0].json()["credit_note"] == answers[1].json()["credit_note"] == "CN-000001"
    found = as_operator.get(path).json()
    assert (found["open_cents"], found["credited_cents"], found["credit_note"]) == (357 - 119, 119, None)
    [note] = found["partial_credit_notes"]
    assert (note["number"], note["total_cents"], note["settled_cents"], note["reason"]) == (
        "CN-000001",
        119,
        119,
        "SLA",
    )
    browser, page = signed_in(closed.operator), f"{PAGE}{invoice.id}/"
    shown = browser.get(page).content.decode()
    assert "$2.00 are left" in shown and 'data-testid="credit-notes"' in shown
    form = {"action": "credit", "key": "b", "reason": "SLA", "amount": "2.01"}
    assert (
        "2.01 without tax was given, 2.00 are left"
        in browser.post(f"{page}change/", form, follow=True).content.decode()
    )
    done = browser.post(f"{page}change/", form | {"amount": "0.50", "text": "Half"}, follow=True).content.decode()
    assert "CN-000002 credits $0.60." in done and "$1.50 are left" in done
    found_by_note = browser.get("/portal/search/?q=CN-0", follow=True).content.decode()
    assert found_by_note.count(">INV-000001<") == 1
    settings.CREDIT_APPROVAL_ABOVE = 0
    waits = browser.post(f"{page}change/", form | {"amount": "0.50", "key": "c"}, follow=True).content.decode()
    assert "It waits for a second person" in waits
    for address in ("/portal/billing/", "/portal/tenants/acme/billing/"):  # what a second person approves
        about = browser.get(address).content.decode()
        assert f'{invoice.id}/">INV-000001</a><br>Credit for INV-000001: $0.50<br>' in about and "$0.09 of tax" in about
    counts = []
    for limit in (1, 3):
        with CaptureQueriesContext(connection) as queries:
            listed = as_operator.get(f"/api/v1/credit-requests?limit={limit}").json()["data"]
        counts.append(len(queries))
    assert counts[0] == counts[1] and len(listed) == 3
    assert listed[0]["lines"] == [{"text": "Credit for INV-000001", "net_cents": 50}]
    assert [each["credit_note"] for each in listed] == [None, "CN-000002", "CN-000001"]
    CreditRequest.objects.filter(key="c").update(state="rejected")
    again = browser.post(f"{page}change/", form | {"amount": "0.50", "key": "c"}, follow=True).content.decode()
    assert "this credit note was rejected" in again
    owner = signed_in(closed.acme.owner)
    assert 'data-testid="credit"' not in owner.get(page).content.decode()
    for number, text in (("CN-000001", b"An hour"), ("CN-000002", b"Half")):
        assert text in owner.get(f"{page}html/?of={number}").content
        assert text in owner.get(f"{path}/documents/json?of={number}").content
    assert owner.get(f"{page}html/?of=CN-000003").status_code == 404
    assert signed_in(closed.globex.owner).get(f"{page}html/?of=CN-000001").status_code == 404
    assert owner.post(f"{page}change/", form).status_code == 404


def test_lists_are_filtered_paged_and_downloaded(
    as_operator: APIClient, invoice: Invoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(as_operator.get(f"{INVOICES}?tenant=acme&month=2026-03&limit=1").json()["data"]) == 1
    assert as_operator.get(f"{INVOICES}?tenant=globex").json()["data"] == []
    assert as_operator.get(f"{INVOICES}?after={invoice.id}").json()["data"] == []
    assert as_operator.get(f"{INVOICES}?state=paid").json()["data"] == []
    assert error_of(as_operator.get(f"{INVOICES}?state=lost"))["param"] == "state"
    text = b"".join(as_operator.get(f"{INVOICES}?format=csv").streaming_content).decode()  # type: ignore[attr-defined]
    header, row = (line.split(",") for line in text.splitlines())
    assert dict(zip(header, row, strict=True)) | {"number": "INV-000001", "total": "3.57", "open": "3.57"} == dict(
        zip(header, row, strict=True)
    )
    assert not as_operator.get(f"{INVOICES}?format=csv").has_header("x-rows-cut")
    monkeypatch.setattr(invoices_api, "MOST_ROWS", 0)
    assert as_operator.get(f"{INVOICES}?format=csv")["x-rows-cut"] == "0"


def test_a_draft_is_no_invoice(as_operator: APIClient, closed: World) -> None:
    draft = as_operator.get("/api/v1/tenants/acme/months/2026-03/invoice-draft").json()
    assert (draft["kind"], draft["number"], draft["total_cents"]) == ("draft", "DRAFT", 357)
    assert not Invoice.objects.exists()


def test_an_issuer_is_set_and_what_is_wrong_is_named(as_operator: APIClient, world: World) -> None:
    path = "/api/v1/issuers/berlin"
    assert error_of(as_operator.get(path))["code"] == "issuer_not_found"
    for body, param in (
        ({"city": "Berlin", "country": "DE"}, "legal_name"),
        ({"legal_name": "H", "city": "Berlin", "country": "XX"}, "country"),
        ({"legal_name": "H", "city": "Berlin", "country": "DE", "iban": "DE00370400440532013000"}, "iban"),
        ({"legal_name": "H", "city": "Berlin", "country": "DE", "tax_rate_bp": 1900}, "tax_id"),
        ({"legal_name": "H", "city": "Berlin", "country": "DE", "tax_rate_bp": 10_001}, "tax_rate_bp"),
        ({"legal_name": "H\u0007", "city": "Berlin", "country": "DE"}, "legal_name"),
        ({"legal_name": "H", "city": "Berlin", "country": "DE", "next_invoice": 7}, "next_invoice"),
        ({"legal_name": "H", "city": "Berlin", "country": "DE", "timezone": "Mars/X"}, "timezone"),
    ):
        answer = as_operator.patch(path, body, format="json")
        assert (answer.status_code, error_of(answer)["param"]) == (400, param), body
    made = as_operator.patch(path, {"legal_name": "Hearth", "city": "Berlin", "country": "de"}, format="json").json()
    assert (made["is_default"], made["country"], made["next_invoice"]) == (True, "DE", 1)
    assert [each["name"] for each in as_operator.get("/api/v1/issuers").json()["data"]] == ["berlin"]


def test_an_operator_makes_and_changes_invoices_on_pages(signed_in: SignIn, closed: World) -> None:
    browser = signed_in(closed.operator)
    page = browser.get("/portal/invoices/?month=2026-03").content.decode()
    assert "Make 1 invoice" in page and "draft" in page
    draft = browser.get("/portal/tenants/acme/invoice-draft/2026-03/")
    assert "Draft invoice" in draft.content.decode() and "sandbox" in draft["Content-Security-Policy"]
    browser.post("/portal/invoices/", {"month": "2026-03"})
    advancing.go_on()
    made = browser.get("/portal/invoices/?month=2026-03").content.decode()
    assert "1 made, 0 were" in made and "2026-03 of globex gets no invoice" in made and "INV-000001" in made
    found = Invoice.objects.get()
    change = f"{PAGE}{found.id}/change/"
    wrong = browser.post(change, {"action": "pay", "reference": "a", "paid_on": TODAY, "amount": "x"}, follow=True)
    assert "is no amount" in wrong.content.decode()
    paid = browser.post(
        change, {"action": "pay", "reference": "Wire 1", "paid_on": TODAY, "amount": "1,50"}, follow=True
    )
    assert "Recorded: $1.50." in paid.content.decode() and "Wire 1" in paid.content.decode()
    back = {"action": "unpay", "reference": "Wire 1", "reason": "bounced"}
    assert "$3.57 of INV-000001 are open now" in browser.post(change, back, follow=True).content.decode()
    void = browser.post(change, {"action": "void", "reason": "wrong <b>name</b>"}, follow=True).content.decode()
    assert "taken back by CN-000001" in void and "wrong &lt;b&gt;name" in void and "invoice.voided" in void
    note = browser.get(f"{PAGE}{found.id}/html/?of=credit_note")
    assert "Credit note" in note.content.decode() and "<b>name</b>" not in note.content.decode()


def test_a_payment_is_taken_back(as_operator: APIClient, invoice: Invoice) -> None:
    path = f"/api/v1/invoices/{invoice.id}"
    as_operator.post(f"{path}/pay", {"reference": "Wire 1", "paid_on": TODAY}, format="json")
    unpaid = as_operator.post(f"{path}/unpay", {"reference": "Wire 1", "reason": "bounced"}, format="json")
    assert (unpaid.status_code, unpaid.json()["open_cents"]) == (200, invoice.total_cents)
    strange = as_operator.post(f"{path}/unpay", {"reference": "Wire 2", "reason": "bounced"}, format="json")
    assert error_of(strange)["code"] == "invoice_refused"


def test_the_issuer_is_set_on_its_page(signed_in: SignIn, world: World) -> None:
    browser = signed_in(world.operator)
    assert 'data-testid="no-issuer"' in browser.get("/portal/invoices/").content.decode()
    form = {
        "name": "berlin", "legal_name": "Hearth", "city": "Berlin", "country": "XX", "timezone": "UTC",
        "invoice_prefix": "INV-", "credit_note_prefix": "CN-", "tax_rate": "0",
    }  # fmt: skip
    for country in ("XX", "Germany", "Ge", ""):
        wrong = browser.post("/portal/issuers/", form | {"country": country})
        assert (wrong.status_code, "Choose one of the list." in wrong.content.decode()) == (400, True)
    assert '<option value="DE">Germany</option>' in wrong.content.decode()
    form["country"] = "DE"
    short = browser.post("/portal/issuers/", form | {"iban": "de00123"})
    assert "&#x27;de00123&#x27; is no IBAN: it has 7 letters and digits" in short.content.decode()
    assert 'value="de00123"' in short.content.decode()
    saved = browser.post("/portal/issuers/", form, follow=True).content.decode()
    assert "Saved." in saved and "INV-000001" in saved and "CN-000001" in saved


def test_a_return_names_its_invoice_and_has_its_tax(
    as_operator: APIClient, signed_in: SignIn, invoice: Invoice, world: World
) -> None:
    operator = signed_in(world.operator)
    steps.pay(OPERATOR, invoice, reference="wire", paid_on=timezone.now().date())
    path = "/api/v1/tenants/{}/credit/requests"
    body = {"kind": "return", "amount_pico": 10**12, "reason": "refund", "invoice": invoice.number}
    made = post(as_operator, path.format("acme"), body, headers={"Idempotency-Key": "r1"})
    assert (made.status_code, made.json()["invoice"], made.json()["tax_pico"]) == (201, str(invoice.id), 16 * 10**10)
    stranger = post(as_operator, path.format("globex"), body, headers={"Idempotency-Key": "r1"})
    assert (stranger.status_code, error_of(stranger)["code"]) == (404, "invoice_not_found")
    page = "/portal/tenants/{}/credit/change/"
    form = {"kind": "return", "amount": "2.57", "reason": "refund", "invoice": invoice.number, "key": "r2"}
    wrong = operator.post(page.format("globex"), form)
    assert (wrong.status_code, "The tenant has no invoice with this number." in wrong.content.decode()) == (400, True)
    assert "Posted: $2.57" in operator.post(page.format("acme"), form, follow=True).content.decode()
    more = operator.post(page.format("acme"), form | {"key": "r3", "amount": "0.01"})
    assert (more.status_code, "which was paid for INV-000001" in more.content.decode()) == (400, True)
    assert int(invoice.returns.aggregate(tax=Sum("tax_pico"))["tax"]) == invoice.tax_cents * 10**10


def test_the_report_of_an_import_leads_to_the_invoice(signed_in: SignIn, invoice: Invoice, world: World) -> None:
    text = f"account,reference,date,amount,currency,text\nDE89,B-3,{TODAY},0.50,USD,{invoice.number}\n"
    for action in ("preview", "import"):
        form = {"action": action, "file": SimpleUploadedFile("a.csv", text.encode())}
        shown = signed_in(world.operator).post("/portal/payments/", form).content.decode()
        assert f'<a href="{PAGE}{invoice.id}/">INV-000001</a>' in shown, action
