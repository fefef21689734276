"""Accounts at Stripe: one for each issuer, with a sealed secret key and the webhook endpoint's signing secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from billing import second_person
from billing.errors import StripeRefused
from billing.invoices import issuers
from billing.models import Issuer, StripeConnection, StripeWebhookSecret
from billing.stripe import api
from notifications.webhooks import sealing
from tenants import audit
from tenants.audit import Actor
from tenants.ids import new_id

#: Secret and restricted keys. https://docs.stripe.com/keys
_KEY = re.compile(r"(sk|rk)_(test|live)_[A-Za-z0-9_]{8,200}")
_WEBHOOK_SECRET = re.compile(r"whsec_[A-Za-z0-9_+/=]{8,200}")
_TAX_RATE = re.compile(r"txr_[A-Za-z0-9]{1,100}")
#: As long as Stripe signs with both secrets at most. https://docs.stripe.com/webhooks#roll-endpoint-secrets
OVERLAP = timedelta(hours=24)
_HINT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is set; None stays as it is. ``tax_rate``: its id, or empty for tax as a line of its own."""

    key: str | None = None
    webhook_secret: str | None = None
    tax_rate: str | None = None


def connect(actor: Actor, issuer_name: str | None, wanted: Wanted) -> StripeConnection:
    """Connect an issuer with its account at Stripe, or change what is given of it.

    Stripe is asked for the account first. Raises NotFound, StripeRefused, StripeUnavailable.
    """
    issuer = issuers.find(issuer_name)
    _check_shapes(issuer, wanted)
    known = StripeConnection.objects.filter(issuer=issuer).first()
    if known is None and not wanted.key:
        raise StripeRefused(issuer.name, "it is not connected with Stripe", "Give the secret key.")
    account_id = known.account_id if known else ""
    if wanted.key:
        account_id = api.with_key(wanted.key).get("account")["id"]
    if wanted.tax_rate:
        _check_rate(issuer, _opened(known, wanted).get(f"tax_rates/{wanted.tax_rate}"))
    return _store(actor, issuer, wanted, account_id)


def _opened(known: StripeConnection | None, wanted: Wanted) -> api.Api:
    if wanted.key or known is None:
        return api.with_key(wanted.key or "")
    return api.open_api(known)


def find(issuer_name: str | None = None) -> StripeConnection:
    """Return the connection of an issuer, by default the default one's. Raises NotFound, StripeRefused."""
    issuer = issuers.find(issuer_name)
    found = StripeConnection.objects.select_related("issuer").filter(issuer=issuer).first()
    if found is None:
        remedy = f"Connect it: hearth stripe connect {issuer.name}."
        raise StripeRefused(issuer.name, "it is not connected with Stripe", remedy)
    return found


def webhook_secrets(connection: StripeConnection, now: datetime) -> list[str]:
    """Return the signing secrets that are valid, the newest first. Raises SecretUnreadable."""
    valid = connection.webhook_secrets.filter(Q(expires_at=None) | Q(expires_at__gt=now)).order_by("-id")[:2]
    return [sealing.unseal(each.id, bytes(each.sealed), each.pepper_version) for each in valid]


@transaction.atomic
def _store(actor: Actor, issuer: Issuer, wanted: Wanted, account_id: str) -> StripeConnection:
    issuer = Issuer.objects.select_for_update().get(id=issuer.id)
    known = StripeConnection.objects.filter(issuer=issuer).first()
    is_live = known.is_live if known and not wanted.key else "_live_" in (wanted.key or "")
    if known and (known.account_id, known.is_live) != (account_id, is_live) and known.invoices.exists():
        reason = f"it has invoices in {known.account_id} ({mode(known)}), and this key is of another account or mode"
        raise StripeRefused(issuer.name, reason, "Use another issuer for it.")
    before = {"account": known.account_id} if known else None
    connection = known or StripeConnection(id=new_id(), issuer=issuer)
    connection.account_id, connection.is_live = account_id, is_live
    if wanted.key:
        connection.sealed_key, connection.pepper_version = sealing.seal(connection.id, wanted.key)
        connection.key_hint = wanted.key[-_HINT:]
        connection.connected_by = second_person.person(actor)
    if wanted.tax_rate is not None:
        connection.tax_rate_id = wanted.tax_rate
    connection.save()
    if wanted.webhook_secret:
        _add_secret(connection, wanted.webhook_secret)
    audit.record(
        actor,
        "stripe.connected",
        ("issuer", issuer.name),
        before=before,
        after={
            "account": account_id,
            "mode": mode(connection),
            "key": f"…{connection.key_hint}",
            "key_set": bool(wanted.key),
            "webhook_secret_set": bool(wanted.webhook_secret),
            "tax_rate": connection.tax_rate_id,
        },
    )
    return connection


def mode(connection: StripeConnection) -> str:
    """Return ``live`` or ``test``."""
    return "live" if connection.is_live else "test"


def _add_secret(connection: StripeConnection, text: str) -> None:
    """Make it the present secret; the one before stays valid for OVERLAP, and older ones end."""
    now = timezone.now()
    newest = connection.webhook_secrets.filter(expires_at=None).order_by("-id").first()
    connection.webhook_secrets.exclude(expires_at=None).delete()
    if newest is not None:
        newest.expires_at = now + OVERLAP
        newest.save(update_fields=["expires_at"])
    identity = new_id()
    sealed, version = sealing.seal(identity, text)
    StripeWebhookSecret.objects.create(
        id=identity, connection=connection, sealed=sealed, pepper_version=version, hint=text[-_HINT:]
    )


def _check_shapes(issuer: Issuer, wanted: Wanted) -> None:
    if wanted.key and not _KEY.fullmatch(wanted.key):
        reason = "this is no secret key; one begins with sk_test_, sk_live_, rk_test_ or rk_live_"
        raise StripeRefused(issuer.name, reason)
    if wanted.webhook_secret and not _WEBHOOK_SECRET.fullmatch(wanted.webhook_secret):
        raise StripeRefused(issuer.name, "this is no signing secret of a webhook endpoint; one begins with whsec_")
    if wanted.tax_rate and not _TAX_RATE.fullmatch(wanted.tax_rate):
        raise StripeRefused(issuer.name, "this is no id of a tax rate; one begins with txr_")


def _check_rate(issuer: Issuer, rate: api.Object) -> None:
    if not rate["active"] or rate["inclusive"]:
        reason = f"the tax rate {rate['id']} is archived, or its amounts include the tax"
        raise StripeRefused(issuer.name, reason, "Use an active rate that is added to amounts.")
