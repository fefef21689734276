"""What happened to an invoice at Stripe that finance follows, and what it does next.

A return that finance posted is taken back by itself when the dispute is won or the refund fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Sum

from billing.accounts import credits, returns
from billing.accounts.credits import NewCredit
from billing.errors import StripeRefused
from billing.invoices import registry
from billing.models import CreditRequest, Invoice, StripeConnection, StripeEvent, StripeInvoice
from billing.pricing import amounts
from tenants.audit import Actor
from tenants.errors import NotFound
from tenants.models import Tenant

#: As many are shown, the newest.
SHOWN = 50
REJECTED = "If the money did go back, post it with another key: hearth credit return, with --reference."


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of event: what happened, what is to be done, and whether the money that went back can be posted."""

    what: str
    next: str
    is_return: bool = False


KINDS = {
    "refund.created": Kind(
        what="Refunded",
        next="Post the return: less revenue, tax and cash. The invoice stays paid, as at Stripe. If its price was "
        "reduced, make the credit note at Stripe, which issued it.",
        is_return=True,
    ),
    "charge.dispute.created": Kind(
        what="Disputed: the customer's bank took the payment back",
        next="Answer it at Stripe. If it is won, nothing is to be done. If it is lost, post the return: less revenue, "
        "tax and cash.",
        is_return=True,
    ),
    "credit_note.created": Kind(
        what="Credit note",
        next="For a paid invoice, give the tenant the same as credit (a correction). For an open one, void it and push "
        "the month again: our lines do not change.",
    ),
    "invoice.marked_uncollectible": Kind(
        what="Uncollectible",
        next="Hold its dunning, or void it with a reason: the ledger has no write-off.",
    ),
}
#: What says that a refund or a dispute ended, with what Stripe calls their list.
ENDS = {
    "charge.dispute.closed": "disputes",
    "refund.failed": "refunds",
    "refund.updated": "refunds",
    "charge.refund.updated": "refunds",
}
#: The money is here again: why, by what Stripe says of the object, and what finance does then.
#: https://docs.stripe.com/api/disputes/object and https://docs.stripe.com/refunds#failed-refunds
BACK = {
    "won": ("Dispute won", "Nothing more: the dispute was won."),
    "warning_closed": ("Inquiry closed", "Nothing more: the inquiry was closed, and no money went."),
    "failed": ("Refund failed", "The refund failed, and you have the money: pay the customer another way."),
    "canceled": ("Refund canceled", "Nothing more: the refund was canceled."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """One of these events. ``invoice`` None: it is of none of ours. ``request``: what was posted of it, or waits.

    ``status``: what Stripe said of the refund or the dispute when it was read last; empty: it was not.
    ``is_taken_back``: what was posted of it was reversed.
    """

    event: StripeEvent
    kind: Kind
    invoice: Invoice | None
    tenant: str
    request: CreditRequest | None
    status: str
    is_taken_back: bool

    @property
    def next(self) -> str:
        """What finance does next."""
        is_posted = self.request is not None and self.request.state == CreditRequest.State.POSTED
        if self.status in BACK and is_posted and not self.is_taken_back:
            return (
                "You have the money: a second person approves on the tenant's page Billing that its return is undone."
            )
        if self.status in BACK:
            return BACK[self.status][1]
        if self.is_taken_back:
            return "Nothing more: its return was taken back."
        if self.request is not None:
            return "Nothing more." if is_posted else REJECTED
        return "It is lost: post the return." if self.status == "lost" else self.kind.next

    @property
    def may_post(self) -> bool:
        """Whether the return can be posted now."""
        is_open = self.request is None and self.status not in BACK
        return self.kind.is_return and self.invoice is not None and is_open


def listed(connection: StripeConnection) -> list[FollowUp]:
    """Return the newest SHOWN, each object once."""
    rows = connection.events.filter(type__in=KINDS, processed_at__isnull=False)
    events = list(rows.order_by("-id")[: 2 * SHOWN])
    once = list({(each.type, each.object_id): each for each in reversed(events)}.values())[::-1][:SHOWN]
    return list(_with_invoices(connection, once))


@transaction.atomic
def post_return(actor: Actor, connection: StripeConnection, event_id: UUID) -> CreditRequest:
    """Post that the money of a refund or a dispute went back; above a limit a second person approves it.

    The same again changes nothing. All returns of an invoice are at most what was paid.
    Raises NotFound, StripeRefused, BadCredit, CreditRefused.
    """
    rows = connection.events.select_for_update()  # before it is read whether it ended, as settle does
    event = rows.filter(id=event_id, processed_at__isnull=False).first()
    if event is None or event.type not in KINDS or not KINDS[event.type].is_return:
        raise NotFound("refund or dispute", str(event_id))
    [found] = _with_invoices(connection, [event])
    if found.invoice is None or event.amount is None:
        raise StripeRefused(event.object_id, "it is of no invoice that Hearth has", "Correct the ledger by hand.")
    if found.status in BACK:
        raise StripeRefused(event.object_id, f"it is {found.status} at Stripe, so you have the money")
    if found.request is not None and found.request.state == CreditRequest.State.REJECTED:
        raise StripeRefused(event.object_id, "its return was rejected", REJECTED)
    if found.request is not None:
        return found.request
    registry.locked(found.invoice)  # two returns of it at once see each other
    tenant = Tenant.objects.get(id=found.invoice.tenant_id)
    paid = registry.paid_cents(found.invoice) - _other_returns(connection, event, tenant)
    if event.currency != found.invoice.currency or not 0 < event.amount <= paid:
        given = f"{amounts.of_minor(event.amount, event.currency)} {event.currency}"
        has = f"{amounts.of_minor(paid, found.invoice.currency)} {found.invoice.currency}"
        raise StripeRefused(
            event.object_id, f"it is of {given}, and {has} paid for {found.invoice.number} did not go back yet"
        )
    wanted = NewCredit(
        kind=CreditRequest.Kind.RETURN,
        amount_pico=event.amount * amounts.pico_per_minor(event.currency),
        reason=f"{KINDS[event.type].what.partition(':')[0]} at Stripe, of {found.invoice.number}",
        reference=event.object_id,
        invoice=found.invoice.id,
    )
    return credits.submit(actor, tenant, _key(event), wanted)[0]


@transaction.atomic
def settle(actor: Actor, event: StripeEvent, status: str) -> str:
    """Note what a refund or a dispute is now; if the money is here again, take back the return of it.

    Returns what was done, in one sentence. Above the limit a second person approves it, as a return. The same again
    changes nothing. Raises CreditRefused.
    """
    same = StripeEvent.objects.filter(connection=event.connection, object_id=event.object_id)
    list(same.select_for_update().order_by("id"))  # a return of it is posted before this, or not at all
    same.update(object_status=status[:40])
    if status not in BACK:
        return f"It is {status} at Stripe."
    request = CreditRequest.objects.filter(key=_key(event), kind=CreditRequest.Kind.RETURN).first()
    if request is None or request.state == CreditRequest.State.REJECTED:
        return f"It is {status} at Stripe; no return of it was posted."
    tenant = Tenant.objects.get(id=request.tenant_id)
    if request.state == CreditRequest.State.PENDING:
        credits.reject(actor, tenant, request.id)
        return f"It is {status} at Stripe; its return, which waited, was rejected."
    if not returns.standing(CreditRequest.objects.filter(id=request.id)).exists():
        return f"It is {status} at Stripe; its return was taken back before."
    wanted = NewCredit(
        kind=CreditRequest.Kind.REVERSAL,
        reason=f"{BACK[status][0]} at Stripe",
        reference=event.object_id,
        refers_to=request.entry.id,
    )
    back = credits.submit(actor, tenant, f"{_key(event)} back", wanted)[0]
    if back.state == CreditRequest.State.PENDING:
        return f"It is {status} at Stripe; a second person approves that its return is taken back."
    return f"It is {status} at Stripe; its return was taken back."


def _other_returns(connection: StripeConnection, event: StripeEvent, tenant: Tenant) -> int:
    """Return what was posted, or waits, of the other refunds and disputes of an event's invoice, in minor units."""
    others = connection.events.filter(invoice_id=event.invoice_id).exclude(object_id=event.object_id)
    rows = returns.standing(CreditRequest.objects.filter(tenant_id=tenant.id, reference__in=others.values("object_id")))
    return amounts.minor(int(rows.aggregate(total=Sum("amount_pico", default=0))["total"]), event.currency)


def _with_invoices(connection: StripeConnection, events: list[StripeEvent]) -> Iterator[FollowUp]:
    ids = {each.invoice_id for each in events} - {""}
    pushes = {
        each.external_id: each
        for each in StripeInvoice.objects.filter(connection=connection, external_id__in=ids).select_related("mirror")
    }
    slugs = dict(Tenant.objects.filter(id__in={each.tenant_id for each in pushes.values()}).values_list("id", "slug"))
    requests = CreditRequest.objects.filter(key__in=[_key(each) for each in events])
    by_key = {each.key: each for each in requests}
    posted = {each.key for each in requests if each.state == CreditRequest.State.POSTED}
    standing = set(returns.standing(requests).values_list("key", flat=True))
    objects = StripeEvent.objects.filter(connection=connection, object_id__in={each.object_id for each in events})
    ended = dict(objects.exclude(object_status="").values_list("object_id", "object_status"))
    for each in events:
        push = pushes.get(each.invoice_id)
        yield FollowUp(
            event=each,
            kind=KINDS[each.type],
            invoice=push.mirror if push else None,
            tenant=slugs[push.tenant_id] if push else "",
            request=by_key.get(_key(each)),
            status=ended.get(each.object_id, ""),
            is_taken_back=_key(each) in posted - standing,
        )


def _key(event: StripeEvent) -> str:
    return f"stripe {event.object_id}"
