"""The API key of each engine: derived, so it is neither stored nor sent, and different for every replica."""

from __future__ import annotations

import hmac
from uuid import UUID

from django.conf import settings

from tenants.ids import ReplicaId


def derive(replica_id: ReplicaId) -> str:
    """Return the replica's key, 64 hexadecimal digits: HMAC-SHA256 of its id under this instance's engine key."""
    return derive_with(settings.SECRETS.engine_key, replica_id)


def derive_with(engine_key: str, replica_id: UUID) -> str:
    """Return the replica's key under the engine key of any instance."""
    return hmac.digest(engine_key.encode(), replica_id.bytes, "sha256").hex()
