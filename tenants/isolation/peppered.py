"""Seal secrets with a key derived from the pepper, so that the database alone does not give them away."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from django.conf import settings

_NONCE_BYTES = 12


@dataclass(eq=False)
class Unreadable(Exception):
    """A sealed secret was altered or moved, or its pepper is gone."""

    problem: str


def seal(purpose: bytes, row: UUID, text: str) -> tuple[bytes, int]:
    """Return (sealed text, pepper version) under the current pepper. Only this purpose and row's id open it."""
    return seal_bytes(purpose, row, text.encode())


def unseal(purpose: bytes, row: UUID, sealed: bytes, pepper_version: int) -> str:
    """Return the text. Raises Unreadable if it was altered or moved, or if the pepper is gone."""
    return unseal_bytes(purpose, row, sealed, pepper_version).decode()


def seal_bytes(purpose: bytes, row: UUID, content: bytes) -> tuple[bytes, int]:
    """Return (sealed content, pepper version), as :func:`seal`."""
    version: int = settings.SECRETS.key_pepper.current
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _cipher(purpose, version).encrypt(nonce, content, row.bytes), version


def unseal_bytes(purpose: bytes, row: UUID, sealed: bytes, pepper_version: int) -> bytes:
    """Return the content. Raises Unreadable, as :func:`unseal`."""
    if pepper_version not in settings.SECRETS.key_pepper.versions:
        raise Unreadable("its pepper is gone")
    nonce, content = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return _cipher(purpose, pepper_version).decrypt(nonce, content, row.bytes)
    except InvalidTag:
        raise Unreadable("it was altered") from None


def mac(purpose: bytes, content: bytes, pepper_version: int) -> bytes:
    """Return 16 bytes that equal those of the same content, and that nobody computes without the pepper."""
    key = hmac.digest(settings.SECRETS.key_pepper.versions[pepper_version], purpose, "sha256")
    return hmac.digest(key, content, "sha256")[:16]


def _cipher(purpose: bytes, pepper_version: int) -> ChaCha20Poly1305:
    pepper = settings.SECRETS.key_pepper.versions[pepper_version]
    return ChaCha20Poly1305(hmac.digest(pepper, purpose, "sha256"))
