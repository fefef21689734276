"""Requests that come again byte for byte: what was read of them once is not read again.

Noted once a stored answer is given to a request, so that one that never comes again costs a look. Each key knows its
own alone: how quickly a request is read must not tell one tenant what another one asked.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from catalogue.registry import ServedModel
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.request_body import Call
from tenants.snapshot import Caller

#: Of one body, and of all that are kept, bytes.
LARGEST_BYTES = 16 * 1024
MOST_BYTES = 4 << 20

_Name = tuple[UUID, str, bytes]


class ParsedRequest(msgspec.Struct, frozen=True):
    """A request as it was read, for the model that it then was for."""

    call: Call
    model: ServedModel


class ParsedRequestCache:
    """The requests that stored answers were given to lately."""

    def __init__(self) -> None:
        self._known: dict[_Name, ParsedRequest] = {}
        self._bytes = 0

    def find(self, caller: Caller, endpoint: Endpoint, body: bytes) -> ParsedRequest | None:
        """Return what was read of this body when it came last. Whether its model still is the same must be checked."""
        if len(body) > LARGEST_BYTES:
            return None
        return self._known.get((caller.key_id, endpoint.path, body))

    def put(self, caller: Caller, call: Call, model: ServedModel, body: bytes, digest: bytes) -> None:
        """Keep what was read of a body; ``digest``: of the canonical form (``Call.digest``)."""
        if len(body) > LARGEST_BYTES:
            return
        name = (caller.key_id, call.endpoint.path, body)
        if name not in self._known:
            self._bytes += len(body)
        self._known[name] = ParsedRequest(msgspec.structs.replace(call, digest=digest), model)
        while self._bytes > MOST_BYTES:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._bytes -= len(oldest[2])
