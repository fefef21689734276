"""Decide what the prediction cache may do for one request, and write the headers that report it.

The headers are ``x-cache``, ``x-cache-reason``, ``x-cache-switch``, ``age`` and ``cache-status`` (RFC 9211).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from uuid import UUID

import msgspec

from caching import bypass, fingerprint, store
from caching.bypass import Bypass
from caching.entry import Entry, decode, encode
from caching.store import CacheWrite
from catalogue.registry import ServedModel
from gateway import metrics
from gateway.cache import cache_control
from gateway.cache.cache_control import CacheDirectives
from gateway.protocols import media
from gateway.protocols.endpoint import Usage
from gateway.protocols.request_body import Call
from gateway.request import Headers
from tenants.caller_limits import LARGEST_ENTRY_BYTES
from tenants.isolation import keyspace
from tenants.snapshot.snapshot import Caller


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the prediction cache may do for one request."""

    #: The cache key within the caller's scope; None when the response may be neither read nor stored.
    name: bytes | None
    #: SHA-256 of the canonical request; None where it was not computed.
    digest: bytes | None
    #: Why a stored response may not be read; None when it may.
    bypass: Bypass | None
    #: A complete response may be stored.
    writable: bool
    #: The request accepts a stored response only.
    only_if_cached: bool
    max_age_seconds: int | None

    @property
    def readable(self) -> bool:
        """Return whether a stored response may be returned."""
        return self.name is not None and self.bypass is None

    def redis_key(self, caller: Caller) -> str | None:
        """Return the Redis key of the stored response; None where it may not be read."""
        return store.entry_key(caller.tenant_id, self.name) if self.name is not None and self.readable else None

    def of_revision(self, caller: Caller, path: str, revision_digest: str) -> CachePolicy:
        """Return the policy for a response of another revision: it is stored under that one's key."""
        if self.digest is None:
            return self
        return msgspec.structs.replace(self, name=_name(caller, path, revision_digest, self.digest))

    def unpack(self, stored: bytes | None) -> Entry | None:
        """Return the entry in ``stored``; None when its MAC does not match. Thread-safe."""
        return decode(self.name, stored) if stored and self.name else None

    def is_fresh(self, caller: Caller, model_name: str, entry: Entry) -> bool:
        """Return whether an entry is young enough for the caller's limits and this request, and not purged."""
        fresh_seconds = min(entry.ttl_seconds, caller.cache.ttl_seconds)
        if self.max_age_seconds is not None:
            fresh_seconds = min(fresh_seconds, self.max_age_seconds)
        # The clock of the process that stored the entry may be ahead.
        if max(time.time() - entry.stored_at, 0) >= fresh_seconds:
            return False
        return not caller.cache.purges.covers(entry.source_id, entry.key_id, model_name)

    def is_storable(self, caller: Caller, entry: Entry) -> bool:
        """Return whether a complete response may be stored, as far as can be decided before it is packed."""
        limits = caller.cache
        if self.name is None or not self.writable or not limits.ttl_seconds:
            return False
        if limits.writes_per_minute == 0:
            metrics.cache_stored("write_rate")
            return False
        if len(entry.body) > min(limits.entry_bytes, LARGEST_ENTRY_BYTES):
            metrics.cache_stored("too_large")
            return False
        return True

    def cache_write(self, caller: Caller, model_name: str, entry: Entry) -> CacheWrite | None:
        """Pack an entry for Redis; return None when it is larger than the tenant's quota. Thread-safe."""
        if self.name is None:
            return None
        limits, value = caller.cache, encode(self.name, entry)
        if len(value) + store.OVERHEAD_BYTES > limits.quota_bytes:
            return None
        return CacheWrite(
            tenant_id=caller.tenant_id,
            name=self.name,
            value=value,
            ttl_seconds=limits.ttl_seconds,
            quota_bytes=limits.quota_bytes,
            writes_per_minute=limits.writes_per_minute,
            key_id=caller.key_id,
            source_id=entry.source_id,
            model_name=model_name,
        )

    def miss_headers(self) -> Headers:
        """Return the headers of a request that goes to an engine, known before its response."""
        reason = self.bypass
        if reason is None:
            return [(b"x-cache", b"miss")]
        headers = [(b"x-cache", b"bypass"), (b"x-cache-reason", reason.encode())]
        switch = bypass.SWITCHES.get(reason)
        return [*headers, (b"x-cache-switch", switch.encode())] if switch is not None else headers

    def status_headers(self, *, stored: bool) -> Headers:
        """Return the ``cache-status`` of an engine's response; a stream's headers are sent before it is stored."""
        why = b"fwd=miss" if self.bypass is None else b"fwd=bypass; detail=" + self.bypass.encode()
        return [(b"cache-status", b"hearth; " + why + (b"; stored" if stored else b""))]


def policy_for(caller: Caller, call: Call, model: ServedModel, headers: Mapping[str, str]) -> CachePolicy:
    """Return what the cache may do for a request. Raises BadRequest for an unknown ``x-prediction-cache``."""
    directives = cache_control.parse_directives(headers)
    forbidden = _forbidden(caller, call, directives)
    if forbidden is not None:
        return _bypass(forbidden, directives)
    unreadable = _not_readable(caller, directives)
    writable = caller.cache.may_write and directives.switch != "read"
    if unreadable is not None and not writable:
        return _bypass(unreadable, directives)
    digest = call.digest
    if digest is None:
        canonical = fingerprint.canonical(call.body, call.endpoint.ignored)
        if media.may_fetch(canonical, call.body):
            return _bypass("media", directives)
        digest = hashlib.sha256(canonical).digest()  # for a long request faster than the MAC
    elif call.facts is not None and call.facts.fetches_media:
        return _bypass("media", directives)
    return CachePolicy(
        name=_name(caller, call.path, model.digest, digest),
        digest=digest,
        bypass=unreadable,
        writable=writable,
        only_if_cached=directives.only_if_cached,
        max_age_seconds=directives.max_age_seconds,
    )


def new_entry(caller: Caller, request_id: UUID, body: bytes, usage: Usage, *, engine_ms: float) -> Entry:
    """Return the cache entry of a complete engine response."""
    return Entry(
        body=body,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached_prompt_tokens,
        completion_tokens=usage.completion_tokens,
        engine_ms=engine_ms,
        source_id=request_id,
        key_id=caller.key_id,
        stored_at=time.time(),
        ttl_seconds=caller.cache.ttl_seconds,
    )


def hit_headers(caller: Caller, entry: Entry) -> Headers:
    """Return the headers of a response from the cache."""
    age = entry.age_seconds()
    left = min(entry.ttl_seconds, caller.cache.ttl_seconds) - age
    return [
        (b"x-cache", b"hit"),
        (b"cache-status", b"hearth; hit; ttl=%d" % left),
        (b"age", b"%d" % age),
        (b"x-source-id", str(entry.source_id).encode()),
    ]


def _name(caller: Caller, path: str, revision_digest: str, request_digest: bytes) -> bytes:
    return keyspace.prediction_mac(caller, (fingerprint.FORMAT, path, revision_digest), request_digest)


def _forbidden(caller: Caller, call: Call, directives: CacheDirectives) -> Bypass | None:
    """Return why a response may be neither read nor stored; None when at least one of the two is allowed."""
    if call.endpoint.cacheable == "never" or (call.endpoint.cacheable == "whole" and call.stream):
        return "endpoint"
    if caller.cache.mode == "off":
        return "off"
    if directives.no_store:
        return "no-store"
    if directives.switch == "off":
        return "header"
    found = bypass.of_body(call.body) if call.facts is None else call.facts.bypass
    if found is not None:
        return found
    always = caller.cache.mode == "all" or directives.switch == "on" or call.endpoint.deterministic
    return None if always or bypass.is_deterministic(call.body) else "sampled"


def _not_readable(caller: Caller, directives: CacheDirectives) -> Bypass | None:
    """Return why a stored response may not be read although a new one may be stored."""
    if not caller.cache.may_read:
        return "scope"
    if directives.switch == "write":
        return "header"
    return "no-cache" if directives.no_cache else None


def _bypass(reason: Bypass, directives: CacheDirectives) -> CachePolicy:
    return CachePolicy(
        name=None,
        digest=None,
        bypass=reason,
        writable=False,
        only_if_cached=directives.only_if_cached,
        max_age_seconds=directives.max_age_seconds,
    )
