"""Seal signing secrets, so that the database alone does not give them away."""

from __future__ import annotations

from uuid import UUID

from notifications.errors import SecretUnreadable
from tenants.isolation import peppered

_PURPOSE = b"hearth webhook secret 1"


def seal(secret_id: UUID, text: str) -> tuple[bytes, int]:
    """Return (sealed secret, pepper version) under the current pepper. Only this row's id opens it."""
    return peppered.seal(_PURPOSE, secret_id, text)


def unseal(secret_id: UUID, sealed: bytes, pepper_version: int) -> str:
    """Return the secret's text. Raises SecretUnreadable if it was altered or moved, or if the pepper is gone."""
    try:
        return peppered.unseal(_PURPOSE, secret_id, sealed, pepper_version)
    except peppered.Unreadable as error:
        raise SecretUnreadable(error.problem) from None
