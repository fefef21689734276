"""Return a stored response to a client, and store a complete one for later requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from caching.entry import Entry
from gateway import metrics
from gateway.cache.lookup import CacheHit
from gateway.cache.policy import CachePolicy, hit_headers, new_entry
from gateway.cache.two_level_store import PredictionCache
from gateway.protocols.endpoint import Usage
from gateway.request import JSON, SSE, Headers, RequestContext, Response


def replay(context: RequestContext, hit: CacheHit, cost: Headers) -> Response:
    """Return the response of a cache hit; ``cost`` are the headers that report its price."""
    headers = [*hit_headers(context.caller, hit.entry), *context.timeline.headers, *cost]
    if context.call.stream:
        return Response(status=200, headers=[*SSE, *headers], stream=_one_piece(hit.body))
    return Response(status=200, headers=[*JSON, *headers], body=hit.body)


def entry_of(context: RequestContext, body: bytes | None, usage: Usage | None, engine_ms: float) -> Entry | None:
    """Return the entry of a complete response; None when the engine did not report its usage.

    ``body`` None: the response has no form other than its own stream.
    """
    if usage is None:
        return None
    return new_entry(context.caller, context.timeline.request_id, body or b"", usage, engine_ms=engine_ms)


def store(
    cache: PredictionCache, policy: CachePolicy, context: RequestContext, entry: Entry | None, body: bytes | None
) -> bool:
    """Store a complete response if the policy allows it; return whether it is stored."""
    if entry is None or body is None:
        if policy.writable:
            metrics.cache_stored("incomplete")
        return False
    if not policy.is_storable(context.caller, entry):
        return False
    cache.put(entry, partial(policy.cache_write, context.caller, context.model.name, entry))
    return True


async def _one_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body
