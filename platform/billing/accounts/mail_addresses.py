"""Which e-mail addresses of a billing account are confirmed: nothing but a link to confirm it is sent to another one.

An address is confirmed by the link in that e-mail, by an operator, or because a member of the tenant has verified it as
their own when it is set. An address that leaves the account has to be confirmed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from allauth.account.models import EmailAddress
from django.core import signing
from django.db import transaction

from billing.models import BillingAccount
from notifications import outbox
from notifications.event_types import BILLING_ADDRESS_ADDED
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, NotFound
from tenants.ids import new_id
from tenants.models import Tenant

LINK_DAYS = 3
_SALT = "hearth billing address 1"
#: By whom a link confirms: whoever reads the mailbox.
LINK = Actor(kind="system", name="link by e-mail")


def confirmed(tenant: Tenant) -> tuple[str, ...]:
    """Return the addresses to which e-mails about money go."""
    return _split(BillingAccount.objects.filter(tenant_id=tenant.id).first())[0]


def unconfirmed(row: BillingAccount | None) -> tuple[str, ...]:
    """Return the addresses of an account that wait until somebody confirms them."""
    return _split(row)[1]


def follow(tenant: Tenant, before: Iterable[str]) -> None:
    """Bring what is confirmed in line with the account's addresses, and send a link to each that is new.

    ``before``: the addresses until now. Call it in the transaction that changes them.
    """
    row = BillingAccount.objects.select_for_update().get(tenant_id=tenant.id)
    listed = {each.lower() for each in row.billing_emails}
    of_members = EmailAddress.objects.filter(
        verified=True, user__is_active=True, user__memberships__tenant=tenant, email__in=[*listed, *row.billing_emails]
    )
    known = {*row.confirmed_emails, *(each.lower() for each in of_members.values_list("email", flat=True))}
    row.confirmed_emails = sorted(listed & known)
    row.save(update_fields=["confirmed_emails"])
    old = {each.lower() for each in before}
    for address in _split(row)[1]:
        if address.lower() not in old:
            outbox.emit(
                BILLING_ADDRESS_ADDED,
                tenant=tenant,
                subject=("tenant", tenant.id),
                data={"address": address},
                dedupe_key=str(new_id()),
                addresses=[address],
            )


@transaction.atomic
def confirm(actor: Actor, tenant: Tenant, address: str) -> None:
    """Have e-mails about money sent to an address of the account. Idempotent. Raises BadName for another address."""
    row = BillingAccount.objects.select_for_update().filter(tenant_id=tenant.id).first()
    listed = () if row is None else row.billing_emails
    if row is None or address.lower() not in {each.lower() for each in listed}:
        allowed = f"one of {', '.join(listed)}" if listed else "one of the account's; it has none"
        raise BadName("address", address[:254], allowed)
    if address.lower() in row.confirmed_emails:
        return
    row.confirmed_emails = sorted({*row.confirmed_emails, address.lower()})
    row.save(update_fields=["confirmed_emails"])
    # Without the address: the log is kept for longer than a person.
    audit.record(
        actor,
        "account.email_confirmed",
        ("tenant", tenant.id),
        tenant=tenant,
        after={"unconfirmed": len(_split(row)[1])},
    )


def token(tenant_id: UUID, address: str) -> str:
    """Return what confirms the address for LINK_DAYS from now on."""
    return signing.dumps([str(tenant_id), address], salt=_SALT)


def of_token(text: str) -> tuple[Tenant, str]:
    """Return the tenant and address of a token. Raises NotFound if it is forged or old, or the address is gone."""
    try:
        tenant_id, address = signing.loads(text, salt=_SALT, max_age=LINK_DAYS * 24 * 3600)
    except signing.BadSignature:
        raise NotFound("link", text[:20]) from None
    tenant = Tenant.objects.exclude(state=Tenant.State.ARCHIVED).filter(id=tenant_id).first()
    row = None if tenant is None else BillingAccount.objects.filter(tenant_id=tenant.id).first()
    if tenant is None or row is None or address not in row.billing_emails:
        raise NotFound("link", text[:20])
    return tenant, address


def _split(row: BillingAccount | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the confirmed and the other addresses of an account."""
    if row is None:
        return (), ()
    known = set(row.confirmed_emails)
    yes = tuple(each for each in row.billing_emails if each.lower() in known)
    return yes, tuple(each for each in row.billing_emails if each.lower() not in known)
