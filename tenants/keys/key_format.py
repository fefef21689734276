"""The text of a key: ``<prefix>_<public id>_<secret><checksum>``.

The public id finds the row and the 43-character secret (256 bits, base64url) proves ownership. With the checksum
(6 hex digits of CRC-32), typing errors and a secret scanner's false matches are rejected without a database query.
Only an HMAC-SHA256 of the secret under a versioned pepper is stored. Checking it takes 1.6 µs; argon2 would take
136 ms and add no safety, because the secret is random and long.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from dataclasses import dataclass

from django.conf import settings

PUBLIC_ID_LENGTH = 12
_ALPHABET = string.ascii_lowercase + string.digits
_FORMAT = re.compile(r"(hk|ho|hs|hi)_([a-z0-9]{12})_([A-Za-z0-9_-]{43})([0-9a-f]{6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A well-formed key as presented; it may be invalid."""

    prefix: str
    public_id: str
    secret: str

    def text(self) -> str:
        """Return the full text of the key."""
        body = f"{self.prefix}_{self.public_id}_{self.secret}"
        return body + _checksum(body)


def generate(prefix: str) -> Credential:
    """Return a new random credential.

    ``prefix``: ``hk`` a key, ``ho`` an operator's token, ``hs`` a scrape token, ``hi`` an invitation.
    """
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(PUBLIC_ID_LENGTH))
    return Credential(prefix=prefix, public_id=public_id, secret=secrets.token_urlsafe(32))


def parse(text: str) -> Credential | None:
    """Return the parts of a well-formed key, or None."""
    match = _FORMAT.fullmatch(text)
    if match is None or _checksum(text[:-6]) != match[4]:
        return None
    return Credential(prefix=match[1], public_id=match[2], secret=match[3])


def digest(secret: str) -> tuple[bytes, int]:
    """Return (HMAC of the secret, pepper version) under the current pepper."""
    pepper = settings.SECRETS.key_pepper
    return _hmac(pepper.value, secret), pepper.current


def matches(secret: str, stored: bytes, pepper_version: int) -> bool:
    """Compare in constant time. An unknown pepper version matches nothing."""
    pepper = settings.SECRETS.key_pepper.versions.get(pepper_version)
    return pepper is not None and hmac.compare_digest(_hmac(pepper, secret), stored)


def _hmac(pepper: bytes, secret: str) -> bytes:
    return hmac.digest(pepper, secret.encode(), hashlib.sha256)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()) & 0xFFFFFF:06x}"
