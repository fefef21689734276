"""Make a closed month Stripe's invoice, once, however often this stops on the way and is tried again.

Before each thing is created Stripe is asked whether it has it: each carries our id in its metadata, and lists are
consistent, other than Stripe's search. So a repeat finds what an earlier try made, also after the 24 hours in which
an idempotency key holds. The key, from our ids too, keeps two tries at once apart. An answer 5xx is repeated for the
same key, so the next try has another one, after it has looked.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from billing import second_person
from billing.accounts import account
from billing.errors import InvoiceRefused, StripeRefused, StripeUnavailable
from billing.invoices import finalizing
from billing.models import BillingAccount, BillingMonth, Invoice, StripeCustomer, StripeInvoice
from billing.months import closing
from billing.pricing import amounts
from billing.reports import statements
from billing.reports.statements import Month
from billing.stripe import connections, customers, exclusive, lines, reading, units
from billing.stripe.api import Api, Object, open_api
from billing.stripe.customers import SKEW_SECONDS, TENANT, is_of
from tenants import audit
from tenants.audit import Actor
from tenants.ids import TenantId
from tenants.models import Tenant

log = logging.getLogger(__name__)

#: Names in Stripe's metadata of what is ours.
INVOICE, LINE = "hearth_invoice", "hearth_line"
#: A try that has not ended after as long has died, or ended with an error that passes.
RETRY = timedelta(minutes=5)
MOST_AT_ONCE = 20


@transaction.atomic
def begin(
    actor: Actor, month: Month, issuer: str | None = None, now: datetime | None = None
) -> tuple[StripeInvoice, bool]:
    """Decide what Stripe's invoice of a closed month says; return it, and whether it is new. Stripe is not called.

    Raises InvoiceRefused, StripeRefused, NotFound for the issuer.
    """
    closing.lock(TenantId(month.tenant.id))
    if (existing := find(month)) is not None:
        return existing, False
    if account.of(month.tenant).details.issuer != Invoice.Channel.STRIPE:
        remedy = f"One month has one legal document: hearth account set {month.tenant.slug} --issuer stripe"
        raise finalizing.refused(month, "its invoices come from hearth", remedy)
    if (invoice := finalizing.find(month)) is not None:
        raise finalizing.refused(month, f"{invoice.number} is its invoice already")
    connection = connections.find(issuer)
    units.check_currency(month.name, month.tenant.currency)
    exact = finalizing.content_of(month, connection.issuer, now or timezone.now())
    content = lines.as_stripe_takes(exact)
    applied = min(content.applied_cents, content.total_cents)
    units.theirs(applied, content.currency)  # credit that Stripe cannot take is refused now
    by_stripe = bool(connection.tax_rate_id)
    push = StripeInvoice.objects.create(
        tenant_id=month.tenant.id,
        connection=connection,
        closing=finalizing.closed(month),
        year=month.year,
        month=month.month,
        currency=content.currency,
        lines=lines.items(content, taxed_by_stripe=by_stripe),
        heading=lines.heading(content, taxed_by_stripe=by_stripe)
        | {
            "rounding_cents": content.net_cents - exact.net_cents,
            "charge": customers.is_charged(month.tenant, connection),
        },
        net_cents=content.net_cents,
        tax_cents=content.tax_cents,
        applied_cents=applied,
        terms_days=content.payment_terms_days,
        requested_by=second_person.person(actor),
    )
    audit.record(
        actor,
        "invoice.stripe_requested",
        ("stripe invoice", push.id),
        tenant=month.tenant,
        after={"month": month.name, "total_cents": push.total_cents, "account": connection.account_id},
    )
    push.refresh_from_db()
    return push, True


def find(month: Month) -> StripeInvoice | None:
    """Return what Stripe has, or is about to have, for a month."""
    of_month = StripeInvoice.objects.filter(tenant_id=month.tenant.id, year=month.year, month=month.month)
    return of_month.select_related("connection__issuer").filter(ended_at=None).first()


def request(push: StripeInvoice) -> None:
    """Have the role background go on with it at its next tick, also after a refusal."""
    StripeInvoice.objects.filter(id=push.id, sent_at=None).update(is_refused=False, tried_at=None)


def tenants(year: int, month: int) -> list[Tenant]:
    """Return the tenants with a closed month whose invoices come from Stripe, by slug."""
    of_stripe = BillingAccount.objects.filter(issuer=Invoice.Channel.STRIPE).values("tenant_id")
    closed = BillingMonth.objects.filter(year=year, month=month, reopened_at=None).values("tenant_id")
    return list(Tenant.objects.filter(id__in=of_stripe).filter(id__in=closed).order_by("slug"))


def run(actor: Actor, push: StripeInvoice) -> StripeInvoice:
    """Take every step that is missing; return the invoice as it is then. The same again changes nothing.

    Raises StripeRefused, StripeUnavailable, InvoiceRefused; what was done before stays done, and is kept.
    """
    with exclusive.of_tenant(push.tenant_id):
        push.refresh_from_db()  # it may have been voided, or brought to its end, since it was read
        return push if push.ended_at is not None else _tried(actor, push)


def _tried(actor: Actor, push: StripeInvoice) -> StripeInvoice:
    StripeInvoice.objects.filter(id=push.id).update(tried_at=timezone.now(), is_refused=False)
    try:
        _run(actor, open_api(push.connection), push)
    except Exception as error:
        if isinstance(error, StripeUnavailable) and error.answered:
            StripeInvoice.objects.filter(id=push.id).update(key_generation=F("key_generation") + 1)
        is_refused = isinstance(error, (StripeRefused, InvoiceRefused))
        StripeInvoice.objects.filter(id=push.id).update(problem=str(error)[:500], is_refused=is_refused)
        raise
    StripeInvoice.objects.filter(id=push.id).update(problem="")
    push.refresh_from_db()
    return push


def resume(now: datetime) -> int:
    """Go on with invoices that were begun and have not been tried for a while; return how many are done now.

    One that Stripe or Hearth refuses waits for people: its problem says why. One that fails leaves the others alone.
    """
    done = 0
    waiting = StripeInvoice.objects.filter(ended_at=None, sent_at=None, is_refused=False)
    due = waiting.filter(Q(tried_at=None) | Q(tried_at__lt=now - RETRY)).select_related("connection__issuer")
    for push in due.order_by("id")[:MOST_AT_ONCE]:
        try:
            run(Actor(kind="system", name="stripe"), push)
            done += 1
        except (StripeRefused, StripeUnavailable, InvoiceRefused):
            continue  # it is stored
        except Exception:
            log.exception("Stripe's invoice %s failed", push.id)
    return done


def void(actor: Actor, push: StripeInvoice, reason: str) -> StripeInvoice:
    """End Stripe's invoice: delete its draft, or void it, and ours with it. Then the month may be invoiced again.

    Raises StripeRefused for one that is paid, StripeUnavailable, InvoiceRefused.
    """
    if not reason.strip():
        raise StripeRefused(str(push), "it needs a reason")
    with exclusive.of_tenant(push.tenant_id):
        return _voided(actor, push, reason)


def _voided(actor: Actor, push: StripeInvoice, reason: str) -> StripeInvoice:
    api = open_api(push.connection)
    found = _known(api, push)
    if found is not None and found["status"] == "draft":
        api.delete(f"invoices/{found['id']}")
        found = None
    if found is not None:
        if found["status"] not in {"void", "paid"}:
            found = api.post(f"invoices/{found['id']}/void", _key(push, "void"))
        if found["status"] != "void":
            raise StripeRefused(str(push), "it is paid at Stripe", "Make a credit note or a refund there.")
        reading.apply(actor, push.id, found, [], reason=reason)
    else:
        reading.end(actor, push.id, reason)
    push.refresh_from_db()
    return push


def _run(actor: Actor, api: Api, push: StripeInvoice) -> None:
    tenant = Tenant.objects.get(id=push.tenant_id)
    customer_id = customers.ensure(api, push.connection, tenant, str(push.key_generation))
    found = _invoice(api, push, customer_id)
    if found["status"] == "draft":
        _items(api, push, customer_id, found["id"])
        _check_draft(api, push, found["id"])
        _credit(api, push, customer_id)
        _check_balance(api, push, customer_id)
        _require_mirror(push, tenant)
        # Stripe goes on by itself only where it charges; else it would also e-mail reminders.
        found = api.post(f"invoices/{found['id']}/finalize", _key(push, "finalize"), auto_advance=_is_charged(push))
    payments = reading.payments_of(api, found)
    reading.apply(actor, push.id, found, payments)
    push.refresh_from_db()
    if push.sent_at is None and found["status"] == "open" and not _is_charged(push):
        api.post(f"invoices/{found['id']}/send", _key(push, "send"))
    StripeInvoice.objects.filter(id=push.id, sent_at=None).update(sent_at=timezone.now())


def _key(push: StripeInvoice, step: str) -> str:
    return f"hearth:{push.id}:{push.key_generation}:{step}"


def _known(api: Api, push: StripeInvoice, customer_id: str = "") -> Object | None:
    """Return Stripe's invoice as it is now, whether or not an earlier try learned its id.

    A draft that somebody deleted at Stripe is forgotten, with the keys whose answers name it.
    """
    if push.external_id:
        try:
            return api.get(f"invoices/{push.external_id}")
        except StripeRefused as error:
            if not error.is_missing or push.mirror_id is not None:
                raise
        StripeInvoice.objects.filter(id=push.id).update(external_id="", key_generation=F("key_generation") + 1)
        push.refresh_from_db()
    row = StripeCustomer.objects.filter(tenant_id=push.tenant_id, connection=push.connection).first()
    customer_id = customer_id or (row.external_id if row else "")
    if not customer_id:
        return None
    made = {"gte": int(push.created_at.timestamp()) - SKEW_SECONDS}
    rows = api.all("invoices", customer=customer_id, created=made)
    return next((each for each in rows if is_of(each, INVOICE, push.id)), None)


def _invoice(api: Api, push: StripeInvoice, customer_id: str) -> Object:
    """Return Stripe's invoice, created as a draft if it has none of ours."""
    found = _known(api, push, customer_id)
    if found is None:
        heading = push.heading
        optional: dict[str, Any] = {}
        if heading["footer"]:
            optional["footer"] = heading["footer"]
        if heading["tax_id"]:
            optional["custom_fields"] = [{"name": "Tax id", "value": heading["tax_id"]}]
        if heading["tax_rate_bp"] is not None:
            optional["default_tax_rates"] = [push.connection.tax_rate_id]
            _check_rate(api, push)
        _require_begun(push)
        found = api.post(
            "invoices",
            _key(push, "invoice"),
            customer=customer_id,
            currency=push.currency.lower(),
            **_collection(push),
            auto_advance=False,
            pending_invoice_items_behavior="exclude",
            description=heading["description"],
            metadata={INVOICE: str(push.id), TENANT: str(push.tenant_id), "hearth_month": push.period},
            **optional,
        )
    StripeInvoice.objects.filter(id=push.id).update(external_id=found["id"], status=found["status"])
    push.external_id = found["id"]
    return found


def _is_charged(push: StripeInvoice) -> bool:
    return bool(push.heading.get("charge"))


def _collection(push: StripeInvoice) -> dict[str, Any]:
    """Return how Stripe collects it. One that it charges has no due date there; here it has that of the account."""
    if _is_charged(push):
        return {"collection_method": "charge_automatically"}
    return {"collection_method": "send_invoice", "days_until_due": push.terms_days}


def _check_rate(api: Api, push: StripeInvoice) -> None:
    rate = api.get(f"tax_rates/{push.connection.tax_rate_id}")
    if round(float(rate["percentage"]) * 100) != push.heading["tax_rate_bp"]:
        reason = f"the tax rate {rate['id']} is {rate['percentage']} %, the account's is"
        percent = push.heading["tax_rate_bp"] / 100
        raise StripeRefused(str(push), f"{reason} {percent:g} %", "Void it here, and set the rate of either.")


def _items(api: Api, push: StripeInvoice, customer_id: str, invoice_id: str) -> None:
    """Add the items that the draft does not have yet."""
    there = {(each.get("metadata") or {}).get(LINE) for each in api.all("invoiceitems", invoice=invoice_id)}
    for position, line in enumerate(push.lines):
        if str(position) in there:
            continue
        api.post(
            "invoiceitems",
            _key(push, f"line:{position}"),
            customer=customer_id,
            invoice=invoice_id,
            amount=units.theirs(line["cents"], push.currency),
            currency=push.currency.lower(),
            description=line["description"],
            metadata={LINE: str(position), INVOICE: str(push.id)},
        )


def _credit(api: Api, push: StripeInvoice, customer_id: str) -> None:
    """Give the customer the credit that the month's closing applied, which finalizing takes from what is due.

    The balance is one for all months. So it is given last; what an ended invoice left of its credit, because Stripe
    returns it when an invoice is voided (https://docs.stripe.com/changelog/2019-12-03), is taken back before; and a
    month whose credit waits for its invoice comes first.
    """
    path = f"customers/{customer_id}/balance_transactions"
    given = api.all(path)
    for other in StripeInvoice.objects.filter(tenant_id=push.tenant_id, connection=push.connection).exclude(id=push.id):
        left = sum(each["amount"] for each in given if is_of(each, INVOICE, other.id))
        if left and other.ended_at is not None:
            api.post(
                path,
                _key(other, "credit back"),
                amount=-left,
                currency=push.currency.lower(),
                description=f"Credit of {other.period} taken back",
                metadata={INVOICE: str(other.id)},
            )
        elif left and other.status in {"", "draft"}:
            remedy = f"Bring that to its end, or void it: hearth stripe void {other.period}"
            raise StripeRefused(str(push), f"the credit of {other.period} is in the customer's balance", remedy)
    if not push.applied_cents or any(is_of(each, INVOICE, push.id) for each in given):
        return
    api.post(
        path,
        _key(push, "credit"),
        amount=-units.theirs(push.applied_cents, push.currency),
        currency=push.currency.lower(),
        description=f"Credit applied to {push.period}",
        metadata={INVOICE: str(push.id)},
    )


def _check_draft(api: Api, push: StripeInvoice, invoice_id: str) -> None:
    """Raise StripeRefused unless the draft says what our lines say. It is no document until it is finalized."""
    draft = api.get(f"invoices/{invoice_id}")
    currency, by_stripe = push.currency, push.heading["tax_rate_bp"] is not None
    units.whole(draft["total"], currency)
    net = units.ours(draft["total_excluding_tax"] if by_stripe else draft["total"], currency)
    net -= 0 if by_stripe else push.tax_cents
    if net != push.net_cents:
        ours = amounts.of_minor(push.net_cents, currency)
        reason = f"Stripe's draft is {net.scaleb(-amounts.digits(currency))} without tax, our lines are {ours}"
        raise StripeRefused(str(push), reason, "Void it here, look at the draft's items at Stripe, and push again.")


def _check_balance(api: Api, push: StripeInvoice, customer_id: str) -> None:
    """Raise StripeRefused unless the customer's balance is the credit of this month, as Stripe takes all of it."""
    credit = -units.theirs(push.applied_cents, push.currency)
    balance = api.get(f"customers/{customer_id}")["balance"]
    if balance != credit:
        is_now, should_be = units.text(balance, push.currency), units.text(credit, push.currency)
        reason = f"the customer's balance at Stripe is {is_now}, and {should_be} is this month's credit"
        remedy = f"Set it to {should_be} at Stripe: credit is kept in Hearth. Then push again."
        raise StripeRefused(str(push), reason, remedy)


def _require_begun(push: StripeInvoice) -> None:
    """Raise StripeRefused if it was voided since the try began."""
    if not StripeInvoice.objects.filter(id=push.id, ended_at=None).exists():
        raise StripeRefused(str(push), "it was voided here meanwhile", "If Stripe has a draft of it, delete it there.")


@transaction.atomic
def _require_mirror(push: StripeInvoice, tenant: Tenant) -> None:
    """Raise StripeRefused if our books could not have what the draft says: once finalized it is a document."""
    closing.lock(TenantId(tenant.id))
    _require_begun(push)
    remedy = f"Void it: hearth stripe void {push.period} --tenant {tenant.slug}"
    month = Month(tenant=tenant, year=push.year, month=push.month)
    if (existing := finalizing.find(month)) is not None:
        raise StripeRefused(str(push), f"{existing.number} is the invoice of {push.period} already", remedy)
    kept = statements.kept_statement(month)
    if kept is None or BillingMonth.objects.get(id=push.closing_id).reopened_at is not None:
        raise StripeRefused(str(push), f"{push.period} was reopened", remedy)
    net = kept.amount_cents + push.heading.get("rounding_cents", 0)
    if net != push.net_cents:
        says, ours = (amounts.of_minor(each, push.currency) for each in (push.net_cents, net))
        reason = f"it says {says} without tax, our lines are {ours} now"
        raise StripeRefused(str(push), reason, remedy)
