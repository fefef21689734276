"""Requests during which engines failed. One that took two engines is refused for a while, so that it takes no third.

Whether a request is the cause cannot be known: an engine's other requests end with it. So the same request, which its
client or its SDK sends again, is refused, and all others of its tenant go on. A response that completes clears it.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import orjson

from gateway import errors
from gateway.request import RequestContext
from tenants.ids import ReplicaId, TenantId
from workers.serving.endpoints import Endpoint

#: A request on which this many engines failed may be the cause, and is not sent to another.
MAX_FAILED_ENGINES = 2
#: How long it is refused after the last of them.
REFUSED_SECONDS = 300.0
#: Requests remembered for each tenant; the oldest are forgotten.
MAX_REQUESTS = 1000
#: These fields decide the shape of the response only.
_SHAPE = frozenset({"stream", "stream_options"})


#: An engine's process: a replica and its generation. Equal requests that one of them takes with it count once.
_Engine = tuple[ReplicaId, int]


@dataclass(slots=True)
class _Suspect:
    """The engines that failed during a request, and until when that counts, monotonic seconds."""

    engines: set[_Engine]
    until: float


class SuspectRequests:
    """The suspects of this process. Only tenants that have one pay for the look-up."""

    def __init__(self, *, refused_seconds: float = REFUSED_SECONDS) -> None:
        self._refused_seconds = refused_seconds
        #: By tenant and content; the one that failed last comes last.
        self._suspects: dict[TenantId, dict[bytes, _Suspect]] = {}

    def require_trusted(self, context: RequestContext) -> None:
        """Raise Unavailable if engines failed during this request, as often as they may."""
        if not self._suspects:
            return
        suspects = self._suspects.get(context.caller.tenant_id)
        if suspects is None:
            return
        now = time.monotonic()
        self._drop_expired(context.caller.tenant_id, suspects, now)
        found = suspects.get(_name(context))
        if found is not None and len(found.engines) >= MAX_FAILED_ENGINES:
            raise errors.request_breaks_engines(found.until - now)

    def engine_failed(self, context: RequestContext, endpoint: Endpoint) -> None:
        """Record that this engine failed during the request."""
        suspects = self._suspects.setdefault(context.caller.tenant_id, {})
        now = time.monotonic()
        name = _name(context)
        before = suspects.pop(name, None)
        engines = before.engines if before is not None and before.until > now else set()
        engines.add((endpoint.replica_id, endpoint.generation))
        suspects[name] = _Suspect(engines, now + self._refused_seconds)
        if len(suspects) > MAX_REQUESTS:
            del suspects[next(iter(suspects))]

    def completed(self, context: RequestContext) -> None:
        """Clear the request: an engine has completed its response."""
        if not self._suspects:
            return
        tenant_id = context.caller.tenant_id
        suspects = self._suspects.get(tenant_id)
        if suspects is not None and suspects.pop(_name(context), None) is not None and not suspects:
            del self._suspects[tenant_id]

    def _drop_expired(self, tenant_id: TenantId, suspects: dict[bytes, _Suspect], now: float) -> None:
        while suspects:
            first = next(iter(suspects))
            if suspects[first].until > now:
                return
            del suspects[first]
        del self._suspects[tenant_id]


def _name(context: RequestContext) -> bytes:
    """Return what identifies the request's content, whether or not it is streamed."""
    call = context.call
    body = {name: value for name, value in call.body.items() if name not in _SHAPE}
    return hashlib.blake2b(call.path.encode() + orjson.dumps(body), digest_size=16).digest()
