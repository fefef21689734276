"""What a new machine and the portal say to each other: both prove that they know the token's secret, and never send it.

The network between them may be read and changed by others, because the portal may speak plain HTTP. The request has a
MAC under the secret, so nobody can make or alter one. It names a key of age that the machine has made for this request
alone, and the reply is sealed for that key, so whoever records both and gets the token later still cannot read it. The
reply has a MAC too, over the request as well, so only the portal of the cluster that issued the token can have made it.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
import pyrage

from workers.errors import BadValue

#: Of a request, in characters.
LONGEST_REQUEST = 4096


PREFIX = "hn_"
_ID_BYTES, _SECRET_BYTES = 16, 32


class Forged(Exception):
    """A message was not made by somebody who knows the token's secret, or not for this request."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a machine asks for. ``recipient``: the age key that the reply is sealed for."""

    node: str
    recipient: str
    #: It has the address of that server already.
    has_database: bool = False
    has_redis: bool = False


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine needs to run as a node. An address is empty if the machine has it already."""

    node: str
    pool: str
    engine_key: str
    engine_key_fallbacks: list[str]
    database_url: str = ""
    redis_url: str = ""


class SignedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a request to join. ``request`` is a JoinRequest as JSON, ``mac`` hexadecimal."""

    token: str
    request: str
    mac: str


class SealedReply(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the answer. ``sealed`` is a JoinReply, sealed and in base64; ``mac`` hexadecimal."""

    sealed: str
    mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request that was made here, and the key that opens its reply."""

    body: SignedRequest
    _identity: pyrage.x25519.Identity = field(repr=False)
    _secret: bytes = field(repr=False)

    def opened(self, reply: SealedReply) -> JoinReply:
        """Return the content of a reply. Raises Forged."""
        if not hmac.compare_digest(_mac(self._secret, b"reply", self.body.mac, reply.sealed), reply.mac):
            raise Forged
        try:
            raw = pyrage.decrypt(base64.b64decode(reply.sealed), [self._identity])
            return msgspec.json.decode(raw, type=JoinReply)
        except (pyrage.DecryptError, binascii.Error, msgspec.DecodeError) as error:
            raise Forged from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a machine reads from a token: where the portal is, and the secret that both sides know."""

    token_id: UUID
    secret: bytes = field(repr=False)
    portal: str


def token_text(token_id: UUID, secret: bytes, portal: str) -> str:
    """Return a token as it is entered on the new machine."""
    return PREFIX + base64.urlsafe_b64encode(token_id.bytes + secret + portal.encode()).decode().rstrip("=")


def parse_token(text: str) -> Token:
    """Return what a token says. Raises BadValue."""
    body = text.strip().removeprefix(PREFIX)
    bad = BadValue("token for a node", f"{text.strip()[:8]}…", "the whole token that `hearth node token` printed")
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        portal = raw[_ID_BYTES + _SECRET_BYTES :].decode()
        parts = urlsplit(portal)
    except ValueError:
        raise bad from None
    if not text.strip().startswith(PREFIX) or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise bad
    secret = raw[_ID_BYTES : _ID_BYTES + _SECRET_BYTES]
    return Token(token_id=UUID(bytes=raw[:_ID_BYTES]), secret=secret, portal=portal)


def ask(token_id: str, secret: bytes, *, node: str, has_database: bool, has_redis: bool) -> Asking:
    """Return a request to join as ``node``."""
    identity = pyrage.x25519.Identity.generate()
    wanted = JoinRequest(node=node, recipient=str(identity.to_public()), has_database=has_database, has_redis=has_redis)
    text = msgspec.json.encode(wanted).decode()
    body = SignedRequest(token=token_id, request=text, mac=_mac(secret, b"request", token_id, text))
    return Asking(body=body, _identity=identity, _secret=secret)


def read(body: SignedRequest, secret: bytes) -> JoinRequest:
    """Return what a request asks for. Raises Forged."""
    if not hmac.compare_digest(_mac(secret, b"request", body.token, body.request), body.mac):
        raise Forged
    try:
        wanted = msgspec.json.decode(body.request, type=JoinRequest)
        pyrage.x25519.Recipient.from_str(wanted.recipient)
    except (msgspec.DecodeError, pyrage.RecipientError) as error:
        raise Forged from error
    return wanted


def seal(reply: JoinReply, wanted: JoinRequest, body: SignedRequest, secret: bytes) -> SealedReply:
    """Return the reply to a request, which only the machine that asked can open."""
    recipient = pyrage.x25519.Recipient.from_str(wanted.recipient)
    sealed = base64.b64encode(pyrage.encrypt(msgspec.json.encode(reply), [recipient])).decode()
    return SealedReply(sealed=sealed, mac=_mac(secret, b"reply", body.mac, sealed))


def _mac(secret: bytes, purpose: bytes, *parts: str) -> str:
    """Return the MAC of texts. None of them has a zero byte but at its end the next begins."""
    message = b"\0".join((b"hearth join", purpose, *(part.encode() for part in parts)))
    return hmac.digest(secret, message, "sha256").hex()
