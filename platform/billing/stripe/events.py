"""Events that Stripe delivers: stored once, then processed by reading what their objects are now.

An event says only that something changed. Deliveries come twice, late and in any order
(https://docs.stripe.com/webhooks), so nothing is taken from what an event says but its object's id.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from billing.errors import BadWebhook, InvoiceRefused, StripeRefused, StripeUnavailable
from billing.models import StripeConnection, StripeEvent, StripeInvoice
from billing.payments import failures
from billing.stripe import connections, customers, followups, reading, units
from billing.stripe.api import open_api
from notifications.errors import SecretUnreadable
from tenants.audit import Actor

log = logging.getLogger(__name__)

#: A signature is valid for as long, in seconds, as Stripe's libraries have it.
TOLERANCE_SECONDS = 300
#: An event has the whole object: an invoice with ten lines and metadata is below 64 KiB.
MOST_BYTES = 256 << 10
MOST_AT_ONCE = 100
#: After as many failed tries an event is tried once a day: a key that was revoked may be replaced much later.
MOST_TRIES = 12
#: Longer than a dispute may take.
KEPT = timedelta(days=400)
#: Longer than the calls that an event needs; a process that died leaves it to the next one after that.
CLAIMED = timedelta(minutes=5)
_LONGEST_WAIT = timedelta(hours=1)
_LATER = timedelta(days=1)
STRIPE = Actor(kind="system", name="stripe")


def receive(connection: StripeConnection, body: bytes, signature: str, now: datetime | None = None) -> bool:
    """Store an event that Stripe signed; return whether it is new. Raises BadWebhook; nothing else is read before."""
    moment = now or timezone.now()
    _verify(connection, body, signature, moment)
    try:
        event = json.loads(body)
        row = _row(connection, event)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, ValidationError) as error:
        raise BadWebhook("This is no event of Stripe.") from error
    if event.get("livemode") is not connection.is_live:
        raise BadWebhook(f"This event is not of {connections.mode(connection)} mode.")
    if StripeEvent.objects.filter(connection=connection, event_id=row.event_id).exists():
        return False
    made = StripeEvent.objects.bulk_create([row], ignore_conflicts=True)
    StripeConnection.objects.filter(id=connection.id).update(event_at=moment)
    return bool(made)


def process(now: datetime | None = None) -> int:
    """Process the events that are due; return how many were. One that fails is tried again later."""
    done = 0
    due = StripeEvent.objects.filter(processed_at=None, next_try_at__lte=now or timezone.now()).order_by("id")
    for identity in due.values_list("id", flat=True)[:MOST_AT_ONCE]:
        done += _process(identity, now or timezone.now())  # those before it may have taken minutes
    return done


def delete_old(now: datetime) -> int:
    """Delete events that are older than KEPT, also those that nothing could be done with; return how many."""
    return StripeEvent.objects.filter(received_at__lt=now - KEPT).delete()[0]


def _process(identity: object, now: datetime) -> int:
    """Process an event, or put it off; return whether it is done. One that fails leaves the others alone."""
    event = _claim(identity, now)
    if event is None:
        return 0  # another process has it
    try:
        outcome = _outcome(event)  # it calls Stripe, so no transaction is open
        return _settle(event, outcome, now)
    except StripeRefused as error:
        return _put_off(identity, now, str(error), is_final=error.is_missing)
    except (StripeUnavailable, InvoiceRefused) as error:
        return _put_off(identity, now, str(error))
    except Exception as error:
        log.exception("The event %s of Stripe failed", identity)
        return _put_off(identity, now, f"It failed here with {type(error).__name__}; the log says more.")


def _claim(identity: object, now: datetime) -> StripeEvent | None:
    """Return the event, which no other process takes for CLAIMED; None if another one has it or it is done."""
    due = StripeEvent.objects.filter(id=str(identity), processed_at=None, next_try_at__lte=now)
    if not due.update(next_try_at=now + CLAIMED):
        return None
    return StripeEvent.objects.select_related("connection__issuer").get(id=str(identity))


def _settle(event: StripeEvent, outcome: str, now: datetime) -> int:
    waiting = StripeEvent.objects.filter(id=event.id, processed_at=None)
    return waiting.update(outcome=outcome[:500], tries=event.tries + 1, processed_at=now)


@transaction.atomic
def _put_off(identity: object, now: datetime, outcome: str, *, is_final: bool = False) -> int:
    event = StripeEvent.objects.select_for_update().get(id=str(identity))
    event.tries, event.outcome = event.tries + 1, outcome[:500]
    wait = min(timedelta(seconds=15 * 2 ** min(event.tries, MOST_TRIES)), _LONGEST_WAIT)
    event.next_try_at = now + (wait if event.tries < MOST_TRIES else _LATER)
    if is_final:
        event.processed_at = now
    event.save(update_fields=["tries", "outcome", "next_try_at", "processed_at"])
    return int(is_final)


def _outcome(event: StripeEvent) -> str:
    if event.type == "checkout.session.completed":
        return customers.saved(STRIPE, event)
    if event.type == "setup_intent.succeeded":
        return customers.verified(STRIPE, event)
    if event.type == "payment_method.detached":
        return customers.forget(STRIPE, event)
    if event.payment_intent and not event.invoice_id:
        _name_invoice(event)
    if event.type in followups.ENDS:
        found = open_api(event.connection).get(f"{followups.ENDS[event.type]}/{event.object_id}")
        return followups.settle(STRIPE, event, found["status"])
    return _read_invoice(event) if event.invoice_id else "Recorded; it changes no invoice here."


def _read_invoice(event: StripeEvent) -> str:
    push = StripeInvoice.objects.filter(connection=event.connection, external_id=event.invoice_id).first()
    if push is None:
        return "Hearth has no such invoice."
    api = open_api(event.connection)
    found = api.get(f"invoices/{event.invoice_id}")
    if found.get("deleted"):
        return "It was deleted at Stripe."
    text = reading.apply(STRIPE, push.id, found, reading.payments_of(api, found))
    push.refresh_from_db()
    if event.type == "invoice.payment_failed" and push.mirror is not None:
        # The attempt's number is the same in each of the events that Stripe may send of it.
        new = failures.note(
            STRIPE,
            push.mirror,
            reference=f"Stripe {push.external_id} attempt {event.attempt or event.event_id}",
            reason="Stripe could not collect it.",
        )
        return f"{'A payment failed. ' if new else ''}{text}"
    return text


def _name_invoice(event: StripeEvent) -> None:
    """Find the invoice that a payment was of, and store it with the event. Raises StripeRefused, StripeUnavailable."""
    of = {"type": "payment_intent", "payment_intent": event.payment_intent}
    payments = open_api(event.connection).all("invoice_payments", payment=of)
    event.invoice_id = next((each["invoice"] for each in payments), "")
    StripeEvent.objects.filter(id=event.id).update(invoice_id=event.invoice_id)


def _verify(connection: StripeConnection, body: bytes, signature: str, now: datetime) -> None:
    """Raise BadWebhook unless one of the connection's secrets made the signature within the tolerance."""
    import stripe

    if len(body) > MOST_BYTES:
        raise BadWebhook(f"The body is larger than {MOST_BYTES} bytes.")
    try:
        secrets = connections.webhook_secrets(connection, now)
    except SecretUnreadable as error:
        log.error("The signing secret of %s cannot be read: %s", connection.issuer.name, error.problem)
        secrets = []
    for secret in secrets:
        try:
            stripe.Webhook.construct_event(body, signature, secret, TOLERANCE_SECONDS)
        except (stripe.SignatureVerificationError, ValueError, TypeError, AttributeError):
            continue
        return
    raise BadWebhook("The signature is not one of this issuer's webhook endpoint, or is older than five minutes.")


def _row(connection: StripeConnection, event: dict[str, Any]) -> StripeEvent:
    """Return the event as it is stored: without what its object says, which may be personal data."""
    about: dict[str, Any] = event["data"]["object"]
    kind, identity = about.get("object", ""), about.get("id") or ""
    invoice = identity if kind == "invoice" else about.get("invoice") or ""
    amount = about.get("amount") if kind in {"refund", "dispute", "credit_note"} else None
    if kind == "charge":
        amount = about.get("amount_refunded")
    intent = about.get("payment_intent") if kind in {"refund", "dispute"} else ""
    currency = (about.get("currency") or "").upper() if amount is not None else ""
    row = StripeEvent(
        connection=connection,
        event_id=event["id"],
        type=event["type"],
        object_id=identity,
        invoice_id=invoice if isinstance(invoice, str) else "",
        amount=None if amount is None else int(units.ours(amount, currency)),
        currency=currency,
        payment_intent=intent if isinstance(intent, str) else "",
        attempt=about.get("attempt_count") if kind == "invoice" else None,
        created_at=datetime.fromtimestamp(event["created"], UTC),
    )
    row.clean_fields(
        exclude=["connection", *(field.name for field in row._meta.fields if not getattr(row, field.attname))]
    )
    return row
