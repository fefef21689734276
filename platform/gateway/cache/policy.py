"""What the prediction cache may do for one request: what its answer is called, whether it is looked for, and kept.

And what is told of it: ``x-cache``, ``x-cache-reason``, ``x-cache-switch``, ``age``, ``cache-status`` (RFC 9211).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from uuid import UUID

import msgspec
from django.conf import settings

from caching import bypass, fingerprint, store
from caching.bypass import Bypass
from caching.entry import Entry, decode, encode
from caching.store import CacheWrite
from catalogue.registry import ServedModel
from gateway import metrics
from gateway.cache import cache_control
from gateway.cache.cache_control import Wishes
from gateway.protocols import media
from gateway.protocols.request_body import Call
from gateway.protocols.usage import Usage
from gateway.request import Headers
from tenants import keyspace
from tenants.caller_limits import LARGEST_ENTRY_BYTES
from tenants.snapshot import Caller


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What may be done: ``name`` is the answer's in the caller's scope, None when it is neither read nor kept."""

    name: bytes | None
    #: Of the canonical request, SHA-256; None where that was not asked.
    digest: bytes | None
    #: Why it may not be read; None when it may.
    bypass: Bypass | None
    #: Once it is whole it may be kept.
    writable: bool
    #: It is answered from the cache or not at all.
    only_if_cached: bool
    max_age_seconds: int | None

    @property
    def readable(self) -> bool:
        """Say whether a stored answer may be given."""
        return self.name is not None and self.bypass is None


def of(caller: Caller, call: Call, model: ServedModel, headers: Mapping[str, str]) -> Answer:
    """Return what the cache may do for a request. Raises BadRequest for an ``x-prediction-cache`` it does not know."""
    wish = cache_control.wishes(headers)
    barred = _barred(caller, call, wish)
    if barred is not None:
        return _beside(barred, wish)
    unread = _unread(caller, wish)
    writable = caller.cache.may_write and wish.switch != "read"
    if unread is not None and not writable:
        return _beside(unread, wish)
    digest = call.digest
    if digest is None:
        canonical = fingerprint.canonical(call.body, call.wire.ignored)
        if settings.MEDIA_DOMAINS and b'url"' in canonical and media.fetches(call.body):
            return _beside("media", wish)
        digest = hashlib.sha256(canonical).digest()  # of a long request quicker than the MAC
    name = keyspace.prediction_mac(caller, (fingerprint.FORMAT, call.endpoint, model.digest), digest)
    return Answer(
        name=name,
        digest=digest,
        bypass=unread,
        writable=writable,
        only_if_cached=wish.only_if_cached,
        max_age_seconds=wish.max_age_seconds,
    )


def redis_key(answer: Answer, caller: Caller) -> str | None:
    """Return where Redis keeps it; None where it may not be read."""
    return store.entry_key(caller.tenant_id, answer.name) if answer.name is not None and answer.readable else None


def not_kept(answer: Answer) -> Answer:
    """Return the answer of a replica whose revision is not the one that it would be kept under."""
    return msgspec.structs.replace(answer, name=None, writable=False)


def unpack(answer: Answer, stored: bytes | None) -> Entry | None:
    """Return the stored entry unless it was altered. Thread-safe."""
    return decode(answer.name, stored) if stored and answer.name else None


def may_be_given(answer: Answer, caller: Caller, model_name: str, entry: Entry) -> bool:
    """Say whether an entry is young enough for the caller's terms and this request, and not purged."""
    fresh_seconds = min(entry.ttl_seconds, caller.cache.ttl_seconds)
    if answer.max_age_seconds is not None:
        fresh_seconds = min(fresh_seconds, answer.max_age_seconds)
    # the clock of whoever stored it may be ahead
    if max(time.time() - entry.stored_at, 0) >= fresh_seconds:
        return False
    return not caller.cache.purges.cover(entry.source_id, entry.key_id, model_name)


def entry_of(caller: Caller, request_id: UUID, body: bytes, usage: Usage, *, engine_ms: float) -> Entry:
    """Return the entry of a whole answer that an engine gives now."""
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


def may_be_kept(answer: Answer, caller: Caller, entry: Entry) -> bool:
    """Say whether a whole answer may be stored, as far as that is known before it is packed."""
    terms = caller.cache
    if answer.name is None or not answer.writable or not terms.ttl_seconds:
        return False
    if terms.writes_per_minute == 0:
        metrics.cache_stored("write_rate")
        return False
    if len(entry.body) > min(terms.entry_bytes, LARGEST_ENTRY_BYTES):
        metrics.cache_stored("too_large")
        return False
    return True


def deposit(answer: Answer, caller: Caller, model_name: str, entry: Entry) -> CacheWrite | None:
    """Pack what may be kept; None where its tenant's quota is too small for it. Thread-safe."""
    if answer.name is None:
        return None
    terms, value = caller.cache, encode(answer.name, entry)
    if len(value) + store.OVERHEAD_BYTES > terms.quota_bytes:
        return None
    return CacheWrite(
        tenant_id=caller.tenant_id,
        name=answer.name,
        value=value,
        ttl_seconds=terms.ttl_seconds,
        quota_bytes=terms.quota_bytes,
        writes_per_minute=terms.writes_per_minute,
        key_id=caller.key_id,
        source_id=entry.source_id,
        model_name=model_name,
    )


def told_of_hit(caller: Caller, entry: Entry) -> Headers:
    """Return the headers of an answer out of the cache."""
    age = entry.age_seconds()
    left = min(entry.ttl_seconds, caller.cache.ttl_seconds) - age
    return [
        (b"x-cache", b"hit"),
        (b"cache-status", b"hearth; hit; ttl=%d" % left),
        (b"age", b"%d" % age),
        (b"x-source-id", str(entry.source_id).encode()),
    ]


def told_of_forward(answer: Answer) -> Headers:
    """Return the headers of a request that an engine is asked for, before anything is stored of it."""
    reason = answer.bypass
    if reason is None:
        return [(b"x-cache", b"miss")]
    told = [(b"x-cache", b"bypass"), (b"x-cache-reason", reason.encode())]
    switch = bypass.SWITCHES.get(reason)
    return [*told, (b"x-cache-switch", switch.encode())] if switch is not None else told


def status(answer: Answer, *, stored: bool) -> Headers:
    """Return the ``cache-status`` of what an engine answered; of a stream nobody knows yet whether it is stored."""
    why = b"fwd=miss" if answer.bypass is None else b"fwd=bypass; detail=" + answer.bypass.encode()
    return [(b"cache-status", b"hearth; " + why + (b"; stored" if stored else b""))]


def _barred(caller: Caller, call: Call, wish: Wishes) -> Bypass | None:
    """Say why an answer may neither be read nor kept; None when one of the two may be."""
    if call.wire.keeps == "never" or (call.wire.keeps == "whole" and call.stream):
        return "endpoint"
    if caller.cache.mode == "off":
        return "off"
    if wish.no_store:
        return "no-store"
    if wish.switch == "off":
        return "header"
    found = bypass.of_body(call.body)
    if found is not None:
        return found
    anyway = caller.cache.mode == "all" or wish.switch == "on" or call.wire.deterministic
    return None if anyway or bypass.is_deterministic(call.body) else "sampled"


def _unread(caller: Caller, wish: Wishes) -> Bypass | None:
    """Say why an answer may not be read though it might be kept."""
    if not caller.cache.may_read:
        return "scope"
    if wish.switch == "write":
        return "header"
    return "no-cache" if wish.no_cache else None


def _beside(reason: Bypass, wish: Wishes) -> Answer:
    return Answer(
        name=None,
        digest=None,
        bypass=reason,
        writable=False,
        only_if_cached=wish.only_if_cached,
        max_age_seconds=wish.max_age_seconds,
    )
