"""What happened to an invoice at Stripe that Hearth does not follow by itself, and what finance does next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.db.models import Sum

from billing.accounts import credits
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
        next="Post the return: less revenue and less cash, by all of it. The invoice stays paid, as at Stripe, and the "
        "ledger's tax as it is: correct that in your tax return.",
        is_return=True,
    ),
    "charge.dispute.created": Kind(
        what="Disputed: the customer's bank took the payment back",
        next="Answer it at Stripe. If it is won, nothing is to be done. If it is lost, post the return. "
        "The ledger's tax stays as it is: correct that in your tax return.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """One of these events. ``invoice`` None: it is of none of ours. ``request``: what was posted of it, or waits."""

    event: StripeEvent
    kind: Kind
    invoice: Invoice | None
    tenant: str
    request: CreditRequest | None

    @property
    def rejected(self) -> str:
        """What is to be done where a second person rejected the return."""
        return REJECTED

    @property
    def may_post(self) -> bool:
        """Whether the return can be posted now."""
        return self.kind.is_return and self.invoice is not None and self.request is None


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
    event = connection.events.filter(id=event_id, processed_at__isnull=False).first()
    if event is None or event.type not in KINDS or not KINDS[event.type].is_return:
        raise NotFound("refund or dispute", str(event_id))
    [found] = _with_invoices(connection, [event])
    if found.invoice is None or event.amount is None:
        raise StripeRefused(event.object_id, "it is of no invoice that Hearth has", "Correct the ledger by hand.")
    if found.request is not None and found.request.state == CreditRequest.State.REJECTED:
        raise StripeRefused(event.object_id, "its return was rejected", REJECTED)
    # Two returns of one invoice at once see each other.
    tenant = Tenant.objects.select_for_update(no_key=True).get(id=found.invoice.tenant_id)
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
    )
    return credits.submit(actor, tenant, _key(event), wanted)[0]


def _other_returns(connection: StripeConnection, event: StripeEvent, tenant: Tenant) -> int:
    """Return what was posted, or waits, of the other refunds and disputes of an event's invoice, in minor units."""
    others = connection.events.filter(invoice_id=event.invoice_id).exclude(object_id=event.object_id)
    rows = CreditRequest.objects.filter(
        tenant_id=tenant.id, kind=CreditRequest.Kind.RETURN, reference__in=others.values("object_id")
    ).exclude(state=CreditRequest.State.REJECTED)
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
    for each in events:
        push = pushes.get(each.invoice_id)
        yield FollowUp(
            event=each,
            kind=KINDS[each.type],
            invoice=push.mirror if push else None,
            tenant=slugs[push.tenant_id] if push else "",
            request=by_key.get(_key(each)),
        )


def _key(event: StripeEvent) -> str:
    return f"stripe {event.object_id}"
