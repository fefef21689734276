"""A tenant as Stripe's customer: created once, with the payment method that its people save on Stripe's page.

Hearth sees no card: Stripe's hosted page takes it (Checkout in setup mode), and Hearth keeps what Stripe says of it,
such as "visa, ends in 4242". https://docs.stripe.com/payments/save-and-reuse
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import transaction

from billing.accounts import account
from billing.errors import StripeRefused
from billing.invoices import drafting
from billing.models import Invoice, StripeConnection, StripeCustomer, StripeEvent
from billing.stripe import connections, exclusive
from billing.stripe.api import Api, Object, open_api
from tenants import audit
from tenants.audit import Actor
from tenants.ids import new_id
from tenants.models import Tenant

#: Name in Stripe's metadata of the tenant's id.
TENANT = "hearth_tenant"
#: Seconds by which clocks may differ when what an earlier try made is looked up.
SKEW_SECONDS = 300
#: Addresses of Stripe's page begin with it.
_HTTPS = "https://"
NOTHING = "It saved no payment method of a tenant."


def ensure(api: Api, connection: StripeConnection, tenant: Tenant, generation: str) -> str:
    """Return the id of the tenant's customer, created once, with its present name and address.

    ``generation``: of the idempotency key; another one tries anew. Callers hold ``exclusive.of_tenant``.
    """
    row, _ = StripeCustomer.objects.get_or_create(tenant_id=tenant.id, connection=connection)
    if not row.external_id:
        made = {"gte": int(row.created_at.timestamp()) - SKEW_SECONDS}
        known = next((each for each in api.all("customers", created=made) if is_of(each, TENANT, row.tenant_id)), None)
        key = f"hearth:{row.id}:{generation}:customer"
        found = known or api.post("customers", key, metadata={TENANT: str(row.tenant_id)})
        StripeCustomer.objects.filter(id=row.id, external_id="").update(external_id=found["id"])
        row.refresh_from_db()
    buyer = drafting.customer(tenant).party
    address = {"line1": (*buyer.address_lines, "")[0], "line2": ", ".join(buyer.address_lines[1:])}
    address |= {"postal_code": buyer.postcode, "city": buyer.city, "country": buyer.country}
    api.post(
        f"customers/{row.external_id}",
        name=buyer.name,
        email=buyer.email,
        address=address,
        metadata={"hearth_slug": tenant.slug},
    )
    return row.external_id


def is_of(found: Object, name: str, identity: object) -> bool:
    """Return whether Stripe's object names one of ours in its metadata."""
    return bool((found.get("metadata") or {}).get(name) == str(identity))


def account_to_save_in() -> StripeConnection | None:
    """Return the default issuer's account, with the issuer; None: it has none. No tenant may read it."""
    return StripeConnection.objects.select_related("issuer").filter(issuer__is_default=True).first()


def with_method(tenant: Tenant, connection: StripeConnection | None) -> StripeCustomer | None:
    """Return the tenant as customer of an account in which it has saved a payment method; None: it has not."""
    rows = StripeCustomer.objects.filter(tenant_id=tenant.id, connection=connection)
    return rows.exclude(payment_method_id="").first()


def is_charged(tenant: Tenant, connection: StripeConnection) -> bool:
    """Return whether Stripe charges an invoice by itself: the account says so, and a payment method is saved."""
    return account.of(tenant).details.charge_automatically and with_method(tenant, connection) is not None


def begin_saving(actor: Actor, tenant: Tenant, back: str) -> str:
    """Return the address of Stripe's page on which a payment method is saved; it leads to ``back`` afterwards.

    What was saved before is replaced once Stripe says that the new one is saved.
    Raises StripeRefused, also for a tenant whose invoices are not Stripe's, and StripeUnavailable.
    """
    if account.of(tenant).details.issuer != Invoice.Channel.STRIPE:
        remedy = f"An operator changes it: hearth account set {tenant.slug} --issuer stripe."
        raise StripeRefused(tenant.slug, "Stripe does not write its invoices", remedy)
    connection = connections.find(None)
    with exclusive.of_tenant(tenant.id):
        api = open_api(connection)
        session = api.post(
            "checkout/sessions",
            mode="setup",
            customer=ensure(api, connection, tenant, str(new_id())),
            currency=tenant.currency.lower(),
            success_url=back,
            cancel_url=back,
            metadata={TENANT: str(tenant.id)},
        )
    url = str(session.get("url") or "")
    if not url.startswith(_HTTPS):
        raise StripeRefused(tenant.slug, "Stripe gave no page")
    audit.record(actor, "payment_method.begun", ("tenant", tenant.id), tenant=tenant, after={"session": session["id"]})
    return url


def saved(actor: Actor, event: StripeEvent) -> str:
    """Make what was saved on Stripe's page the customer's default; return what was done, in one sentence.

    The session that began last counts, in whatever order events come. Raises StripeRefused, StripeUnavailable.
    """
    api = open_api(event.connection)
    return _save(actor, event.connection, api, api.get(f"checkout/sessions/{event.object_id}"))


def verified(actor: Actor, event: StripeEvent) -> str:
    """Do the same once a payment method is ready: a bank account may be verified days after its session is complete.

    https://docs.stripe.com/api/setup_intents/verify_microdeposits
    """
    api = open_api(event.connection)
    customer_id = api.get(f"setup_intents/{event.object_id}").get("customer") or "-"
    if not StripeCustomer.objects.filter(connection=event.connection, external_id=customer_id).exists():
        return NOTHING
    sessions = api.all("checkout/sessions", customer=customer_id)
    session = next((each for each in sessions if each.get("setup_intent") == event.object_id), None)
    return NOTHING if session is None else _save(actor, event.connection, api, session)


def forget(actor: Actor, event: StripeEvent) -> str:
    """Note that Stripe has a payment method no more; return what was done, in one sentence."""
    row = StripeCustomer.objects.filter(connection=event.connection, payment_method_id=event.object_id).first()
    if row is None:
        return "It is the default of no tenant."
    with exclusive.of_tenant(row.tenant_id):
        row.refresh_from_db()
        if row.payment_method_id != event.object_id:
            return "Another one replaced it."
        _keep(actor, row, "payment_method.removed")
    return f"{row.payment_method} is removed."


def remove(actor: Actor, tenant: Tenant) -> bool:
    """Remove the tenant's payment method, at Stripe and here, in every account; return whether it had one.

    Raises StripeRefused, StripeUnavailable.
    """
    with exclusive.of_tenant(tenant.id):
        rows = list(StripeCustomer.objects.filter(tenant_id=tenant.id).exclude(payment_method_id=""))
        for row in rows:
            _detach(open_api(row.connection), row.payment_method_id)
            _keep(actor, row, "payment_method.removed")
    return bool(rows)


def _save(actor: Actor, connection: StripeConnection, api: Api, session: Object) -> str:
    row = StripeCustomer.objects.filter(connection=connection, external_id=session.get("customer") or "-").first()
    if session["mode"] != "setup" or session["status"] != "complete" or row is None:
        return NOTHING
    with exclusive.of_tenant(row.tenant_id):  # of two sessions at once, the second one sees what the first one saved
        row.refresh_from_db()
        return _make_default(actor, api, row, session)


def _make_default(actor: Actor, api: Api, row: StripeCustomer, session: Object) -> str:
    intent = api.get(f"setup_intents/{session['setup_intent']}")
    if intent["status"] != "succeeded":
        return f"It is {intent['status']} at Stripe."
    method = api.get(f"payment_methods/{intent['payment_method']}")
    text, began = _text(method), datetime.fromtimestamp(session["created"], UTC)
    if method["id"] == row.payment_method_id:
        return f"{text} is saved already."
    if method.get("customer") != row.external_id:
        return f"{text} was removed since."
    if row.payment_method_at is not None and began < row.payment_method_at:
        _detach(api, method["id"])
        return "One that began later counts."
    api.post(f"customers/{row.external_id}", invoice_settings={"default_payment_method": method["id"]})
    if row.payment_method_id:
        _detach(api, row.payment_method_id)
    _keep(actor, row, "payment_method.saved", identity=method["id"], text=text, at=began)
    return f"{text} is saved."


def _detach(api: Api, identity: str) -> None:
    """Remove a payment method from its customer at Stripe, unless it has none any more."""
    try:
        if api.get(f"payment_methods/{identity}").get("customer"):
            api.post(f"payment_methods/{identity}/detach")
    except StripeRefused as error:
        if not error.is_missing:
            raise


@transaction.atomic
def _keep(
    actor: Actor, row: StripeCustomer, action: str, *, identity: str = "", text: str = "", at: datetime | None = None
) -> None:
    """Store the payment method, by default that there is none. Callers hold ``exclusive.of_tenant``."""
    StripeCustomer.objects.filter(id=row.id).update(
        payment_method_id=identity, payment_method=text[:100], payment_method_at=at or row.payment_method_at
    )
    # What ends in which digits is in no audit log, which is kept for longer.
    audit.record(actor, action, ("tenant", row.tenant_id), tenant=Tenant.objects.get(id=row.tenant_id), after={})


def _text(method: Object) -> str:
    """Return what people recognise a payment method by, such as "visa, ends in 4242, until 12/2030"."""
    kind = method["type"]
    details = method.get(kind) or {}
    parts = [details.get("brand") or kind.replace("_", " ")]
    if details.get("last4"):
        parts.append(f"ends in {details['last4']}")
    if details.get("exp_month") and details.get("exp_year"):
        parts.append(f"until {details['exp_month']:02}/{details['exp_year']}")
    return ", ".join(parts)
