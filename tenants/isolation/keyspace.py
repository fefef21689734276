"""All names and secrets that separate tenants are derived here.

Each input is prefixed with its length before it is hashed, so that ("ab", "c") and ("a", "bc") cannot collide.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

from django.conf import settings

from tenants.ids import TenantId
from tenants.snapshot.snapshot import Caller

SALT_FORMAT = b"hearth-cache-salt-1"

_Mac = hmac.HMAC | hashlib.blake2b


def scope_of(caller: Caller) -> tuple[str, UUID]:
    """Return the scope that shares this caller's responses and warm prefixes: (kind, id) of tenant, project or key."""
    match caller.policy.cache_scope:
        case "key":
            return "key", caller.key_id
        case "project":
            return "project", caller.project_id
        case _:
            return "tenant", caller.tenant_id


def cache_salt(caller: Caller, model_name: str) -> str:
    """Return the ``cache_salt`` of every engine call of this caller: 43 characters of base64url.

    Tenants that consented to share (one ``trust_group``) get one salt; the key's own scope still narrows it.
    vLLM takes a salt of at most 128 characters without ``@ / \\`` (``validate_cache_salt``).
    """
    return caller.derived(_salt, model_name)


def _salt(caller: Caller, model_name: str) -> str:
    kind, identity = scope_of(caller)
    owner = caller.tenant_id.bytes
    if kind == "tenant" and caller.trust_group:
        kind, owner, identity = "group", caller.trust_group.encode(), UUID(int=0)
    secret = settings.SECRETS.cache_salt
    mixed = _mac(
        secret.value,
        SALT_FORMAT,
        str(secret.current).encode(),
        model_name.encode(),
        owner,
        kind.encode(),
        identity.bytes,
        str(caller.policy.salt_epoch).encode(),
    )
    return base64.urlsafe_b64encode(mixed).rstrip(b"=").decode()


def prediction_mac(caller: Caller, question: tuple[str, ...], digest: bytes) -> bytes:
    """Return the 32-byte name of a whole response in this caller's scope.

    ``question`` is shared by many requests (format, endpoint, model); ``digest`` is specific to each request.
    """
    return _mixed(caller.derived(_begun, "prediction", str(caller.policy.salt_epoch), *question), (digest,))


def value_mac(name: bytes, value: bytes) -> bytes:
    """Return the 32-byte MAC of a stored value, so that write access to Redis is not enough to forge one."""
    secret = settings.SECRETS.cache_mac
    return _mixed(_quickly_keyed(secret.value), (b"value", name, value))


def idempotency_name(caller: Caller, path: str, text: str) -> bytes:
    """Return the 32-byte name of an API key's ``Idempotency-Key`` at one endpoint; its text is not stored."""
    secret = settings.SECRETS.cache_mac
    return _mac(secret.value, b"idempotency", caller.tenant_id.bytes, caller.key_id.bytes, path.encode(), text.encode())


def request_mac(name: bytes, *parts: bytes) -> bytes:
    """Return 32 bytes that identify the request sent under this name, to compare a repeated one."""
    secret = settings.SECRETS.cache_mac
    return _mac(secret.value, b"request", name, *parts)


def prefix_root(caller: Caller, model_name: str) -> bytes:
    """Return the 32-byte root of this caller's prefix hashes: equal prompts of two scopes share none."""
    return caller.derived(_root, model_name)


def session_key(caller: Caller, model_name: str, session: str) -> bytes:
    """Return the 32-byte name of a session; the client's text is not stored."""
    return _mixed(caller.derived(_begun, "session", model_name), (session.encode(),))


def conversation_key(caller: Caller, model_name: str, opening: bytes) -> bytes:
    """Return the 32-byte name of a session that the client does not name, from the hash of how it begins."""
    return _mixed(caller.derived(_begun, "conversation", model_name), (opening,))


def sketch_key(caller: Caller, model_name: str) -> bytes:
    """Return the 32-byte key of this caller's prompt sketches: no other tenant has equal hashes."""
    return caller.derived(_sketch_key, model_name)


@lru_cache(maxsize=4096)
def replica_token(tenant_id: UUID, replica_id: UUID) -> bytes:
    """Return a replica's name for one tenant: 8 characters, stable, and different for each tenant."""
    mixed = _mac(settings.SECRETS.cache_mac.value, b"replica", tenant_id.bytes, replica_id.bytes)
    return base64.urlsafe_b64encode(mixed[:6])


def redis_key(caller: Caller, room: str, name: str = "") -> str:
    """Return a Redis key. Braces keep one tenant's keys on one cluster node."""
    return tenant_key(caller.tenant_id, room, name)


def tenant_key(tenant_id: TenantId, room: str, name: str = "") -> str:
    """Return the same Redis key without a caller."""
    return f"{tenant_prefix(tenant_id)}{room}:{name}"


@lru_cache(maxsize=4096)
def tenant_prefix(tenant_id: TenantId) -> str:
    """Return how all Redis keys of a tenant begin."""
    return f"hearth:{{{tenant_id}}}:"


def _root(caller: Caller, model_name: str) -> bytes:
    return hashlib.sha256(cache_salt(caller, model_name).encode()).digest()


def _sketch_key(caller: Caller, model_name: str) -> bytes:
    return _begun(caller, "prompt sketch", model_name).digest()


def _mac(secret: bytes, *parts: bytes) -> bytes:
    return _mixed(_keyed(secret), parts)


@lru_cache(maxsize=64)
def _keyed(secret: bytes) -> hmac.HMAC:
    """Return a keyed MAC without input. Cached, because keying takes as long as the rest."""
    return hmac.new(secret, digestmod=hashlib.sha256)


@lru_cache(maxsize=64)
def _quickly_keyed(secret: bytes) -> hashlib.blake2b:
    """Return a MAC for per-request use: keyed BLAKE2b (RFC 7693) takes half the time of an HMAC over 1 KB."""
    return hashlib.blake2b(key=hashlib.sha256(secret).digest(), digest_size=32)


def _begun(caller: Caller, room: str, *rest: str) -> hashlib.blake2b:
    """Return a MAC with the common beginning of a caller's names hashed in."""
    kind, identity = scope_of(caller)
    begun = _quickly_keyed(settings.SECRETS.cache_mac.value).copy()
    parts = (room.encode(), caller.tenant_id.bytes, kind.encode(), identity.bytes)
    _mix(begun, (*parts, *(each.encode() for each in rest)))
    return begun


def _mixed(begun: _Mac, parts: Iterable[bytes]) -> bytes:
    """Return the MAC of ``begun`` plus these parts; ``begun`` is not changed."""
    whole = begun.copy()
    _mix(whole, parts)
    return whole.digest()


def _mix(into: _Mac, parts: Iterable[bytes]) -> None:
    for part in parts:
        into.update(len(part).to_bytes(8, "big"))
        into.update(part)
