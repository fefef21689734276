"""Named secrets with which repositories on the hub are read: sealed in the database, never shown.

A secret is encrypted by age (https://age-encryption.org/v1) to a key that is derived from the cluster's engine key,
which every node has. So the database and its backups alone do not give it away, and a node reads it without a further
one. PostgreSQL lets a node select only the secrets of models whose files it fetches (``workers.node_role``).
"""

from __future__ import annotations

import datetime as dt
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

import pyrage
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from pyrage import x25519

from catalogue.models import Model
from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName
from workers.engines.errors import UnknownEngineKey
from workers.errors import NotFound, Refused
from workers.models import ModelSecret, Secret, Weights
from workers.weights import bech32

#: Hugging Face's tokens have 37 characters.
LONGEST_VALUE = 500
NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_PURPOSE = b"hearth hub token 1"
#: How an identity of age begins.
_IDENTITY = "age-secret-key-"


class SecretUnreadable(Exception):
    """The stored secret was altered, or put in the place of another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSecret:
    """A secret without its value, and the models that use it."""

    name: str
    set_at: dt.datetime
    models: tuple[str, ...]


def listed() -> list[ListedSecret]:
    """Return the secrets by name."""
    rows = Secret.objects.prefetch_related("links__model").order_by("name")
    return [
        ListedSecret(
            name=row.name, set_at=row.set_at, models=tuple(sorted(link.model.name for link in row.links.all()))
        )
        for row in rows
    ]


@transaction.atomic
def store(actor: Actor, name: str, value: str, *, what: str = "secret value") -> bool:
    """Seal a secret, replacing an earlier value; return whether it is new. Fetches that failed begin again.

    The audit log says that it was set, and not what it is. Raises BadName, for the value as ``what``.
    """
    if not NAME.fullmatch(name):
        raise BadName("secret name", name, "1 to 63 characters a-z, 0-9 and -, with a letter or digit at both ends")
    clean = value.strip()
    if not clean or len(clean) > LONGEST_VALUE or not clean.isascii() or not clean.isprintable() or " " in clean:
        # Without its text: an error may be shown and logged.
        raise BadName(what, "the given text", f"1 to {LONGEST_VALUE} printable ASCII characters without spaces")
    row = Secret.objects.select_for_update().filter(name=name).first()
    new = row is None
    row = row or Secret(name=name)
    row.engine_key = next(iter(settings.SECRETS.engine_keys))
    row.sealed = pyrage.encrypt(row.id.bytes + clean.encode(), [_identity(row.engine_key).to_public()])
    row.save()
    Secret.objects.filter(id=row.id).update(set_at=Now())
    _begin_again(row.links.values_list("model_id", flat=True))
    audit.record(actor, "secret.set", ("secret", row.id), after={"name": name})
    return new


@transaction.atomic
def remove(actor: Actor, name: str) -> None:
    """Delete a secret. Raises NotFound; Refused while a model uses it."""
    row = _find(name)
    models = sorted(row.links.values_list("model__name", flat=True))
    if models:
        raise Refused("secret", name, f"{', '.join(models)} uses it", "give the model another one, or none")
    row.delete()
    audit.record(actor, "secret.removed", ("secret", row.id), before={"name": name})


@transaction.atomic
def use(actor: Actor, model: Model, name: str) -> None:
    """Let a model's files be fetched with this secret, with none for an empty name; idempotent. Raises NotFound."""
    row = _find(name) if name else None
    link = ModelSecret.objects.select_related("secret").filter(model=model).first()
    before = "" if link is None else link.secret.name
    if before == name:
        return
    if row is None:
        ModelSecret.objects.filter(model=model).delete()
    else:
        ModelSecret.objects.update_or_create(model=model, defaults={"secret": row})
    _begin_again([model.id])
    told = {"model": model.name, "secret": before}, {"model": model.name, "secret": name}
    audit.record(actor, "model.secret_set", ("model", model.id), tenant=model.owner, before=told[0], after=told[1])


def of_model(model_id: UUID) -> str:
    """Return the name of a model's secret, or an empty text."""
    found = ModelSecret.objects.filter(model_id=model_id).values_list("secret__name", flat=True).first()
    return found or ""


def read(name: str) -> str:
    """Return a secret's value. Raises NotFound, UnknownEngineKey, SecretUnreadable."""
    return _opened(_found(name, Secret.objects.all()))


def read_of_model(model_id: UUID) -> str | None:
    """Return the value of a model's secret; None if it has none. Raises UnknownEngineKey, SecretUnreadable."""
    link = ModelSecret.objects.select_related("secret").filter(model_id=model_id).first()
    return None if link is None else _opened(link.secret)


def _opened(row: Secret) -> str:
    try:
        opened: bytes = pyrage.decrypt(bytes(row.sealed), [_identity(row.engine_key)])
    except pyrage.DecryptError as error:
        raise SecretUnreadable("it was altered") from error
    if opened[:16] != row.id.bytes:
        raise SecretUnreadable("it is another one's")
    return opened[16:].decode()


def _find(name: str) -> Secret:
    """Return a secret, locked. Raises NotFound."""
    return _found(name, Secret.objects.select_for_update())


def _found(name: str, rows: QuerySet[Secret]) -> Secret:
    row = rows.filter(name=name).first() if "\0" not in name else None
    if row is None:
        raise NotFound("secret", name, tuple(Secret.objects.order_by("name").values_list("name", flat=True)[:20]))
    return row


def _begin_again(models: Iterable[UUID]) -> None:
    failed = Weights.objects.filter(revision__model__in=list(models), state=Weights.State.FAILED)
    failed.update(next_attempt_at=None, attempts=0)


def _identity(fingerprint: str) -> x25519.Identity:
    known: dict[str, str] = settings.SECRETS.engine_keys
    if fingerprint not in known:
        raise UnknownEngineKey(fingerprint)
    secret = hmac.digest(known[fingerprint].encode(), _PURPOSE, "sha256")
    return x25519.Identity.from_str(bech32.encode(_IDENTITY, secret).upper())
