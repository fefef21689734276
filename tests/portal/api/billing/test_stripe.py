"""Stripe in the API and on pages: operators connect and push, Stripe itself delivers, tenants read their document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db.models import Q, Sum
from django.test import Client
from rest_framework.test import APIClient

from billing import tasks
from billing.accounts import account, balance, credits, returns
from billing.errors import CreditRefused, InvoiceRefused
from billing.invoices import finalizing
from billing.models import CreditRequest, Invoice, Issuer, LedgerEntry, StripeConnection, StripeEvent, StripeInvoice
from billing.months import closing
from billing.stripe import comparison, events
from reconciliation import ledger
from tenants.audit import Actor
from tenants.models import Membership, Tenant, User
from tests.billing.invoices.conftest import month
from tests.billing.invoices.test_whole_month import receivable_pico
from tests.billing.stripe.conftest import KEY, SECRET, _server, acme, closed, connection, issuer, push, stripe
from tests.portal.conftest import error_of
from tests.stripe_stand_in import webhooks
from tests.stripe_stand_in.server import StandIn

__all__ = ["_server", "acme", "closed", "connection", "issuer", "stripe"]

pytestmark = pytest.mark.django_db

DOOR = "/api/v1/stripe/webhooks/berlin"
PAGE = "/portal/issuers/berlin/stripe/"


@pytest.fixture
def operator(db: None) -> User:
    """An operator."""
    return User.objects.create(username="olga", is_staff=True, is_superuser=True)


def signed_in(user: User) -> Client:
    """Return the user's browser."""
    client = Client()
    client.force_login(user)
    return client


def deliver(body: bytes, signature: str, door: str = DOOR) -> Any:
    """Post an event to the door."""
    headers = {"Stripe-Signature": signature} if signature else {}
    client: Any = APIClient()
    return client.generic("POST", door, body, content_type="application/json", headers=headers)


def test_stripe_delivers_at_the_door_and_the_invoice_is_paid(stripe: StandIn, closed: Tenant) -> None:
    done = push(closed)
    stripe.books.pay(done.external_id)

    def post(body: bytes, signature: str) -> int:
        answer = deliver(body, signature)
        assert answer.json().keys() == {"new"}
        return int(answer.status_code)

    assert set(webhooks.deliver(stripe.books.events, [SECRET], post, seed=7)) == {200}
    assert tasks.process_stripe() == len(stripe.books.events)
    assert Invoice.objects.get().state == "paid"


def test_the_door_opens_to_signatures_alone(connection: StripeConnection) -> None:
    body = json.dumps({"id": "evt_1"}).encode()
    for signature in ("", webhooks.signature(body, ["whsec_forged1234"])):
        refused = deliver(body, signature)
        assert (refused.status_code, error_of(refused)["code"]) == (400, "invalid_webhook")
    good = webhooks.signature(body, [SECRET])
    assert deliver(body, good, DOOR.replace("berlin", "paris")).status_code == 404
    large = b"x" * (events.MOST_BYTES + 1)
    assert deliver(large, webhooks.signature(large, [SECRET])).status_code == 400
    assert APIClient().get(DOOR).status_code == 405
    assert not StripeEvent.objects.exists()


def test_an_operator_connects_and_pushes_by_the_api(stripe: StandIn, acme: Tenant, operator: User) -> None:
    api = APIClient()
    api.force_login(operator)
    missing = api.get("/api/v1/issuers/berlin/stripe")
    assert (missing.status_code, error_of(missing)["code"]) == (409, "stripe_refused")
    made = api.patch("/api/v1/issuers/berlin/stripe", {"key": KEY, "webhook_secret": SECRET}, format="json")
    assert (made.status_code, made.json()["mode"], made.json()["key_hint"]) == (200, "test", "1234")
    assert KEY not in made.content.decode()
    wrong = api.patch("/api/v1/issuers/berlin/stripe", {"key": "sk_test_"}, format="json")
    assert "this is no secret key" in error_of(wrong)["message"]
    refused = api.post("/api/v1/stripe/invoices", {"tenant": "acme", "month": "2026-03"}, format="json")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "invoice_refused")


def test_a_month_is_pushed_on_the_page_and_the_tenant_reads_stripes_document(
    stripe: StandIn, closed: Tenant, operator: User
) -> None:
    browser = signed_in(operator)
    asked = browser.post(PAGE, {"action": "push", "tenant": "acme", "month": "2026-03"}, follow=True)
    assert "2026-03 of acme goes to Stripe within a minute." in asked.content.decode()
    assert stripe.books.of_kind("invoice") == []
    assert tasks.process_stripe() == 1
    done = StripeInvoice.objects.get()
    shown = browser.get(PAGE).content.decode()
    assert done.number in shown and done.pdf_url in shown
    member, stranger = (User.objects.create(username=name) for name in ("mia", "sam"))
    Membership.objects.create(user=member, tenant=closed, role="billing")
    Membership.objects.create(user=stranger, tenant=Tenant.objects.create(slug="globex", name="Globex"), role="owner")
    address = f"/portal/tenants/acme/invoices/{done.mirror_id}/"
    assert done.pdf_url in signed_in(member).get(address).content.decode()
    for user in (member, stranger):
        assert signed_in(user).get(PAGE).status_code == 404
        assert signed_in(user).post(PAGE, {"action": "void", "invoice": str(done.id), "reason": "x"}).status_code == 404
        api = APIClient()
        api.force_login(user)
        assert api.get("/api/v1/stripe/invoices").status_code == 403
    assert signed_in(stranger).get(address).status_code == 404
    voided = browser.post(PAGE, {"action": "void", "invoice": str(done.id), "reason": "wrong"}, follow=True)
    assert f"{done.number} is void." in voided.content.decode()
    assert Invoice.objects.get().state == "void"


def test_the_page_connects_keeps_no_secret_and_says_what_is_wrong(
    stripe: StandIn, issuer: Issuer, operator: User
) -> None:
    browser = signed_in(operator)
    assert "https" not in browser.get(PAGE).context["endpoint"].removeprefix("http")
    wrong = browser.post(PAGE, {"action": "connect", "key": "pk_test_x", "webhook_secret": "", "tax_rate": "txr_1"})
    assert wrong.status_code == 400
    text = wrong.content.decode()
    assert "this is no secret key" in text and "pk_test_x" not in text and "txr_1" in text
    done = browser.post(PAGE, {"action": "connect", "key": KEY, "webhook_secret": SECRET}, follow=True)
    assert "berlin is connected with acct_" in done.content.decode()
    assert KEY not in done.content.decode() and SECRET not in done.content.decode()
    assert "Stripe: test" in browser.get("/portal/issuers/").content.decode()


def test_what_differs_is_on_the_pages_and_in_the_api(stripe: StandIn, closed: Tenant, operator: User) -> None:
    done = push(closed)
    stripe.books.step(done.external_id, "void", {})
    comparison.run(done.connection)
    browser = signed_in(operator)
    text = f"{done.number} is void at Stripe and sent here."
    for page in (PAGE, "/portal/reconciliation/"):
        assert text in browser.get(page).content.decode()
    api = APIClient()
    api.force_login(operator)
    [finding] = api.get("/api/v1/stripe/findings").json()["findings"]
    assert (finding["issuer"], finding["kind"], finding["text"]) == ("berlin", "state", text)


def returned(tenant: Tenant) -> dict[str, int]:
    """Return what returns and their reversals posted, in cents by account, debit positive."""
    of_entries = Q(transaction__credit_entry__tenant_id=tenant.id)
    entries = LedgerEntry.objects.filter(of_entries | Q(transaction__kind=returns.POSTING))
    sums = entries.values_list("account__kind").annotate(total=Sum("amount_pico")).order_by("account__kind")
    return {kind: int(total) // 10**10 for kind, total in sums}


def follow(stripe: StandIn) -> None:
    """Let Stripe deliver every event again, and the role background process what is new."""
    for event in stripe.books.events:
        body = webhooks.body_of(event)
        deliver(body, webhooks.signature(body, [SECRET]))
    tasks.process_stripe()


def post_return(browser: Client, made: Any) -> str:
    """Press the button beside a refund or a dispute; return the page."""
    event = StripeEvent.objects.get(object_id=made["id"], type__endswith=".created")
    return browser.post(PAGE, {"action": "return", "event": str(event.id)}, follow=True).content.decode()


@pytest.mark.parametrize("end", ["won", "failed", "lost"])
def test_money_that_comes_back_takes_the_return_back(stripe: StandIn, closed: Tenant, operator: User, end: str) -> None:
    payment, browser = stripe.books.pay(push(closed).external_id), signed_in(operator)
    made = stripe.books.refund(payment, 100) if end == "failed" else stripe.books.dispute(payment)
    follow(stripe)
    assert "is posted." in post_return(browser, made)
    stripe.books.fail(made) if end == "failed" else stripe.books.close(made, end)
    follow(stripe)
    follow(stripe)
    page = browser.get(PAGE).content.decode()
    if end == "lost":
        assert returned(closed) == {"cash": -381, "prepaid": 0, "revenue": 320, "tax": 61}
        assert "It is lost at Stripe." in page and "taken back" not in page
        return
    assert returned(closed) == {"cash": 0, "prepaid": 0, "revenue": 0, "tax": 0}
    assert f"It is {end} at Stripe; its return was taken back." in page
    assert f"it is {end} at Stripe, so you have the money" in post_return(browser, made)
    assert ledger.verify().is_right


def test_a_dispute_that_is_won_before_its_return_is_posted_needs_none(
    stripe: StandIn, closed: Tenant, operator: User, settings: Any
) -> None:
    settings.CREDIT_APPROVAL_ABOVE = 1
    payment, browser = stripe.books.pay(push(closed).external_id), signed_in(operator)
    early, waiting = stripe.books.dispute(payment), stripe.books.dispute(payment)
    stripe.books.close(early, "won")
    follow(stripe)
    assert "so you have the money" in post_return(browser, early)
    assert "waits for a second person" in post_return(browser, waiting)
    stripe.books.close(waiting, "won")
    follow(stripe)
    assert not credits.pending(closed) and returned(closed) == {}
    posted = stripe.books.refund(payment, 381)
    follow(stripe)
    post_return(browser, posted)
    credits.approve(Actor(kind="user", name="eve"), closed, credits.pending(closed)[0].id)
    stripe.books.fail(posted)
    follow(stripe)
    assert "You have the money: a second person approves" in browser.get(PAGE).content.decode()
    credits.approve(Actor(kind="user", name="eve"), closed, credits.pending(closed)[0].id)
    assert set(returned(closed).values()) == {0}
    assert "pay the customer another way" in browser.get(PAGE).content.decode()


def test_a_refund_and_a_dispute_are_shown_with_what_finance_does_and_post_their_correction(
    stripe: StandIn, closed: Tenant, operator: User, settings: Any
) -> None:
    done = push(closed)
    payment = stripe.books.pay(done.external_id)
    stripe.books.refund(payment, 100)
    stripe.books.dispute(payment)
    stripe.books.credit_note({"invoice": done.external_id, "amount": "50"})
    for event in stripe.books.events:
        body = webhooks.body_of(event)
        deliver(body, webhooks.signature(body, [SECRET]))
    tasks.process_stripe()
    browser, before = signed_in(operator), receivable_pico(closed)
    shown = browser.get(PAGE).content.decode()
    for text in ("Refunded", "Disputed", "Credit note", "Post the return", "If it is lost, post the return"):
        assert text in shown, text
    refund = StripeEvent.objects.get(type="refund.created")
    form = {"action": "return", "event": str(refund.id)}
    assert f"{refund.object_id} is posted." in browser.post(PAGE, form, follow=True).content.decode()
    browser.post(PAGE, form, follow=True)  # twice is once
    # 1.00 of 3.81 with 0.61 of tax
    assert returned(closed) == {"cash": -100, "prepaid": 0, "revenue": 84, "tax": 16}
    assert (balance.of(closed.id).total_pico, receivable_pico(closed)) == (0, before)
    assert done.mirror is not None and Invoice.objects.get().state == "paid"

    settings.CREDIT_APPROVAL_ABOVE = 1
    dispute = StripeEvent.objects.get(type="charge.dispute.created")
    answer = browser.post(PAGE, {"action": "return", "event": str(dispute.id)}, follow=True).content.decode()
    assert "2.81 USD paid for" in answer and not credits.pending(closed)  # the refund was 1.00
    StripeEvent.objects.filter(id=dispute.id).update(amount=281)
    answer = browser.post(PAGE, {"action": "return", "event": str(dispute.id)}, follow=True).content.decode()
    assert f"{dispute.object_id} waits for a second person" in answer and "A second person approves it" in answer
    [asked] = credits.pending(closed)
    with pytest.raises(CreditRefused, match="a second person confirms it"):
        credits.approve(Actor(kind="user", name="olga"), closed, asked.id)
    credits.approve(Actor(kind="user", name="eve"), closed, asked.id)
    assert returned(closed) == {"cash": -381, "prepaid": 0, "revenue": 320, "tax": 61}
    again = credits.NewCredit(kind="return", amount_pico=10**12, reason="again", reference=dispute.object_id)
    with pytest.raises(CreditRefused, match="is posted already"):
        credits.submit(Actor(kind="user", name="ada"), closed, "by hand", again)
    CreditRequest.objects.filter(id=asked.id).update(state="rejected")
    answer = browser.post(PAGE, {"action": "return", "event": str(dispute.id)}, follow=True).content.decode()
    assert "its return was rejected" in answer and "post it with another key" in answer
    assert ledger.verify().is_right
    note = StripeEvent.objects.get(type="credit_note.created")
    assert browser.post(PAGE, {"action": "return", "event": str(note.id)}).status_code == 404
    assert signed_in(User.objects.create(username="tom")).post(PAGE, form).status_code in {403, 404}


def test_make_on_the_page_of_invoices_lets_stripe_make_its_own(stripe: StandIn, closed: Tenant, operator: User) -> None:
    browser = signed_in(operator)
    made = browser.post("/portal/invoices/", {"month": "2026-03", "tenant": "acme"}, follow=True).content.decode()
    assert "It goes to Stripe within a minute." in made
    assert tasks.process_stripe() == 1
    assert Invoice.objects.get().channel == "stripe"
    again = browser.post("/portal/invoices/", {"month": "2026-03", "tenant": "acme"}, follow=True).content.decode()
    assert "Made already. Nothing was changed." in again
    with pytest.raises(InvoiceRefused, match="hearth stripe push 2026-04 --tenant acme"):
        finalizing.finalize(Actor(kind="user", name="ada"), month(closed, 4))


def test_an_invoice_of_another_system_is_kept_by_page_and_api(acme: Tenant, operator: User) -> None:
    account.change(Actor(kind="user", name="ada"), acme, issuer="stripe")
    closing.close(Actor(kind="user", name="ada"), month(acme))
    browser, url = signed_in(operator), "/portal/invoices/"
    form = {
        "action": "mirror", "month": "2026-03", "tenant": "acme", "number": "HX-1", "external_id": "in_1",
        "total": "4.00", "tax": "0.61", "issued_on": "2026-04-02", "due_on": "2026-04-16",
    }  # fmt: skip
    refused = browser.post(url, form)
    assert (refused.status_code, "our lines are 3.20" in refused.content.decode()) == (400, True)
    assert 'value="HX-1"' in refused.content.decode()
    assert "There is no such tenant." in browser.post(url, form | {"tenant": "nobody"}).content.decode()
    assert "is no amount in USD" in browser.post(url, form | {"total": "3.811"}).content.decode()
    assert not Invoice.objects.exists()
    assert "HX-1 of acme is kept." in browser.post(url, form | {"total": "3.81"}, follow=True).content.decode()
    api: Any = APIClient()
    api.force_login(operator)
    external = {
        "external_id": "in_1", "number": "HX-1", "total_cents": 381, "tax_cents": 61, "issued_on": "2026-04-02",
        "due_on": "2026-04-16",
    }  # fmt: skip
    body = {"tenant": "acme", "month": "2026-03", "external": external}
    same = api.post("/api/v1/invoices", body, format="json")
    assert (same.status_code, same.json()["number"], same.json()["total_cents"]) == (200, "HX-1", 381)
    body["external"] = external | {"total_cents": 400}
    other = api.post("/api/v1/invoices", body, format="json")
    assert (other.status_code, error_of(other)["code"]) == (409, "invoice_refused")
    assert Invoice.objects.get().documents.count() == 0


def test_the_tenants_people_save_a_payment_method_and_nobody_else(
    stripe: StandIn, closed: Tenant, operator: User
) -> None:
    address, page = "/api/v1/tenants/acme/payment-method", "/portal/tenants/acme/billing/"
    users = {name: User.objects.create(username=name) for name in ("owner", "billing", "viewer", "stranger")}
    for role in ("owner", "billing", "viewer"):
        Membership.objects.create(user=users[role], tenant=closed, role=role)
    Membership.objects.create(
        user=users["stranger"], tenant=Tenant.objects.create(slug="globex", name="Globex"), role="owner"
    )
    for name, user, status in (
        ("operator", operator, 403), ("viewer", users["viewer"], 403), ("stranger", users["stranger"], 404),
    ):  # fmt: skip
        api: Any = APIClient()
        api.force_login(user)
        assert api.post(address).status_code == api.delete(address).status_code == status, name
        assert signed_in(user).post(f"{page[:-8]}payment-method/", {"action": "save"}).status_code == 404, name
    assert stripe.books.of_kind("customer") == []

    shown = signed_in(users["owner"]).post(f"{page[:-8]}payment-method/", {"action": "save"}).content.decode()
    session = stripe.books.of_kind("checkout.session")[0]
    assert f'href="{session["url"]}"' in shown and session["success_url"] == f"http://testserver{page}"
    stripe.books.save_method(session["id"])
    follow(stripe)
    account.change(Actor(kind="user", name="ada"), closed, charge_automatically=True)
    read = signed_in(users["billing"]).get(page).content.decode()
    assert "visa, ends in 4242, until 07/2031" in read
    assert f"Stripe charges each invoice of {Issuer.objects.get().legal_name} to it." in read
    api = APIClient()
    api.force_login(users["billing"])
    assert api.get(address).json()["text"] == "visa, ends in 4242, until 07/2031"
    assert api.post(address).json()["url"].startswith("https://checkout.stripe.invalid/")
    assert api.delete(address).status_code == 204
    assert api.get(address).json()["text"] is None
    assert "visa" not in signed_in(operator).get(page).content.decode()
