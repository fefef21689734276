"""What the prediction cache may do for one request: what its answer is called, whether it is looked for, and kept."""

from __future__ import annotations

import time
from collections.abc import Mapping
from uuid import UUID

import msgspec

from caching import fingerprint
from caching.entry import Entry, decode, encode
from catalogue.registry import ServedModel
from gateway.schemas import Call
from gateway.wire.usage import Usage
from tenants import keyspace
from tenants.snapshot import Caller


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer is kept: its name in the caller's scope, None when it may not be kept, and why."""

    name: bytes | None
    redis_key: str | None
    bypass: fingerprint.Bypass | None

    @property
    def readable(self) -> bool:
        """``no-cache`` asks for a fresh answer, which is then kept."""
        return self.name is not None and self.bypass is None


def of(caller: Caller, call: Call, model: ServedModel, headers: Mapping[str, str]) -> Answer:
    """Return what the cache may do for a request."""
    if call.wire.keeps == "never" or (call.wire.keeps == "whole" and call.stream):
        return Answer(name=None, redis_key=None, bypass="endpoint")
    bypass = fingerprint.bypass_reason(
        call.body,
        caller.cache.mode,
        headers.get("cache-control", ""),
        always_deterministic=call.wire.deterministic,
    )
    if bypass not in {None, "no-cache"}:
        return Answer(name=None, redis_key=None, bypass=bypass)
    name = keyspace.prediction_mac(
        caller,
        fingerprint.FORMAT,
        call.endpoint.encode(),
        model.digest.encode(),
        fingerprint.canonical(call.body),
    )
    return Answer(name=name, redis_key=keyspace.redis_key(caller, "prediction", name.hex()), bypass=bypass)


def not_kept(answer: Answer) -> Answer:
    """Return the answer of a replica whose revision is not the one that it would be kept under."""
    return Answer(name=None, redis_key=None, bypass=answer.bypass)


def unpack(answer: Answer, stored: bytes | None) -> Entry | None:
    """Return the stored entry unless it was altered."""
    return decode(answer.name, stored, keyspace.value_mac) if stored and answer.name else None


def pack(answer: Answer, caller: Caller, request_id: UUID, body: bytes, usage: Usage, engine_ms: float) -> bytes | None:
    """Return the bytes to store of a whole answer; None where it may not be kept, or is too large."""
    if answer.name is None:
        return None
    entry = Entry(
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
    return encode(answer.name, entry, keyspace.value_mac)
