"""The token with which a model's repository on the hub is read: sealed in the database, never shown.

It is encrypted by age (https://age-encryption.org/v1) to a key that is derived from the cluster's engine key, which
every node has. So the database and its backups alone do not give it away, and a node reads it without a further secret.
PostgreSQL lets a node select only the tokens of models whose files it fetches (``workers.node_role``).
"""

from __future__ import annotations

import hmac
from uuid import UUID

import pyrage
from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from pyrage import x25519

from catalogue.models import Model
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName
from workers.engines.errors import UnknownEngineKey
from workers.models import HubToken, Weights
from workers.weights import bech32

#: Hugging Face's own have 37 characters.
LONGEST_TOKEN = 500
_PURPOSE = b"hearth hub token 1"
#: How an identity of age begins.
_IDENTITY = "age-secret-key-"


class TokenUnreadable(Exception):
    """The stored token was altered, or sealed for another model."""


@transaction.atomic
def store(actor: Actor, model: Model, token: str) -> None:
    """Seal a model's token, replacing an earlier one; fetches that failed begin again. Raises BadName.

    The audit log says that it was set, and not what it is.
    """
    clean = token.strip()
    if not clean or len(clean) > LONGEST_TOKEN or not clean.isascii() or not clean.isprintable() or " " in clean:
        # Without its text: an error may be shown and logged.
        raise BadName("hub token", "the given text", f"1 to {LONGEST_TOKEN} printable ASCII characters without spaces")
    fingerprint = next(iter(settings.SECRETS.engine_keys))
    recipient = _identity(fingerprint).to_public()
    sealed = pyrage.encrypt(model.id.bytes + clean.encode(), [recipient])
    HubToken.objects.update_or_create(
        model=model, defaults={"sealed": sealed, "engine_key": fingerprint, "set_at": Now()}
    )
    _begin_again(model)
    audit.record(actor, "model.hub_token_set", ("model", model.id), tenant=model.owner, after={"model": model.name})


@transaction.atomic
def remove(actor: Actor, model: Model) -> bool:
    """Delete a model's token; return whether it had one."""
    removed, _ = HubToken.objects.filter(model=model).delete()
    if removed:
        _begin_again(model)
        audit.record(
            actor, "model.hub_token_removed", ("model", model.id), tenant=model.owner, after={"model": model.name}
        )
    return bool(removed)


def read(model_id: UUID) -> str | None:
    """Return a model's token; None if it has none. Raises UnknownEngineKey, TokenUnreadable."""
    row = HubToken.objects.filter(model_id=model_id).first()
    if row is None:
        return None
    try:
        opened: bytes = pyrage.decrypt(bytes(row.sealed), [_identity(row.engine_key)])
    except pyrage.DecryptError as error:
        raise TokenUnreadable("it was altered") from error
    if opened[:16] != model_id.bytes:
        raise TokenUnreadable("it was sealed for another model")
    return opened[16:].decode()


def _begin_again(model: Model) -> None:
    failed = Weights.objects.filter(revision__model=model, state=Weights.State.FAILED)
    failed.update(next_attempt_at=None, attempts=0)


def _identity(fingerprint: str) -> x25519.Identity:
    known: dict[str, str] = settings.SECRETS.engine_keys
    if fingerprint not in known:
        raise UnknownEngineKey(fingerprint)
    secret = hmac.digest(known[fingerprint].encode(), _PURPOSE, "sha256")
    return x25519.Identity.from_str(bech32.encode(_IDENTITY, secret).upper())
