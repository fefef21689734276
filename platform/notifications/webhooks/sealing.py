"""Seal signing secrets with a key derived from the pepper, so that the database alone does not give them away."""

from __future__ import annotations

import hmac
import secrets
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from django.conf import settings

from notifications.errors import SecretUnreadable

_PURPOSE = b"hearth webhook secret 1"
_NONCE_BYTES = 12


def seal(secret_id: UUID, text: str) -> tuple[bytes, int]:
    """Return (sealed secret, pepper version) under the current pepper. Only this row's id opens it."""
    version: int = settings.SECRETS.key_pepper.current
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _cipher(version).encrypt(nonce, text.encode(), secret_id.bytes), version


def unseal(secret_id: UUID, sealed: bytes, pepper_version: int) -> str:
    """Return the secret's text. Raises SecretUnreadable if it was altered or moved, or if the pepper is gone."""
    if pepper_version not in settings.SECRETS.key_pepper.versions:
        raise SecretUnreadable("its pepper is gone")
    nonce, content = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return _cipher(pepper_version).decrypt(nonce, content, secret_id.bytes).decode()
    except InvalidTag:
        raise SecretUnreadable("it was altered") from None


def _cipher(pepper_version: int) -> ChaCha20Poly1305:
    pepper = settings.SECRETS.key_pepper.versions[pepper_version]
    return ChaCha20Poly1305(hmac.digest(pepper, _PURPOSE, "sha256"))
