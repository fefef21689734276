"""Operators' bearer tokens for ``/api/v1/``, in the format of API keys with the prefix ``ho``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from tenants import audit
from tenants.audit import Actor
from tenants.errors import KeyRefused
from tenants.keys import key_format
from tenants.models import OperatorToken, User

PREFIX = "ho"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token and its text, which is not stored."""

    token: OperatorToken
    secret: str


@transaction.atomic
def issue(actor: Actor, user: User, *, name: str, expires_at: datetime | None = None) -> IssuedToken:
    """Create a token that acts as ``user``. Its text is returned only here."""
    credential = key_format.generate(PREFIX)
    stored, pepper_version = key_format.digest(credential.secret)
    token = OperatorToken.objects.create(
        public_id=credential.public_id,
        user=user,
        name=name,
        secret_hmac=stored,
        pepper_version=pepper_version,
        expires_at=expires_at,
    )
    audit.record(actor, "token.issued", ("token", token.id), after={"public_id": token.public_id, "name": name})
    return IssuedToken(token=token, secret=credential.text())


def authenticate(text: str) -> OperatorToken:
    """Return the valid token with this text. Raises KeyRefused with a reason."""
    credential = key_format.parse(text)
    if credential is None or credential.prefix != PREFIX:
        raise KeyRefused("malformed")
    token = OperatorToken.objects.select_related("user").filter(public_id=credential.public_id).first()
    if token is None or not key_format.matches(credential.secret, bytes(token.secret_hmac), token.pepper_version):
        raise KeyRefused("unknown")
    if token.revoked_at is not None or not token.user.is_active:
        raise KeyRefused("revoked")
    if token.expires_at is not None and token.expires_at <= timezone.now():
        raise KeyRefused("expired")
    return token


@transaction.atomic
def revoke(actor: Actor, token: OperatorToken) -> None:
    """Revoke the token. Idempotent."""
    revoked = OperatorToken.objects.filter(id=token.id, revoked_at=None).update(revoked_at=timezone.now())
    if revoked:
        audit.record(actor, "token.revoked", ("token", token.id), after={"public_id": token.public_id})
