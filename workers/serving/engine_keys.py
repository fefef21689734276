"""The API key of each engine: derived, so it is neither stored nor sent, and different for every replica."""

from __future__ import annotations

import hmac

from django.conf import settings

from tenants.ids import ReplicaId


def derive(replica_id: ReplicaId) -> str:
    """Return the replica's key, 64 hexadecimal digits: HMAC-SHA256 of its id under this instance's engine key."""
    secret: str = settings.SECRETS.engine_key
    return hmac.digest(secret.encode(), replica_id.bytes, "sha256").hex()
