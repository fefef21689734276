"""Events of Stripe: only signed ones, each once, in any order, and never what they say but what is true now."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing import tasks
from billing.errors import BadWebhook, InvoiceRefused
from billing.invoices import issuers, mirroring, steps
from billing.models import Invoice, InvoicePayment, PaymentFailure, StripeConnection, StripeEvent, StripeInvoice
from billing.stripe import connections, events, pushing
from billing.stripe.connections import Wanted
from notifications.webhooks import sealing
from tenants.models import Tenant
from tests.billing.invoices.conftest import ADA
from tests.billing.invoices.test_issuers import PARIS
from tests.billing.stripe.conftest import KEY, SECRET, push
from tests.stripe_stand_in import webhooks
from tests.stripe_stand_in.books import Object
from tests.stripe_stand_in.server import StandIn

pytestmark = pytest.mark.django_db


def poster(connection: StripeConnection) -> Callable[[bytes, str], int]:
    """Return what delivers to the connection's door and returns a status."""

    def post(body: bytes, signature: str) -> int:
        try:
            events.receive(connection, body, signature)
        except BadWebhook:
            return 400
        return 200

    return post


def mirror() -> Invoice:
    return Invoice.objects.get()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_events_in_any_order_and_twice_pay_an_invoice_once(
    stripe: StandIn, closed: Tenant, connection: StripeConnection, seed: int | None
) -> None:
    done = push(closed)
    found = stripe.books.get("invoice", done.external_id)
    found["attempt_count"] = 1
    stripe.books.emit("invoice.payment_failed", found)
    stripe.books.emit("invoice.payment_failed", found)
    stripe.books.pay(done.external_id, 100)
    stripe.books.pay(done.external_id)
    statuses = webhooks.deliver(stripe.books.events, [SECRET], poster(connection), seed=seed)
    assert set(statuses) == {200}
    assert StripeEvent.objects.count() == len(stripe.books.events)
    assert events.process() == len(stripe.books.events)
    assert events.process() == 0
    assert sorted(InvoicePayment.objects.values_list("amount_cents", flat=True)) == [100, 281]
    assert mirror().state == "paid"


def test_failed_payments_are_noted_once_for_each_attempt(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    found = stripe.books.get("invoice", done.external_id)
    for attempt in (1, 2):
        found["attempt_count"] = attempt
        stripe.books.emit("invoice.payment_failed", found)
        stripe.books.emit("invoice.payment_failed", found)
    webhooks.deliver(stripe.books.events, [SECRET], poster(connection), seed=5)
    events.process()
    assert sorted(PaymentFailure.objects.values_list("reference", flat=True)) == [
        f"Stripe {done.external_id} attempt {attempt}" for attempt in (1, 2)
    ]
    assert mirror().state == "sent"


def test_what_happens_at_stripe_happens_here(stripe: StandIn, closed: Tenant, connection: StripeConnection) -> None:
    done = push(closed)
    stripe.books.step(done.external_id, "mark_uncollectible", {})
    deliver(stripe, connection)
    done.refresh_from_db()
    assert (done.status, mirror().state) == ("uncollectible", "sent")
    stripe.books.step(done.external_id, "void", {})
    deliver(stripe, connection)
    done.refresh_from_db()
    assert (done.status, done.ended_at is None, mirror().state) == ("void", False, "void")
    assert mirror().void_reason == "Voided at Stripe"


def deliver(stripe: StandIn, connection: StripeConnection) -> None:
    """Deliver every event again, and process what is new."""
    webhooks.deliver(stripe.books.events, [SECRET], poster(connection))
    events.process()


def test_an_event_of_an_earlier_state_changes_nothing(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    stripe.books.pay(done.external_id)
    deliver(stripe, connection)
    stale = stripe.books.emit("invoice.updated", stripe.books.get("invoice", done.external_id) | {"status": "open"})
    webhooks.deliver([stale], [SECRET], poster(connection))
    events.process()
    assert (mirror().state, InvoicePayment.objects.count()) == ("paid", 1)


def test_refunds_disputes_and_credit_notes_are_recorded(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    for kind, about in {
        "refund.created": {"id": "re_1", "object": "refund", "amount": 381, "currency": "usd", "charge": "ch_1"},
        "charge.dispute.created": {"id": "dp_1", "object": "dispute", "amount": 381, "currency": "usd"},
        "credit_note.created": {
            "id": "cn_1", "object": "credit_note", "amount": 81, "currency": "usd", "invoice": done.external_id,
        },
    }.items():  # fmt: skip
        stripe.books.emit(kind, about)
    deliver(stripe, connection)
    rows = StripeEvent.objects.filter(amount__gt=0).order_by("type").values_list("object_id", "amount", "currency")
    assert list(rows) == [("dp_1", 381, "USD"), ("cn_1", 81, "USD"), ("re_1", 381, "USD")]
    assert not StripeEvent.objects.filter(processed_at=None).exists()


def event(**changes: Any) -> Object:
    """Return an event about an invoice that nobody has."""
    about = {"id": "in_unknown", "object": "invoice"}
    return {
        "id": "evt_1", "object": "event", "type": "invoice.paid", "created": int(time.time()), "livemode": False,
        "data": {"object": about},
    } | changes  # fmt: skip


def signed(found: Object, secret: str = SECRET, at: float | None = None) -> tuple[bytes, str]:
    """Return an event's body and signature."""
    body = webhooks.body_of(found)
    return body, webhooks.signature(body, [secret], at)


def test_a_forged_an_altered_and_an_old_event_are_refused(connection: StripeConnection) -> None:
    body, good = signed(event())
    old = time.time() - events.TOLERANCE_SECONDS - 5
    wrong = [
        (body, ""),
        (body, "t=,v1="),
        (body, "t=x,v1=y"),
        (body, "nonsense"),
        (body, good.replace("v1=", "v0=")),
        (body.replace(b"in_unknown", b"in_another"), good),
        signed(event(), "whsec_forged1234"),
        signed(event(), at=old),
        (b"\xff\xfe", webhooks.signature(b"\xff\xfe", [SECRET])),
        (b"[]", webhooks.signature(b"[]", [SECRET])),
        (b"{}", webhooks.signature(b"{}", [SECRET])),
        (b'{"id": ["a"]}', webhooks.signature(b'{"id": ["a"]}', [SECRET])),
        signed(event(id="evt_" + "x" * 300)),
        signed(event(data={"object": []})),
        signed(event(livemode=True)),
        signed(event(filler="x" * events.MOST_BYTES)),
    ]
    for each, signature in wrong:
        with pytest.raises(BadWebhook):
            events.receive(connection, each, signature)
    assert not StripeEvent.objects.exists()
    assert events.receive(connection, body, good) is True
    assert events.receive(connection, body, good) is False  # replayed
    assert events.receive(connection, *signed(event())) is False  # delivered again, signed anew
    assert StripeEvent.objects.count() == 1


def test_two_secrets_are_valid_while_one_replaces_the_other(connection: StripeConnection) -> None:
    second, third = "whsec_secondSecret12", "whsec_thirdSecret123"
    connections.connect(ADA, None, Wanted(webhook_secret=second))
    for at, secret in enumerate((SECRET, second)):
        assert events.receive(connection, *signed(event(id=f"evt_a{at}"), secret))
    body = webhooks.body_of(event(id="evt_both"))
    assert events.receive(connection, body, webhooks.signature(body, ["whsec_nobodys1234", second]))
    later = timezone.now() + connections.OVERLAP + timedelta(seconds=1)
    assert connections.webhook_secrets(connection, later) == [second]
    connections.connect(ADA, None, Wanted(webhook_secret=third))
    assert connections.webhook_secrets(connection, timezone.now()) == [third, second]
    with pytest.raises(BadWebhook):
        events.receive(connection, *signed(event(id="evt_b")))


def test_an_event_about_another_issuers_invoice_touches_nothing(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    stripe.books.pay(done.external_id)
    issuers.set_issuer(ADA, "paris", PARIS)
    stripe.books.account["id"] = "acct_paris"
    paris = connections.connect(ADA, "paris", Wanted(key=KEY, webhook_secret="whsec_ofParis12345"))
    about = {"id": done.external_id, "object": "invoice", "status": "void"}
    found = event(data={"object": about})
    with pytest.raises(BadWebhook):
        events.receive(connection, *signed(found, "whsec_ofParis12345"))
    assert events.receive(paris, *signed(found, "whsec_ofParis12345"))
    events.process()
    assert StripeEvent.objects.get().outcome == "Hearth has no such invoice."
    assert mirror().state == "sent"


def test_an_event_waits_while_stripe_is_unavailable(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    stripe.books.pay(done.external_id)
    paid = [each for each in stripe.books.events if each["type"] == "invoice.paid"]
    webhooks.deliver(paid, [SECRET], poster(connection))
    stripe.from_then_on = (len(stripe.requests), "cut")
    assert events.process() == 0
    stripe.from_then_on = None
    row = StripeEvent.objects.get()
    assert (row.tries, row.processed_at, row.outcome) == (1, None, "Stripe: it did not answer")
    assert events.process() == 0  # not due yet
    assert events.process(row.next_try_at) == 1
    assert mirror().state == "paid"


def test_an_event_waits_while_stripe_refuses_the_key(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    stripe.books.pay(done.external_id)
    paid = [each for each in stripe.books.events if each["type"] == "invoice.paid"]
    webhooks.deliver(paid, [SECRET], poster(connection))
    connection.sealed_key, connection.pepper_version = sealing.seal(connection.id, "sk_live_revoked1234")
    connection.save()
    moment = timezone.now()
    for tries in range(1, events.MOST_TRIES + 2):
        assert events.process(moment) == 0
        row = StripeEvent.objects.get()
        assert (row.tries, row.processed_at) == (tries, None) and "does not know the secret key" in row.outcome
        wait, moment = row.next_try_at - moment, row.next_try_at
    assert wait == timedelta(days=1)
    connections.connect(ADA, None, Wanted(key=KEY))
    assert events.process(moment) == 1
    assert mirror().state == "paid"


def test_an_invoice_that_stripe_does_not_have_any_more_ends_its_events(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    del stripe.books.objects[done.external_id]
    webhooks.deliver(stripe.books.events, [SECRET], poster(connection))
    assert events.process() == len(stripe.books.events)


def test_a_failed_payment_waits_for_an_invoice_that_cannot_be_kept_yet(
    stripe: StandIn, closed: Tenant, connection: StripeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise InvoiceRefused("2026-03", "not yet")

    with monkeypatch.context() as patch:
        patch.setattr(mirroring, "record", refuse)
        with pytest.raises(InvoiceRefused):
            push(closed)
        found = stripe.books.of_kind("invoice")[0]
        found["attempt_count"] = 1
        failed = stripe.books.emit("invoice.payment_failed", found)
        webhooks.deliver([failed], [SECRET], poster(connection))
        assert events.process() == 0
    assert events.process(StripeEvent.objects.get().next_try_at) == 1
    assert PaymentFailure.objects.get().invoice == mirror()


def test_an_event_and_a_push_that_fail_leave_the_others_alone(
    stripe: StandIn, closed: Tenant, connection: StripeConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = push(closed)
    stripe.books.pay(done.external_id)
    webhooks.deliver(stripe.books.events, [SECRET], poster(connection))
    broken = StripeEvent.objects.order_by("id").first()
    assert broken is not None
    outcome = events._outcome

    def fail(event: StripeEvent) -> str:
        if event.id == broken.id:
            raise KeyError("not of Stripe's published shape")
        return outcome(event)

    with monkeypatch.context() as patch:
        patch.setattr(events, "_outcome", fail)
        assert events.process() == len(stripe.books.events) - 1
    assert mirror().state == "paid"
    broken.refresh_from_db()
    assert (broken.tries, broken.outcome) == (1, "It failed here with KeyError; the log says more.")
    assert events.process(broken.next_try_at) == 1
    StripeInvoice.objects.update(sent_at=None, tried_at=None)
    with monkeypatch.context() as patch:
        patch.setattr(pushing, "_run", fail)
        assert pushing.resume(timezone.now()) == 0
    StripeInvoice.objects.update(tried_at=None)
    monkeypatch.setattr(events, "process", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        tasks.process_stripe()
    done.refresh_from_db()
    assert done.sent_at is not None


def test_what_was_paid_by_hand_too_is_not_paid_twice(
    stripe: StandIn, closed: Tenant, connection: StripeConnection
) -> None:
    done = push(closed)
    steps.pay(ADA, mirror(), reference="Wire", paid_on=timezone.now().date(), amount_cents=300)
    stripe.books.pay(done.external_id)
    deliver(stripe, connection)
    assert sorted(InvoicePayment.objects.values_list("amount_cents", flat=True)) == [81, 300]


def test_no_event_keeps_what_its_object_says(connection: StripeConnection) -> None:
    about = {"id": "in_1", "object": "invoice", "customer_email": "person@example.org"}
    events.receive(connection, *signed(event(data={"object": about})))
    row = StripeEvent.objects.values().get()
    assert "person@example.org" not in json.dumps(row, default=str)
