"""The API key of each engine: derived, so it is neither stored nor sent, and different for every replica.

A replica's row names, by its fingerprint, the engine key that its token is derived from. So engines that were started
before a rotation and after it serve side by side. No name means the oldest key: versions without rotation wrote none.
"""

from __future__ import annotations

import hmac
from uuid import UUID

from django.conf import settings

from tenants.ids import ReplicaId
from workers.engines.errors import UnknownEngineKey


def derive(replica_id: ReplicaId, fingerprint: str) -> str:
    """Return the replica's key, 64 hexadecimal digits: HMAC-SHA256 of its id under the engine key that its row names.

    Raises UnknownEngineKey.
    """
    known: dict[str, str] = settings.SECRETS.engine_keys
    if not fingerprint:
        return derive_with(known[next(reversed(known))], replica_id)
    if fingerprint not in known:
        raise UnknownEngineKey(fingerprint)
    return derive_with(known[fingerprint], replica_id)


def derive_with(engine_key: str, replica_id: UUID) -> str:
    """Return the replica's key under the engine key of any instance."""
    return hmac.digest(engine_key.encode(), replica_id.bytes, "sha256").hex()


def newest() -> str:
    """Return the fingerprint of this process's newest engine key."""
    fingerprint: str = next(iter(settings.SECRETS.engine_keys))
    return fingerprint
