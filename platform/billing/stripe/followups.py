"""What happened to an invoice at Stripe that finance follows, and what it does next.

A return that finance posted is taken back by itself when the dispute is won or the refund fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet, Sum

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
    """One of these events. ``invoice`` None: it is of none of ours. ``request``: the return of it that counts or waits.

    Without one, it is the last that was rejected or taken back. ``status``: what Stripe said of the refund or the
    dispute when it was read last; empty: it was not. ``is_taken_back``: its return was reversed. ``is_undoing``: that
    waits for a second person.
    """

    event: StripeEvent
    kind: Kind
    invoice: Invoice | None
    tenant: str
    request: CreditRequest | None
    status: str
    is_taken_back: bool
    is_undoing: bool

    @property
    def next(self) -> str:
        """What finance does next."""
        if self.request is not None and self.request.state == CreditRequest.State.POSTED and not self.is_taken_back:
            return self._next_of_posted(self.request) if self.status in BACK else "Nothing more."
        if self.status in BACK:
            return BACK[self.status][1]
        if self.request is not None:
            return f"Its return was {self.ended}. {_again(self.event)}"
        return "It is lost: post the return." if self.status == "lost" else self.kind.next

    @property
    def may_post(self) -> bool:
        """Whether the return can be posted now."""
        is_open = self.request is None and self.status not in BACK
        return self.kind.is_return and self.invoice is not None and is_open

    @property
    def ended(self) -> str:
        """``rejected`` or ``taken back`` if its return no longer counts; else empty."""
        if self.is_taken_back:
            return "taken back"
        is_rejected = self.request is not None and self.request.state == CreditRequest.State.REJECTED
        return "rejected" if is_rejected else ""

    def _next_of_posted(self, request: CreditRequest) -> str:
        """Return what finance does with a return that counts, although the money is here again."""
        if self.is_undoing:
            return (
                "You have the money: a second person approves on the tenant's page Billing that its return is undone."
            )
        return f"You have the money, and its return still counts: {_reverse(self.tenant, request)}"


def listed(connection: StripeConnection) -> list[FollowUp]:
    """Return the newest SHOWN, each object once."""
    rows = connection.events.filter(type__in=KINDS, processed_at__isnull=False)
    events = list(rows.order_by("-id")[: 2 * SHOWN])
    once = list({(each.type, each.object_id): each for each in reversed(events)}.values())[::-1][:SHOWN]
    return list(_with_invoices(connection, once))


@transaction.atomic
def post_return(actor: Actor, connection: StripeConnection, event_id: UUID) -> CreditRequest:
    """Post that the money of a refund or a dispute went back; above a limit a second person approves it.

    The same again changes nothing, also where a person posted it and referred to the event's object. All returns of an
    invoice are at most what was paid.
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
    if found.ended:
        raise StripeRefused(event.object_id, f"its return was {found.ended}", _again(event))
    if found.request is not None:
        return found.request
    registry.locked(found.invoice)  # two returns of it at once see each other
    tenant = Tenant.objects.get(id=found.invoice.tenant_id)
    paid = returns.paid_cents(found.invoice) - _other_returns(connection, event, tenant)
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
    return credits.submit(actor, tenant, f"stripe {event.object_id}", wanted)[0]


@transaction.atomic
def settle(actor: Actor, event: StripeEvent, status: str) -> str:
    """Note what a refund or a dispute is now; if the money is here again, take back the return of it.

    Returns what was done, in one sentence. Above the limit a second person approves it, as a return. The same again
    changes nothing. Raises CreditRefused.
    """
    same = StripeEvent.objects.filter(connection=event.connection, object_id=event.object_id).order_by("id")
    known = same.select_for_update()  # a return of it is posted before this, or not at all
    before = next((each.object_status for each in known if each.object_status in BACK), None)
    if before is not None and status not in BACK:
        return f"It is {before} at Stripe."  # this was read earlier
    same.update(object_status=status[:40])
    if status not in BACK:
        return f"It is {status} at Stripe."
    push = StripeInvoice.objects.filter(connection=event.connection, external_id=event.invoice_id or "-").first()
    asked = None if push is None else returns.standing(_returns([push.tenant_id], [event])).first()
    if asked is None:
        return f"It is {status} at Stripe; no return of it counts."
    return f"It is {status} at Stripe; {_taken_back(actor, event, status, asked)}"


def _taken_back(actor: Actor, event: StripeEvent, status: str, asked: CreditRequest) -> str:
    """Take back the return of an event, or reject one that waits; return what was done."""
    tenant = Tenant.objects.get(id=asked.tenant_id)
    if asked.state == CreditRequest.State.PENDING:
        credits.reject(actor, tenant, asked.id)
        return "its return, which waited, was rejected."
    key = f"return {asked.id} back"
    undoing = CreditRequest.objects.filter(kind=CreditRequest.Kind.REVERSAL, refers_to=asked.entry)
    if undoing.filter(state=CreditRequest.State.PENDING).exists():
        return "a second person approves that its return is taken back."
    if undoing.filter(key=key).exists():
        return f"taking its return back was rejected. If you have the money: {_reverse(tenant.slug, asked)}"
    wanted = NewCredit(
        kind=CreditRequest.Kind.REVERSAL,
        reason=f"{BACK[status][0]} at Stripe",
        reference=event.object_id,
        refers_to=asked.entry.id,
    )
    back = credits.submit(actor, tenant, key, wanted)[0]
    if back.state == CreditRequest.State.PENDING:
        return "a second person approves that its return is taken back."
    return "its return was taken back."


def _reverse(slug: str, asked: CreditRequest) -> str:
    return f"hearth credit reverse {slug} {asked.entry.id}."


def _again(event: StripeEvent) -> str:
    return (
        f"If the money did go back, post it with another key: hearth credit return, with --reference {event.object_id}."
    )


def _returns(tenant_ids: Iterable[UUID], events: Iterable[StripeEvent]) -> QuerySet[CreditRequest]:
    """Return the returns of refunds and disputes, whoever posted them: they refer to them."""
    ids = {each.object_id for each in events}
    rows = CreditRequest.objects.filter(tenant_id__in=tenant_ids, kind=CreditRequest.Kind.RETURN, reference__in=ids)
    return rows.select_related("entry")


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
    rows = _returns(slugs, events)
    standing = set(returns.standing(rows).values_list("id", flat=True))
    # The one that counts, else the last.
    asked = {
        (each.tenant_id, each.reference): each for each in sorted(rows, key=lambda row: (row.id in standing, row.id))
    }
    undoing = CreditRequest.objects.filter(
        kind=CreditRequest.Kind.REVERSAL, state=CreditRequest.State.PENDING, refers_to__request__in=standing
    )
    undone = set(undoing.values_list("refers_to__request_id", flat=True))
    objects = StripeEvent.objects.filter(connection=connection, object_id__in={each.object_id for each in events})
    ended = dict(objects.exclude(object_status="").values_list("object_id", "object_status"))
    for each in events:
        push = pushes.get(each.invoice_id)
        request = asked.get((push.tenant_id, each.object_id)) if push else None
        is_posted = request is not None and request.state == CreditRequest.State.POSTED
        yield FollowUp(
            event=each,
            kind=KINDS[each.type],
            invoice=push.mirror if push else None,
            tenant=slugs[push.tenant_id] if push else "",
            request=request,
            status=ended.get(each.object_id, ""),
            is_taken_back=request is not None and is_posted and request.id not in standing,
            is_undoing=request is not None and request.id in undone,
        )
