"""A tenant as Stripe's customer: created once, with the payment method that its people save on Stripe's page.

Hearth sees no card: Stripe's hosted page takes it (Checkout in setup mode), and Hearth keeps what Stripe says of it,
such as "visa, ends in 4242". https://docs.stripe.com/payments/save-and-reuse
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import transaction
from django.utils import timezone

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


def with_method(tenant: Tenant) -> StripeCustomer | None:
    """Return the tenant's customer that has a saved payment method, the last one saved; None for none."""
    rows = StripeCustomer.objects.filter(tenant_id=tenant.id).exclude(payment_method_id="")
    return rows.order_by("-payment_method_at").first()  # without its connection, which no tenant reads


def is_charged(tenant: Tenant, connection: StripeConnection) -> bool:
    """Return whether Stripe charges an invoice by itself: the account says so, and a payment method is saved."""
    rows = StripeCustomer.objects.filter(tenant_id=tenant.id, connection=connection).exclude(payment_method_id="")
    return account.of(tenant).details.charge_automatically and rows.exists()


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
    session = api.get(f"checkout/sessions/{event.object_id}")
    row = StripeCustomer.objects.filter(connection=event.connection, external_id=session.get("customer") or "-").first()
    if session["mode"] != "setup" or session["status"] != "complete" or row is None:
        return "It saved no payment method of a tenant."
    began = datetime.fromtimestamp(session["created"], UTC)
    if row.payment_method_at is not None and began < row.payment_method_at:
        return "One that began later counts."
    intent = api.get(f"setup_intents/{session['setup_intent']}")
    if intent["status"] != "succeeded":
        return f"It is {intent['status']} at Stripe."
    method = api.get(f"payment_methods/{intent['payment_method']}")
    api.post(f"customers/{row.external_id}", invoice_settings={"default_payment_method": method["id"]})
    text = _text(method)
    _keep(actor, row, "payment_method.saved", identity=method["id"], text=text, at=began)
    return f"{text} is saved."


def forget(actor: Actor, event: StripeEvent) -> str:
    """Note that Stripe has a payment method no more; return what was done, in one sentence."""
    row = StripeCustomer.objects.filter(connection=event.connection, payment_method_id=event.object_id).first()
    if row is None:
        return "It is the default of no tenant."
    text = row.payment_method
    _keep(actor, row, "payment_method.removed")
    return f"{text} is removed."


def remove(actor: Actor, tenant: Tenant) -> bool:
    """Remove the tenant's payment method, at Stripe and here; return whether it had one.

    Raises StripeRefused, StripeUnavailable.
    """
    row = with_method(tenant)
    if row is None:
        return False
    try:
        open_api(row.connection).post(f"payment_methods/{row.payment_method_id}/detach")
    except StripeRefused as error:
        if not error.is_missing:
            raise
    _keep(actor, row, "payment_method.removed")
    return True


@transaction.atomic
def _keep(
    actor: Actor, row: StripeCustomer, action: str, *, identity: str = "", text: str = "", at: datetime | None = None
) -> None:
    StripeCustomer.objects.filter(id=row.id).update(
        payment_method_id=identity, payment_method=text[:100], payment_method_at=at or timezone.now()
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
