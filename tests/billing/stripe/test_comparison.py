"""Every day Stripe's books are compared with ours: what is missing, what is too much, and what differs."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from alerting import checks
from billing.errors import InvoiceRefused, StripeUnavailable
from billing.invoices import steps
from billing.models import Invoice, StripeComparison, StripeConnection, StripeFinding, StripeInvoice
from billing.stripe import api, comparison, pushing, reading
from billing.stripe.events import STRIPE
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA, month
from tests.billing.stripe.conftest import push
from tests.stripe_stand_in.server import StandIn

pytestmark = pytest.mark.django_db


def kinds(connection: StripeConnection) -> list[tuple[str, str]]:
    """Compare; return what differs as (kind, Stripe's id)."""
    done = comparison.run(connection)
    assert done.finished_at is not None
    return sorted(done.findings.values_list("kind", "external_id"))


def make_old() -> None:
    """Let every push be older than what a comparison leaves alone."""
    StripeInvoice.objects.update(created_at=timezone.now() - timedelta(hours=2))


def read(stripe: StandIn, done: StripeInvoice) -> None:
    """Bring ours to what Stripe has now, as an event does."""
    opened = api.open_api(done.connection)
    found = opened.get(f"invoices/{done.external_id}")
    reading.apply(STRIPE, done.id, found, reading.payments_of(opened, found))


def test_equal_books_have_no_findings(stripe: StandIn, closed: Tenant, connection: StripeConnection) -> None:
    assert kinds(connection) == []
    done = push(closed)
    assert kinds(connection) == []
    stripe.books.pay(done.external_id)
    read(stripe, done)
    assert kinds(connection) == []
    assert list(checks.reconciliation_gaps()) == []


def test_a_payment_that_stripe_holds_is_not_undone_and_one_that_is_undone_is_found_missing(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    payment = stripe.books.pay(done.external_id)
    read(stripe, done)
    mirror = Invoice.objects.get()
    with pytest.raises(InvoiceRefused, match="Refund it at Stripe"):
        steps.undo_recorded(ADA, mirror, f"Stripe {payment['id']}", "it bounced")
    steps.undo_payment(ADA, mirror.payments.get().id, "as before it was refused")
    assert ("payment", payment["id"]) in kinds(connection)


def test_each_difference_is_found(stripe: StandIn, closed: Tenant, connection: StripeConnection) -> None:
    done = push(closed)
    identity = done.external_id
    payment = stripe.books.pay(identity)
    assert kinds(connection) == sorted([("state", identity), ("payment", identity), ("payment", payment["id"])])
    [problem] = checks.reconciliation_gaps()
    assert problem.summary == "3 things differ between Stripe's account and berlin."
    read(stripe, done)
    assert kinds(connection) == []
    theirs = stripe.books.get("invoice", identity)
    theirs["total"] += 1
    assert kinds(connection) == [("amount", identity)]
    theirs["total"] -= 1
    stripe.books.credit_note({"invoice": identity, "amount": "81"})
    assert kinds(connection) == [("amount", f"{identity}:credit")]
    theirs["post_payment_credit_notes_amount"] = 0
    other = stripe.books.invoice({"customer": theirs["customer"], "currency": "usd"})
    assert kinds(connection) == []  # a draft of somebody else's
    stripe.books.step(other["id"], "finalize", {})
    assert kinds(connection) == [("extra", other["id"])]
    del stripe.books.objects[other["id"]]
    del stripe.books.objects[identity]
    del stripe.books.objects[payment["id"]]
    assert kinds(connection) == []  # it may be so new that Stripe's list did not have it
    make_old()
    assert kinds(connection) == [("missing", identity)]


def test_a_push_that_was_not_ended_and_a_void_here_alone_are_found(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    assert kinds(connection) == []
    make_old()
    assert kinds(connection) == [("missing", "")]
    done = pushing.run(ADA, begun)
    assert done.mirror is not None
    with pytest.raises(
        InvoiceRefused, match=r"Stripe issued and collects it\. Void it there and here: hearth stripe void 2026-03"
    ):
        steps.void(ADA, done.mirror, "only here")
    steps.void(ADA, done.mirror, "only here", is_void_at_stripe=True)
    assert kinds(connection) == [("state", done.external_id)]


def test_more_than_a_page_is_read_and_one_that_was_stopped_goes_on(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    push(closed)
    customer = stripe.books.of_kind("customer")[0]["id"]
    for _ in range(250):
        made = stripe.books.invoice({"customer": customer, "currency": "usd"})
        stripe.books.step(made["id"], "finalize", {})
    stripe.requests_per_second = 0
    with pytest.raises(StripeUnavailable, match="it asks for fewer requests"):
        comparison.run(connection)
    stripe.requests_per_second = None
    stripe.from_then_on = (len(stripe.requests) + 2, "cut")
    with pytest.raises(StripeUnavailable):
        comparison.run(connection)
    stripe.from_then_on = None
    stopped = StripeComparison.objects.get()
    assert (stopped.invoices, stopped.finished_at, stopped.problem) == (200, None, "Stripe: it did not answer")
    before = len(stripe.requests)
    assert comparison.run_due(timezone.now()) == 250
    assert stripe.requests[before:] == ["GET invoices", "GET invoice_payments"]
    done = StripeComparison.objects.get()
    assert (done.id, done.invoices, done.problem) == (stopped.id, 251, "")
    assert StripeFinding.objects.filter(kind="extra").count() == 250
    assert comparison.run_due(timezone.now()) == 0 and StripeComparison.objects.count() == 1
    comparison.run_due(timezone.now() + timedelta(days=1))
    assert StripeComparison.objects.count() == 2


def test_requests_wait_where_stripe_asks_for_it(
    stripe: StandIn, connection: StripeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        stripe.requests_per_second = None

    monkeypatch.setattr(api, "WAITS_SECONDS", (1.0, 2.0))
    monkeypatch.setattr(time, "sleep", sleep)
    stripe.requests_per_second = 0
    assert kinds(connection) == []
    assert waits == [1.0]
