"""Payments in the API and on their page: operators import bank statements and assign their lines."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any
from uuid import UUID

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from rest_framework.test import APIClient

from billing.accounts import balance
from billing.models import BankLine, Invoice
from billing.payments import importing
from billing.runs import advancing
from tenants.models import AuditEntry, User
from tests.portal import billed
from tests.portal.billed import INVOICE, LINE
from tests.portal.conftest import error_of
from tests.portal.fixtures import World

SignIn = Callable[[User], Client]
PAGE = "/portal/payments/"
HEADER = "account,reference,date,amount,currency,text,payer\n"


@pytest.fixture
def line(world: World) -> UUID:
    """A line over 1.00 USD, and an invoice over as much."""
    billed.bank_line(world)
    return LINE


def post(client: APIClient, path: str, body: Any, kind: str = "application/json") -> Any:
    return client.generic("POST", f"/api/v1/payments/{path}", body, content_type=kind)


def assign(client: APIClient, line: UUID, **body: Any) -> Any:
    return client.post(f"/api/v1/payments/{line}/assign", body, format="json")


@pytest.mark.usefixtures("line")
def test_an_operator_imports_a_file_and_reads_the_queue(as_operator: APIClient) -> None:
    text = HEADER + "DE89,B-2,2024-02-01,12.50,USD,Rechnung ÄÖ,Ünal\n"
    tried = post(as_operator, "import?dry_run=true", text.encode(), "text/csv")
    assert (tried.status_code, BankLine.objects.count()) == (200, 1), tried.json()
    done = post(as_operator, "import", text.encode(), "text/csv")
    assert done.json() == tried.json()
    problem = "Its text has no number of an invoice that is to be paid."
    assert done.json()["lines"] == [
        {
            "bank_reference": "B-2",
            "booked_on": "2024-02-01",
            "amount_cents": 1250,
            "currency": "USD",
            "outcome": "open",
            "invoices": [],
            "problem": problem,
        }
    ]
    listed = as_operator.get("/api/v1/payments?state=open&limit=1").json()
    assert (listed["has_more"], listed["data"][0]["payer"], listed["data"][0]["rest_cents"]) == (True, "Ünal", 1250)
    assert as_operator.get("/api/v1/payments?state=matched").json()["data"] == []
    again = post(as_operator, "import", text.encode(), "text/csv").json()
    assert [each["outcome"] for each in again["lines"]] == ["known"]


def test_an_operator_assigns_and_dismisses_parts_of_a_line(as_operator: APIClient, line: UUID) -> None:
    first = assign(as_operator, line, invoice=INVOICE, amount_cents=40)
    assert (first.status_code, first.json()["rest_cents"], first.json()["invoices"]) == (200, 60, [INVOICE])
    refused = assign(as_operator, line, invoice=INVOICE)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "payment_refused")
    done = as_operator.post(f"/api/v1/payments/{line}/dismiss", {"reason": "Sent back"}, format="json")
    assert (done.json()["state"], done.json()["dismiss_reason"]) == ("dismissed", "Sent back")
    assert Invoice.objects.get().state == "final"


def test_an_assignment_is_undone_and_a_rest_becomes_credit_by_operators_alone(
    as_operator: APIClient, as_acme: APIClient, signed_in: SignIn, world: World, line: UUID
) -> None:
    assign(as_operator, line, invoice=INVOICE)
    owner = signed_in(world.acme.owner)
    undo, keep = (f"/api/v1/payments/{line}/{verb}" for verb in ("undo", "keep"))
    body = {"invoice": INVOICE, "reason": "a mistake"}
    for client in (as_acme, owner):
        assert client.post(undo, body, "application/json" if client is owner else "json").status_code == 403
        assert client.post(keep).status_code == client.post("/api/v1/payments/match").status_code == 403
    assert Invoice.objects.get().state == "paid"
    undone = as_operator.post(undo, body, format="json")
    assert (undone.status_code, undone.json()["rest_cents"], undone.json()["invoices"]) == (200, 100, [])
    assert Invoice.objects.get().state == "final"
    payments = as_operator.get(f"/api/v1/invoices/{Invoice.objects.get().id}").json()["payments"]
    assert [each["undone_at"] is not None for each in payments] == [True]
    unnamed = as_operator.post(keep, {}, format="json")
    assert (unnamed.status_code, error_of(unnamed)["code"]) == (409, "payment_refused")
    kept = as_operator.post(keep, {"tenant": "acme"}, format="json")
    assert (kept.status_code, kept.json()["state"], balance.of(world.acme.tenant.id).prepaid_pico) == (
        200, "matched", 10**12,
    )  # fmt: skip
    assert as_operator.post("/api/v1/payments/match").json() == {"lines": 0}


def test_the_page_undoes_and_keeps(signed_in: SignIn, world: World, line: UUID) -> None:
    browser = signed_in(world.operator)
    form = {"line": str(line)}
    assert browser.post(PAGE, form | {"action": "assign", "invoice": INVOICE}).status_code == 302
    assert 'value="undo"' in browser.get(f"{PAGE}?state=matched").content.decode()
    undo = form | {"action": "undo", "invoice": INVOICE, "reason": "a mistake"}
    assert browser.post(PAGE, undo).status_code == 302
    assert browser.post(PAGE, undo).status_code == 400
    assert browser.post(PAGE, {"action": "match"}).status_code == 302
    assert browser.post(PAGE, form | {"action": "keep", "tenant": "acme"}).status_code == 302
    assert (BankLine.objects.get().state, Invoice.objects.get().state) == ("matched", "final")


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("import", b"", 400, "invalid_document", None),
        ("import", b"\xff\0", 400, "invalid_document", None),
        ("import", b"<a/>", 400, "invalid_document", None),
        ("import?dry_run=perhaps", b"", 400, "invalid", "dry_run"),
        (f"{LINE}/assign", b"{}", 400, "required", "invoice"),
        (f"{LINE}/assign", b'{"invoice": "ST-9"}', 404, "invoice_not_found", None),
        (f"{LINE}/assign", b'{"invoice": "ST-1", "amount_cents": 101}', 409, "payment_refused", None),
        (f"{LINE}/assign", b'{"invoice": "ST-1", "amount_cents": 1e99}', 400, None, "amount_cents"),
        (f"{LINE}/assign", b'{"invoice": "ST-1", "tenant": "x"}', 400, None, "tenant"),
        (f"{LINE}/dismiss", b'{"reason": ""}', 400, "blank", "reason"),
        (f"{UUID(int=5)}/dismiss", b'{"reason": "x"}', 404, "bank_line_not_found", None),
    ],
)
def test_what_is_refused_changes_nothing(
    as_operator: APIClient, line: UUID, path: str, body: bytes, status: int, code: str | None, param: str | None
) -> None:
    before = AuditEntry.objects.count()
    kind = "text/csv" if path.startswith("import") else "application/json"
    refused = post(as_operator, path, body, kind)
    assert refused.status_code == status, refused.json()
    assert error_of(refused)["param"] == param
    assert code is None or error_of(refused)["code"] == code
    assert (AuditEntry.objects.count(), BankLine.objects.get().state) == (before, "open")


def test_tenants_neither_see_nor_change_lines(as_acme: APIClient, signed_in: SignIn, world: World, line: UUID) -> None:
    owner = signed_in(world.acme.owner)
    assert as_acme.get("/api/v1/payments").status_code == owner.get("/api/v1/payments").status_code == 403
    assert assign(as_acme, line, invoice=INVOICE).status_code == 403
    assert post(as_acme, "import", HEADER.encode(), "text/csv").status_code == 403
    assert owner.get(PAGE).status_code == owner.post(PAGE, {"line": str(line), "reason": "x"}).status_code == 404
    assert (BankLine.objects.get().state, Invoice.objects.get().state) == ("open", "final")


def test_the_page_imports_a_file_after_a_preview(signed_in: SignIn, world: World, line: UUID) -> None:
    browser = signed_in(world.operator)
    text = f"{HEADER}DE89,B-2,2024-02-01,12.50,USD,<b>,Ünal\n".encode()

    def send(action: str, data: bytes) -> Any:
        return browser.post(PAGE, {"action": action, "file": SimpleUploadedFile("a.csv", data)})

    previewed = send("preview", text).content.decode()
    assert "Nothing was changed." in previewed and "$12.50" in previewed and "<b>" not in previewed
    assert BankLine.objects.count() == 1
    assert send("import", text).status_code == 200
    assert BankLine.objects.filter(bank_reference="B-2", booked_on=date(2024, 2, 1)).exists()
    refused = send("import", b"<!DOCTYPE a><Document/>")
    assert (refused.status_code, "Nothing was changed." in refused.content.decode()) == (400, True)


def test_the_page_assigns_and_dismisses(signed_in: SignIn, world: World, line: UUID) -> None:
    browser = signed_in(world.operator)
    for form, problem in (
        ({"action": "assign", "invoice": "ST-9"}, "There is no invoice"),
        ({"action": "assign", "invoice": INVOICE, "amount": "a"}, "is no amount"),
        ({"action": "dismiss", "reason": " "}, "it needs a reason"),
        ({"action": "dismiss", "line": "x"}, "a line of the queue"),
    ):
        refused = browser.post(PAGE, {"line": str(line)} | form)
        assert (refused.status_code, problem in refused.content.decode()) == (400, True)
    assert browser.post(PAGE, {"line": str(line), "action": "assign", "invoice": INVOICE}).status_code == 302
    assert Invoice.objects.get().state == "paid"
    assert "$1.00" in browser.get(f"{PAGE}?state=matched").content.decode()


def test_lines_of_a_large_statement_are_matched_by_a_run(
    as_operator: APIClient, signed_in: SignIn, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoice = Invoice.objects.get(id=billed.past_invoice(world.acme.tenant, world))
    text = HEADER + "".join(f"DE89,L-{n},{invoice.issued_on},1.00,USD,{invoice.number},\n" for n in (1, 2))
    monkeypatch.setattr(importing, "MOST_PAID_AT_ONCE", 1)
    assert post(as_operator, "import?dry_run=true", text.encode(), "text/csv").json()["run"] is None
    done = post(as_operator, "import", text.encode(), "text/csv")
    assert (done.status_code, [each["outcome"] for each in done.json()["lines"]]) == (202, ["matched", "waiting"])
    address = f"/api/v1/billing/runs/{done.json()['run']}"
    page = signed_in(world.operator).get(PAGE).content.decode()
    assert "Matching lines of bank statements" in page and "0 of 1 lines." in page
    assert not advancing.go_on()
    found = as_operator.get(address).json()
    assert (found["kind"], found["state"], found["total"], found["done"]) == ("match_payments", "finished", 1, 1)
    assert invoice.payments.count() == 2
    began = as_operator.post("/api/v1/billing/runs", {"kind": "match_payments", "month": "2026-03"}, format="json")
    assert (began.status_code, error_of(began)["param"]) == (400, "kind")
