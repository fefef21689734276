"""Scrape tokens (``hs_…``): Prometheus finds with one what to scrape, and can do nothing else.

They are nobody's: one stays valid when the operator who made it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from tenants import audit
from tenants.audit import Actor
from tenants.errors import BadName, KeyRefused, NotFound
from tenants.keys import key_format
from tenants.models import ScrapeToken

PREFIX = "hs"
DEFAULT_DAYS, MOST_DAYS = 366, 1830
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token and its text, which is not stored."""

    token: ScrapeToken
    secret: str


@transaction.atomic
def issue(actor: Actor, *, name: str, days: int = DEFAULT_DAYS) -> IssuedToken:
    """Make a token that is valid for ``days``. Its text is returned only here. Raises BadName."""
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise BadName("token name", name[:60], f"1 to {LONGEST_NAME} characters, such as prometheus")
    credential = key_format.generate(PREFIX)
    stored, pepper_version = key_format.digest(credential.secret)
    token = ScrapeToken.objects.create(
        public_id=credential.public_id,
        name=name,
        secret_hmac=stored,
        pepper_version=pepper_version,
        created_by=actor.name[:200],
        expires_at=timezone.now() + timedelta(days=days),
    )
    token.refresh_from_db()
    after = {"public_id": token.public_id, "name": name}
    audit.record(actor, "scrape_token.issued", ("scrape_token", token.id), after=after)
    return IssuedToken(token=token, secret=credential.text())


def authenticate(text: str) -> ScrapeToken:
    """Return the valid token with this text. Raises KeyRefused with a reason."""
    credential = key_format.parse(text)
    if credential is None or credential.prefix != PREFIX:
        raise KeyRefused("malformed")
    token = ScrapeToken.objects.filter(public_id=credential.public_id).first()
    if token is None or not key_format.matches(credential.secret, bytes(token.secret_hmac), token.pepper_version):
        raise KeyRefused("unknown")
    state = state_of(token)
    if state == "valid":
        return token
    raise KeyRefused("revoked" if state == "revoked" else "expired")


@transaction.atomic
def revoke(actor: Actor, token_id: UUID) -> ScrapeToken:
    """Revoke a token. Idempotent. Raises NotFound."""
    token = ScrapeToken.objects.select_for_update().filter(id=token_id).first()
    if token is None:
        raise NotFound("scrape token", str(token_id))
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
        audit.record(actor, "scrape_token.revoked", ("scrape_token", token.id), after={"public_id": token.public_id})
    return token


def newest(count: int = 50) -> QuerySet[ScrapeToken]:
    """Return the newest tokens, ended ones too."""
    return ScrapeToken.objects.order_by("-id")[:count]


def state_of(token: ScrapeToken) -> str:
    """Return ``valid``, ``revoked`` or ``expired``."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at <= timezone.now() else "valid"
