"""Values kept in Redis, sealed under their names: an altered or moved value does not open.

A sealed value is the 32-byte MAC of (name, content), then the content (``tenants.isolation.keyspace.value_mac``).
"""

from __future__ import annotations

import hmac

from tenants.isolation import keyspace

SEAL_BYTES = 32


def seal(name: bytes, content: bytes) -> bytes:
    """Return the bytes to store under ``name``."""
    return keyspace.value_mac(name, content) + content


def unseal(name: bytes, stored: bytes) -> bytes | None:
    """Return the content, or None when it was altered, moved from another name, or sealed with another secret."""
    mac, content = stored[:SEAL_BYTES], stored[SEAL_BYTES:]
    return content if hmac.compare_digest(mac, keyspace.value_mac(name, content)) else None
