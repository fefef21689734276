"""A closed month becomes one invoice of Stripe, whatever fails on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing as closing_of
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db import connection as database
from django.utils import timezone

from billing.accounts import account, credits
from billing.accounts.credits import NewCredit
from billing.errors import InvoiceRefused, NotReopened, StripeRefused, StripeUnavailable
from billing.invoices import finalizing, mirroring, registry, steps
from billing.invoices.content import Content, Line
from billing.invoices.mirroring import External
from billing.models import (
    BillingMonth,
    Invoice,
    InvoicePayment,
    Issuer,
    StripeConnection,
    StripeCustomer,
    StripeInvoice,
)
from billing.months import closing, reopening
from billing.pricing.amounts import pico_per_minor
from billing.stripe import comparison, connections, customers, events, exclusive, lines, pushing, reading
from billing.stripe.api import Api
from billing.stripe.connections import Wanted
from reconciliation import invoices as reconciliation
from reconciliation.models import BookGap
from tenants.ids import TenantId
from tenants.models import AuditEntry, Tenant
from tests.billing.invoices.conftest import ADA, TOKENS, month
from tests.billing.stripe.conftest import KEY, SECRET, push
from tests.billing.usage_records import row_at, store
from tests.stripe_stand_in import webhooks
from tests.stripe_stand_in.server import Failure, StandIn

PICO_PER_CENT = pico_per_minor("USD")

pytestmark = pytest.mark.django_db

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def invoices(stripe: StandIn) -> list[dict[str, Any]]:
    """Return the stand-in's invoices."""
    return stripe.books.of_kind("invoice")


def test_a_closed_month_becomes_one_invoice_of_stripe_whose_lines_are_ours(stripe: StandIn, closed: Tenant) -> None:
    done = push(closed)
    (theirs,) = invoices(stripe)
    items = [(each["description"], each["amount"]) for each in stripe.books.lines(theirs)]
    ours = finalizing.content_of(month(closed), Issuer.objects.get(), timezone.now())
    assert items == [*((each.description, each.amount_cents) for each in ours.lines), ("Tax, 19 %", 61)]
    assert (theirs["status"], theirs["total"], theirs["auto_advance"], theirs["currency"]) == (
        "open",
        381,
        False,
        "usd",
    )
    assert theirs["custom_fields"] == [{"name": "Tax id", "value": "DE999999999"}]
    (customer,) = stripe.books.of_kind("customer")
    assert (customer["email"], customer["address"]["country"]) == ("pay@acme.example", "DE")
    mirror = done.mirror
    assert mirror is not None
    assert (mirror.number, mirror.total_cents, mirror.tax_cents, mirror.state) == (theirs["number"], 381, 61, "sent")
    assert (mirror.sequence, mirror.documents.count(), done.pdf_url) == (None, 0, theirs["invoice_pdf"])
    assert "POST invoices/{}/send".format(theirs["id"]) in stripe.requests
    before = len(stripe.requests)
    assert push(closed) == done
    assert not [each for each in stripe.requests[before:] if each.startswith("POST") and "customers/" not in each]
    assert reconciliation.compare(timezone.now(), since=LONG_AGO) == 1 and not BookGap.objects.exists()


@pytest.mark.parametrize("failure", ["lost", pytest.param("cut", marks=pytest.mark.long)])
def test_a_push_that_dies_after_any_call_and_is_repeated_makes_one_invoice(
    stripe: StandIn, closed: Tenant, failure: Failure
) -> None:
    push_in_full = calls_of_a_push(stripe, closed)
    for at in range(push_in_full):
        with undone(stripe):
            begun, _ = pushing.begin(ADA, month(closed))
            stripe.from_then_on = (len(stripe.requests) + at, failure)
            with suppress(StripeUnavailable):
                pushing.run(ADA, begun)
            stripe.from_then_on = None
            stripe.answers.clear()  # a repeat after the 24 hours of idempotency keys
            done = pushing.run(ADA, pushing.begin(ADA, month(closed))[0])
            check_one(stripe, done)


@pytest.mark.long
@pytest.mark.parametrize("failure", ["500", "500 after"])
def test_a_call_that_stripe_answers_with_500_is_made_once(stripe: StandIn, closed: Tenant, failure: Failure) -> None:
    for at in range(calls_of_a_push(stripe, closed)):
        with undone(stripe):
            stripe.failures = {len(stripe.requests) + at: failure}
            with pytest.raises(StripeUnavailable):
                push(closed)
            stripe.failures = {}
            check_one(stripe, push(closed))


def calls_of_a_push(stripe: StandIn, tenant: Tenant) -> int:
    """Return how many requests a push makes, and undo it."""
    with undone(stripe):
        stripe.requests.clear()
        push(tenant)
        return len(stripe.requests)


class undone:
    """Undo in both systems what the block does."""

    def __init__(self, stripe: StandIn) -> None:
        self.stripe, self.atomic = stripe, transaction.atomic()

    def __enter__(self) -> None:
        """Begin."""
        self.atomic.__enter__()

    def __exit__(self, kind: Any, *rest: Any) -> None:
        """Undo."""
        account_of = self.stripe.books.account
        self.stripe.books.__init__()  # type: ignore[misc]
        self.stripe.books.account = account_of
        self.stripe.requests.clear()
        self.stripe.answers.clear()
        if kind is None:
            transaction.set_rollback(True)
        self.atomic.__exit__(kind, *rest)


def check_one(stripe: StandIn, done: StripeInvoice) -> None:
    """Require one customer, one open invoice with each line once, and one mirror of it."""
    (theirs,) = invoices(stripe)
    assert (theirs["status"], theirs["total"]) == ("open", 381)
    assert len(stripe.books.lines(theirs)) == len(done.lines)
    assert len(stripe.books.of_kind("customer")) == StripeCustomer.objects.count() == 1
    assert done.mirror is not None and Invoice.objects.get() == done.mirror
    assert (done.external_id, done.mirror.external_id, done.problem) == (theirs["id"], theirs["id"], "")
    assert [each["type"] for each in stripe.books.events].count("invoice.finalized") == 1


def test_one_legal_document_for_a_month_whoever_issues_it(stripe: StandIn, closed: Tenant) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    today = timezone.now().date()
    by_hand = External(external_id="in_2", number="X-2", tax_cents=61, total_cents=381, issued_on=today, due_on=today)
    with pytest.raises(InvoiceRefused, match=r"it goes to Stripe\. Void that first: hearth stripe void 2026-03"):
        mirroring.record(ADA, month(closed), by_hand)
    account.change(ADA, closed, issuer="hearth")
    with pytest.raises(IntegrityError, match="one legal document per month"), transaction.atomic():
        finalizing.finalize(ADA, month(closed))
    pushing.void(ADA, begun, "Hearth issues it")
    made, _ = finalizing.finalize(ADA, month(closed))
    account.change(ADA, closed, issuer="stripe")
    with pytest.raises(InvoiceRefused, match=f"{made.number} is its invoice already"):
        pushing.begin(ADA, month(closed))
    row = StripeInvoice.objects.get()
    row.pk, row.ended_at, row._state.adding = None, None, True
    with pytest.raises(IntegrityError, match="one legal document per month"), transaction.atomic():
        row.save(force_insert=True)
    steps.void(ADA, made, "Stripe issues it")
    done = push(closed)
    assert [each.state for each in Invoice.objects.order_by("id")] == ["void", "sent"]
    with pytest.raises(InvoiceRefused, match="its invoices come from stripe"):
        finalizing.finalize(ADA, month(closed, 4))
    given = External(
        external_id="in_other", number="X-1", tax_cents=61, total_cents=381,
        issued_on=timezone.now().date(), due_on=timezone.now().date(),
    )  # fmt: skip
    with pytest.raises(InvoiceRefused, match="it is the invoice of 2026-03 already"):
        mirroring.record(ADA, month(closed), given)
    assert (
        "Replaces" not in done.heading["description"]
        and f"replaces invoice {made.number}" in done.heading["description"]
    )


def test_an_account_of_hearths_gets_no_invoice_of_stripe(stripe: StandIn, acme: Tenant, connection: object) -> None:
    closing.close(ADA, month(acme))
    with pytest.raises(InvoiceRefused, match="its invoices come from hearth"):
        push(acme)
    account.change(ADA, acme, issuer="stripe")
    assert push(acme).mirror is not None
    assert len(invoices(stripe)) == 1


def test_an_open_month_and_an_issuer_without_stripe_are_refused(stripe: StandIn, acme: Tenant) -> None:
    account.change(ADA, acme, issuer="stripe")
    with pytest.raises(StripeRefused, match="berlin: it is not connected with Stripe"):
        push(acme)
    connections.connect(ADA, "berlin", Wanted(key=KEY))
    with pytest.raises(InvoiceRefused, match="the month is open"):
        push(acme)
    assert not invoices(stripe)


def test_credit_is_taken_from_what_is_due_at_stripe(stripe: StandIn, acme: Tenant, connection: object) -> None:
    account.change(ADA, acme, issuer="stripe")
    credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=100 * PICO_PER_CENT))
    closing.close(ADA, month(acme))
    done = push(acme)
    (theirs,) = invoices(stripe)
    assert (theirs["total"], theirs["amount_due"]) == (381, 281)
    assert done.mirror is not None and registry.open_cents(done.mirror) == 281
    assert stripe.books.of_kind("customer")[0]["balance"] == 0


def test_a_balance_that_is_not_ours_stops_the_push_before_it_is_a_document(stripe: StandIn, closed: Tenant) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    stripe.from_then_on = (5, "cut")
    with pytest.raises(StripeUnavailable):
        pushing.run(ADA, begun)
    stripe.from_then_on = None
    stripe.books.of_kind("customer")[0]["balance"] = -500
    with pytest.raises(StripeRefused, match=r"the customer's balance at Stripe is -5\.00 USD"):
        push(closed)
    assert [each["status"] for each in invoices(stripe)] == ["draft"]
    assert not Invoice.objects.exists()
    assert "balance at Stripe" in StripeInvoice.objects.get().problem
    pushing.void(ADA, begun, "another way")
    assert (invoices(stripe), StripeInvoice.objects.get().ended_at is None) == ([], False)


def test_a_draft_that_was_deleted_at_stripe_is_made_again(stripe: StandIn, closed: Tenant) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    stripe.from_then_on = (6, "cut")
    with pytest.raises(StripeUnavailable):
        pushing.run(ADA, begun)
    stripe.from_then_on = None
    [draft] = invoices(stripe)
    stripe.books.delete(draft["id"])
    check_one(stripe, push(closed))
    assert invoices(stripe)[0]["id"] != draft["id"]


def test_stripe_computes_the_tax_by_its_own_rate(stripe: StandIn, closed: Tenant) -> None:
    rate = stripe.books.make("tax_rate", percentage=19.0, inclusive=False, active=True)
    other = stripe.books.make("tax_rate", percentage=7.0, inclusive=False, active=True)
    included = stripe.books.make("tax_rate", percentage=19.0, inclusive=True, active=True)
    with pytest.raises(StripeRefused, match="its amounts include the tax"):
        connections.connect(ADA, None, Wanted(tax_rate=included["id"]))
    connections.connect(ADA, None, Wanted(tax_rate=other["id"]))
    with pytest.raises(StripeRefused, match=r"is 7\.0 %, the account's is 19 %"):
        push(closed)
    pushing.void(ADA, StripeInvoice.objects.get(), "wrong rate")
    connections.connect(ADA, None, Wanted(tax_rate=rate["id"]))
    done = push(closed)
    (theirs,) = invoices(stripe)
    assert (theirs["total_excluding_tax"], theirs["total"], len(stripe.books.lines(theirs))) == (
        320,
        381,
        len(done.lines),
    )
    assert done.mirror is not None and done.mirror.tax_cents == 61


def test_a_void_at_stripe_and_here_are_one(stripe: StandIn, closed: Tenant) -> None:
    done = push(closed)
    assert done.mirror is not None
    pushing.void(ADA, done, "wrong address")
    done.mirror.refresh_from_db()
    assert (invoices(stripe)[0]["status"], done.mirror.state, done.mirror.void_reason) == (
        "void",
        "void",
        "wrong address",
    )
    again = push(closed)
    assert again != done and len(invoices(stripe)) == 2
    stripe.books.pay(again.external_id)
    with pytest.raises(StripeRefused, match="it is paid at Stripe"):
        pushing.void(ADA, again, "too late")


def and_then_voided(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step of a push during which somebody voids it."""

    def run(*given: Any) -> Any:
        done = step(*given)
        reading.end(ADA, StripeInvoice.objects.get(ended_at=None).id, "meanwhile")
        return done

    return run


def test_a_push_that_was_voided_meanwhile_makes_no_document(
    stripe: StandIn, closed: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    stale = StripeInvoice.objects.get()
    pushing.void(ADA, begun, "not this month")
    assert pushing.run(ADA, stale).ended_at is not None
    assert not stripe.books.objects
    steps: tuple[tuple[Any, str, list[str]], ...] = (
        (customers, "ensure", []),
        (pushing, "_check_balance", ["draft"]),
    )
    for module, step, statuses in steps:
        with monkeypatch.context() as patch:
            patch.setattr(module, step, and_then_voided(getattr(module, step)))
            with pytest.raises(StripeRefused, match="it was voided here meanwhile"):
                push(closed)
        assert [each["status"] for each in invoices(stripe)] == statuses
    ended = StripeInvoice.objects.latest("id")
    found = stripe.books.step(invoices(stripe)[0]["id"], "finalize", {})
    with pytest.raises(StripeRefused, match="it was ended here, and is open at Stripe"):
        reading.apply(ADA, ended.id, found, [])
    assert not Invoice.objects.exists()


def test_a_draft_that_our_books_could_not_have_stays_a_draft(
    stripe: StandIn, closed: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = pushing._check_balance

    def reopen(*given: Any) -> None:
        check(*given)
        now = timezone.now()
        BillingMonth.objects.update(reopen_reason="usage", reopen_requested_by="ada", reopen_requested_at=now)
        BillingMonth.objects.update(reopened_by="eve", reopened_at=now)

    with monkeypatch.context() as patch, transaction.atomic():
        patch.setattr(pushing, "_check_balance", reopen)
        with pytest.raises(
            StripeRefused, match=r"2026-03 was reopened\. Void it: hearth stripe void 2026-03 --tenant acme"
        ):
            push(closed)
        transaction.set_rollback(True)
    assert [each["status"] for each in invoices(stripe)] == ["draft"]
    stripe.books.objects.clear()
    stripe.answers.clear()
    begun, _ = pushing.begin(ADA, month(closed))
    StripeInvoice.objects.update(net_cents=begun.net_cents + 1, tax_cents=begun.tax_cents - 1)
    with pytest.raises(StripeRefused, match=r"it says 3\.21 without tax, our lines are 3\.20 now"):
        pushing.run(ADA, begun)
    assert [each["status"] for each in invoices(stripe)] == ["draft"] and not Invoice.objects.exists()


def test_a_month_that_is_about_to_be_stripes_invoice_stays_closed(stripe: StandIn, closed: Tenant) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    with pytest.raises(NotReopened, match="void it first: hearth stripe void 2026-03 --tenant acme"):
        reopening.request(ADA, month(closed), "more usage")
    pushing.void(ADA, begun, "more usage")
    assert reopening.request(ADA, month(closed), "more usage").reopen_requested_at is not None


def test_a_document_of_stripe_is_kept_as_one_of_stripe_after_a_change_of_the_issuer(
    stripe: StandIn, closed: Tenant
) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    account.change(ADA, closed, issuer="hearth")
    done = pushing.run(ADA, begun)
    assert done.mirror is not None and done.mirror.channel == "stripe"


def test_what_was_paid_while_a_push_had_stopped_is_recorded_by_the_next(stripe: StandIn, closed: Tenant) -> None:
    done = push(closed)
    stripe.books.pay(done.external_id)
    again = push(closed)
    assert again.mirror is not None and again.mirror.state == "paid"
    assert InvoicePayment.objects.get().amount_cents == 381
    push(closed)
    assert InvoicePayment.objects.count() == 1


def many(count: int, cents: int = 1, tax_cents: int = 3) -> Content:
    """Return a content with so many lines."""
    from datetime import date

    from billing.invoices.content import Bank, Party

    found = tuple(Line(description=f"line {at}", amount_pico=0, amount_cents=cents + at % 7 - 3) for at in range(count))
    return Content(
        kind="invoice", number="", seller=Party(name="a"), buyer=Party(name="b"), bank=Bank(), month="2026-03",
        period_start=date(2026, 3, 1), period_end=date(2026, 3, 31), timezone="UTC", issued_on=date(2026, 4, 1),
        due_on=date(2026, 4, 1), payment_terms_days=0, currency="USD", lines=found, exact_pico=0,
        net_cents=sum(each.amount_cents for each in found), tax_rate_bp=1900, tax_cents=tax_cents,
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 249, 250, 251, 1000])
@pytest.mark.parametrize("by_stripe", [True, False])
def test_lines_beyond_stripes_limit_become_one_and_the_sum_is_exact(count: int, by_stripe: bool) -> None:
    content = many(count)
    items = lines.items(content, taxed_by_stripe=by_stripe)
    assert len(items) == min(250, count + (0 if by_stripe else 1))
    assert sum(each["cents"] for each in items) == content.net_cents + (0 if by_stripe else content.tax_cents)


def test_keys_are_sealed_and_never_in_the_audit_log(connection: StripeConnection) -> None:
    assert (connection.key_hint, connection.is_live, KEY.encode() in bytes(connection.sealed_key)) == (
        "1234",
        False,
        False,
    )
    assert KEY not in str(list(AuditEntry.objects.values_list("before", "after")))
    with pytest.raises(StripeRefused, match="it does not know the secret key"):
        connections.connect(ADA, None, Wanted(key="sk_live_notOfTheStandIn"))
    with pytest.raises(StripeRefused, match="this is no secret key"):
        connections.connect(ADA, None, Wanted(key="pk_test_123456789"))


def test_an_issuer_with_invoices_stays_at_its_account(stripe: StandIn, closed: Tenant) -> None:
    push(closed)
    connections.connect(ADA, None, Wanted(key=KEY + "rotated"))
    stripe.books.account["id"] = "acct_other"
    with pytest.raises(StripeRefused, match="this key is of another account or mode"):
        connections.connect(ADA, None, Wanted(key=KEY))


def test_a_void_invoice_leaves_its_credit_to_none_and_the_next_one_has_its_own(
    stripe: StandIn, acme: Tenant, connection: object
) -> None:
    account.change(ADA, acme, issuer="stripe")
    credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=100 * PICO_PER_CENT))
    closing.close(ADA, month(acme))
    first = push(acme)
    assert stripe.books.of_kind("customer")[0]["balance"] == 0
    pushing.void(ADA, first, "another address")
    assert stripe.books.of_kind("customer")[0]["balance"] == -100  # Stripe gives it back to the customer
    second = push(acme)
    assert second.mirror is not None and registry.open_cents(second.mirror) == 281
    assert [each["amount_due"] for each in invoices(stripe)] == [281, 281]
    assert stripe.books.of_kind("customer")[0]["balance"] == 0
    pushing.void(ADA, second, "once more")
    third = push(acme)
    assert third.mirror is not None and registry.open_cents(third.mirror) == 281


def test_a_month_whose_credit_waits_at_stripe_comes_before_the_next_one(
    stripe: StandIn, acme: Tenant, connection: object
) -> None:
    account.change(ADA, acme, issuer="stripe")
    store(row_at(datetime(2026, 4, 16, tzinfo=UTC), TenantId(acme.id), tokens=TOKENS))
    credits.submit(ADA, acme, "payment-1", NewCredit(kind="top_up", amount_pico=500 * PICO_PER_CENT))
    for number in (3, 4):
        closing.close(ADA, month(acme, number))
    march, _ = pushing.begin(ADA, month(acme, 3))
    count = len(march.lines)
    stripe.from_then_on = (len(stripe.requests) + 9 + count, "cut")  # after the credit, before it is final
    with pytest.raises(StripeUnavailable):
        pushing.run(ADA, march)
    stripe.from_then_on = None
    [customer] = stripe.books.of_kind("customer")
    assert (customer["balance"], invoices(stripe)[0]["status"]) == (-320, "draft")
    with pytest.raises(StripeRefused, match="the credit of 2026-03 is in the customer's balance"):
        push(acme, 4)
    pushing.run(ADA, march)
    push(acme, 4)
    assert [(each["status"], each["amount_due"]) for each in invoices(stripe)] == [("open", 201), ("open", 61)]
    assert customer["balance"] == 0


def test_two_processes_do_not_push_the_same_tenant_at_once(stripe: StandIn, closed: Tenant) -> None:
    begun, _ = pushing.begin(ADA, month(closed))
    other = database.copy()
    values = (exclusive.LOCK, str(closed.id))
    with closing_of(other), other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", values)
        with pytest.raises(StripeUnavailable, match="another process works on this tenant's invoices"):
            pushing.run(ADA, begun)
        with pytest.raises(StripeUnavailable, match="another process works on this tenant's invoices"):
            pushing.void(ADA, begun, "why")
        assert (pushing.resume(timezone.now()), invoices(stripe)) == (0, [])
        cursor.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", values)
    assert pushing.run(ADA, begun).mirror is not None


def test_no_transaction_is_open_while_stripe_answers(
    stripe: StandIn, closed: Tenant, connection: StripeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[int] = []
    call = Api._call

    def watched(self: Api, *args: Any) -> Any:
        blocks.append(len(database.savepoint_ids))
        return call(self, *args)

    monkeypatch.setattr(Api, "_call", watched)
    done = push(closed)
    stripe.books.pay(done.external_id)
    found = stripe.books.get("invoice", done.external_id)
    body = webhooks.body_of(stripe.books.emit("invoice.paid", found))
    events.receive(connection, body, webhooks.signature(body, [SECRET]))
    assert events.process() == 1
    comparison.run(connection)
    pushing.begin(ADA, month(closed))
    assert set(blocks) == {len(database.savepoint_ids)} and len(blocks) > 10
    assert done.mirror is not None
    done.mirror.refresh_from_db()
    assert done.mirror.state == "paid"
