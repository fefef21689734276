"""Compare what Stripe has with what Hearth has: its invoices and payments of a period, every day.

It reads page by page and keeps its place, so that one that Stripe stops with 429 goes on later. It changes nothing but
its own findings: events and pushes do that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Prefetch
from django.utils import timezone

from billing.errors import StripeRefused, StripeUnavailable
from billing.invoices import registry, states
from billing.models import InvoicePayment, StripeComparison, StripeConnection, StripeFinding, StripeInvoice
from billing.pricing.amounts import of_minor
from billing.stripe import units
from billing.stripe.api import Api, Object, open_api
from billing.stripe.pushing import INVOICE

#: How far back a comparison looks: an invoice with 60 days to pay, and a month beside.
PERIOD = timedelta(days=92)
EVERY = timedelta(hours=23)
#: One that has not gone on for as long is begun again.
STALE = timedelta(hours=20)
#: A push may take as long to reach Stripe's lists: after 5 minutes it is tried again.
PUSHING = timedelta(hours=1)
#: As many are kept for each account.
KEPT = 60
#: Pages of one run; the next run goes on.
MOST_PAGES = 500
MOST_SHOWN = 1000

Kind = StripeFinding.Kind
#: What our state may be while Stripe has another word for it.
_SAME = {
    "open": (states.SENT, states.FINAL),
    "uncollectible": (states.SENT, states.FINAL),
    "paid": (states.PAID,),
    "void": (states.VOID,),
}


def run(connection: StripeConnection, since: datetime | None = None) -> StripeComparison:
    """Compare, or go on with the comparison that was stopped; return it.

    Raises StripeRefused, StripeUnavailable: what was compared is kept, and the next run goes on from there.
    """
    comparison = _current(connection, since)
    try:
        api = open_api(connection)
        _invoices(api, comparison)
        _payments(api, comparison)
    except (StripeRefused, StripeUnavailable) as error:
        StripeComparison.objects.filter(id=comparison.id).update(problem=str(error)[:500])
        raise
    if comparison.reading == "done":
        _finish(comparison)
    return comparison


def run_due(now: datetime) -> int:
    """Compare each account whose last comparison is a day old, or was stopped; return how many differ."""
    gaps = 0
    for connection in StripeConnection.objects.select_related("issuer").order_by("id"):
        last = latest(connection)
        if last is not None and last.finished_at is not None and last.started_at > now - EVERY:
            continue
        try:
            gaps += run(connection).findings.count()
        except (StripeRefused, StripeUnavailable):
            continue  # it is stored, and the next tick goes on
    return gaps


def findings() -> list[StripeFinding]:
    """Return what the last comparison of each account found that has finished, at most MOST_SHOWN."""
    last = [latest(each, finished=True) for each in StripeConnection.objects.order_by("id")]
    rows = StripeFinding.objects.filter(comparison__in=[each for each in last if each is not None])
    return list(rows.select_related("comparison__connection__issuer", "invoice").order_by("id")[:MOST_SHOWN])


def latest(connection: StripeConnection, *, finished: bool = False) -> StripeComparison | None:
    """Return the last comparison, or the last one that has finished."""
    rows = connection.comparisons.order_by("-id")
    return rows.exclude(finished_at=None).first() if finished else rows.first()


def _current(connection: StripeConnection, since: datetime | None) -> StripeComparison:
    now, last = timezone.now(), latest(connection)
    if last is not None and last.finished_at is None and last.started_at > now - STALE and since is None:
        return last
    old = connection.comparisons.order_by("-id").values_list("id", flat=True)[KEPT:]
    StripeComparison.objects.filter(id__in=list(old)).delete()
    connection.comparisons.filter(finished_at=None).delete()
    return StripeComparison.objects.create(connection=connection, since=since or now - PERIOD)


def _invoices(api: Api, comparison: StripeComparison) -> None:
    if comparison.reading != "invoices":
        return
    made = {"gte": int(comparison.since.timestamp())}
    for number, page in enumerate(api.pages("invoices", comparison.cursor, created=made)):
        if number == MOST_PAGES:
            return
        ours = _ours(comparison, [each["id"] for each in page])
        with transaction.atomic():
            StripeInvoice.objects.filter(id__in=[each.id for each in ours.values()]).update(read_at=timezone.now())
            comparison.invoices += len(page)
            _keep(comparison, page[-1]["id"], (each for theirs in page for each in _invoice(ours, theirs)))
    comparison.reading = "payments"
    _keep(comparison, "")


def _payments(api: Api, comparison: StripeComparison) -> None:
    if comparison.reading != "payments":
        return
    made = {"gte": int(comparison.since.timestamp())}
    for number, page in enumerate(api.pages("invoice_payments", comparison.cursor, created=made, status="paid")):
        if number == MOST_PAGES:
            return
        ours = _ours(comparison, [each["invoice"] for each in page])
        with transaction.atomic():
            comparison.payments += len(page)
            _keep(comparison, page[-1]["id"], (each for theirs in page for each in _payment(ours, theirs)))
    comparison.reading = "done"
    _keep(comparison, "")


def _ours(comparison: StripeComparison, external_ids: list[str]) -> dict[str, StripeInvoice]:
    standing = Prefetch("mirror__payments", InvoicePayment.objects.filter(undone=None))
    rows = StripeInvoice.objects.select_related("mirror").prefetch_related(standing)
    found = rows.filter(connection_id=comparison.connection_id, external_id__in=external_ids)
    return {each.external_id: each for each in found}


def _keep(comparison: StripeComparison, cursor: str, findings: Iterable[StripeFinding] = ()) -> None:
    """Store findings and how far the comparison is."""
    rows = list(findings)
    for each in rows:
        each.comparison = comparison
    StripeFinding.objects.bulk_create(rows, ignore_conflicts=True)
    comparison.cursor, comparison.problem = cursor, ""
    comparison.save(update_fields=["cursor", "reading", "invoices", "payments", "problem"])


def _invoice(every: Mapping[str, StripeInvoice], theirs: Object) -> Iterator[StripeFinding]:
    identity, name = theirs["id"], theirs.get("number") or theirs["id"]
    ours = every.get(identity)
    if ours is None:
        if (theirs.get("metadata") or {}).get(INVOICE) or theirs["status"] != "draft":
            text = f"Stripe has {name}, {units.text(theirs['total'], theirs['currency'])}, which Hearth did not make."
            yield StripeFinding(kind=Kind.EXTRA, external_id=identity, theirs=theirs["status"], text=text)
        return
    state = ours.mirror.state if ours.mirror else ("void" if ours.ended_at else "draft")
    if state not in _SAME.get(theirs["status"], ("draft",)):
        text = f"{name} is {theirs['status']} at Stripe and {state} here."
        yield _about(ours, Kind.STATE, identity, state, theirs["status"], text)
    if ours.ended_at is not None or theirs["status"] == "draft":
        return
    total = ours.mirror.total_cents if ours.mirror else ours.total_cents
    mine, other = _money(total, ours.currency), units.text(theirs["total"], theirs["currency"])
    if mine != other:
        yield _about(ours, Kind.AMOUNT, identity, mine, other, f"The total of {name} differs.")
    reduced = theirs["pre_payment_credit_notes_amount"] + theirs["post_payment_credit_notes_amount"]
    if reduced:
        taken = units.text(reduced, theirs["currency"])
        text = f"Credit notes at Stripe take {taken} from {name}; Hearth has none for it."
        yield _about(ours, Kind.AMOUNT, f"{identity}:credit", "none", taken, text)
    if ours.mirror is None:
        return
    # One that was recorded by hand too is found here.
    paid, theirs_paid = registry.paid_cents(ours.mirror), theirs["amount_paid"]
    if paid != units.ours(theirs_paid, ours.currency):
        left = _money(registry.open_cents(ours.mirror), ours.currency)
        text = f"What was paid for {name} differs; {left} is open here."
        mine, other = _money(paid, ours.currency), units.text(theirs_paid, theirs["currency"])
        yield _about(ours, Kind.PAYMENT, identity, mine, other, text)


def _payment(every: Mapping[str, StripeInvoice], theirs: Object) -> Iterator[StripeFinding]:
    ours = every.get(theirs["invoice"])
    if ours is None or ours.ended_at is not None:
        return  # its invoice is a finding of its own
    rows = ours.mirror.payments.all() if ours.mirror else []
    recorded = next((each.amount_cents for each in rows if each.reference == f"Stripe {theirs['id']}"), None)
    if recorded == units.ours(theirs["amount_paid"], ours.currency):
        return
    mine = "none" if recorded is None else _money(recorded, ours.currency)
    what = "does not have" if recorded is None else "has another amount of"
    text = f"Stripe has a payment of {ours} that Hearth {what}."
    yield _about(ours, Kind.PAYMENT, theirs["id"], mine, units.text(theirs["amount_paid"], theirs["currency"]), text)


@transaction.atomic
def _finish(comparison: StripeComparison) -> None:
    """Find ours that Stripe did not list, and finish."""
    missing = StripeInvoice.objects.filter(connection_id=comparison.connection_id, ended_at=None)
    created = (comparison.since, comparison.started_at - PUSHING)
    unread = missing.filter(created_at__range=created).exclude(read_at__gte=comparison.started_at)
    _keep(comparison, "", [_missing(each) for each in unread])
    comparison.finished_at = timezone.now()
    comparison.save(update_fields=["finished_at"])


def _missing(ours: StripeInvoice) -> StripeFinding:
    text = f"Stripe does not list {ours}, which Hearth has."
    if not ours.external_id:
        text = f"{ours.period} is not at Stripe yet. {ours.problem or 'It was not pushed to the end.'}"
    return _about(ours, Kind.MISSING, ours.external_id, ours.status or "begun", "none", text)


def _about(ours: StripeInvoice, kind: str, identity: str, mine: str, theirs: str, text: str) -> StripeFinding:
    return StripeFinding(invoice=ours, kind=kind, external_id=identity, ours=mine, theirs=theirs, text=text[:500])


def _money(cents: int, currency: str) -> str:
    return f"{of_minor(cents, currency)} {currency.upper()}"
