"""Tokens with which a machine joins as a node: for one pool, once, and for minutes.

A token's secret is derived from its id and the pepper of API keys, so the database holds nothing that is secret, and
nobody without the pepper can make one.
"""

from __future__ import annotations

import datetime as dt
import hmac
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from tenants import audit
from tenants.audit import Actor
from workers.errors import BadCount, BadValue, NotFound, Refused
from workers.fleet import lookup
from workers.fleet.joining import join_messages
from workers.models import NodeToken

DEFAULT_MINUTES = 15
MOST_MINUTES = 24 * 60
#: Tokens that may be valid at once.
MOST_VALID = 100
#: What PostgreSQL's names leave for a node's name after ``hearth_node_``.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,50}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A new token and its text, which is not stored."""

    token: NodeToken
    text: str = field(repr=False)

    @property
    def command(self) -> str:
        """Return what to enter on the new machine."""
        return f"hearth node join {self.text}"


@transaction.atomic
def issue(actor: Actor, *, pool: str, portal: str, minutes: int = DEFAULT_MINUTES, node: str = "") -> IssuedToken:
    """Make a token for a pool; ``portal`` is the address at which the new machine finds the portal.

    ``node`` binds it to one name, and lets a machine take the place of that node. Raises NotFound, BadCount, BadValue
    and Refused.
    """
    found = lookup.pool(pool)
    if not 1 <= minutes <= MOST_MINUTES:
        raise BadCount(minutes, f"1 to {MOST_MINUTES}", "minutes")
    if node:
        check_name(node)
    parts = urlsplit(portal)
    if parts.scheme not in {"http", "https"} or not parts.hostname or len(portal) > 300:
        raise BadValue("address of the portal", portal[:300], "one such as http://10.0.0.1:8081")
    if valid().count() >= MOST_VALID:
        raise Refused("pool", pool, f"{MOST_VALID} tokens for nodes are valid already", "revoke some")
    token = NodeToken.objects.create(
        pool=found,
        node_name=node,
        created_by=actor.name[:200],
        pepper_version=settings.SECRETS.key_pepper.current,
        expires_at=Now() + dt.timedelta(minutes=minutes),
    )
    token.refresh_from_db()
    audit.record(actor, "node_token.issued", ("node_token", token.id), after={"pool": pool, "node": node or None})
    return IssuedToken(token=token, text=_text(token, portal))


@transaction.atomic
def revoke(actor: Actor, token_id: UUID) -> NodeToken:
    """End a token; one that has ended stays as it is. Raises NotFound."""
    token = NodeToken.objects.select_for_update().filter(id=token_id).first()
    if token is None:
        raise NotFound("token for a node", str(token_id))
    if token.revoked_at is None and token.used_at is None:
        NodeToken.objects.filter(id=token.id).update(revoked_at=Now())
        audit.record(actor, "node_token.revoked", ("node_token", token.id))
    token.refresh_from_db()
    return token


def newest(count: int = 50) -> QuerySet[NodeToken]:
    """Return the newest tokens, used and ended ones too."""
    return NodeToken.objects.select_related("pool").order_by("-id")[:count]


def valid() -> QuerySet[NodeToken]:
    """Return the tokens that a machine could use now."""
    return NodeToken.objects.filter(used_at=None, revoked_at=None, expires_at__gt=Now())


def state_of(token: NodeToken) -> str:
    """Return in a few words whether a token can be used."""
    if token.used_at is not None:
        return f"used by {token.used_by}"
    if token.revoked_at is not None:
        return "revoked"
    return "valid" if valid().filter(id=token.id).exists() else "expired"


def secret_of(token: NodeToken) -> bytes | None:
    """Return a token's secret; None once its pepper was dropped."""
    pepper = settings.SECRETS.key_pepper.versions.get(token.pepper_version)
    return None if pepper is None else hmac.digest(pepper, b"hearth node token\0" + token.id.bytes, "sha256")


def check_name(node: str) -> None:
    """Raise BadValue unless a node may join with this name."""
    if not NODE_NAME.fullmatch(node):
        raise BadValue("name of a node", node[:60], "at most 51 letters, digits, dots, hyphens and underscores")


def _text(token: NodeToken, portal: str) -> str:
    secret = secret_of(token)
    assert secret is not None, "made with the current pepper"
    return join_messages.token_text(token.id, secret, portal)
