"""A cache of parsed requests, so that a body repeated byte for byte is not parsed again.

A request enters it when it receives a stored response, so requests that never repeat cost one lookup. Each API key has
entries of its own: the time that parsing takes must not reveal to one tenant what another one sent.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from catalogue.registry import ServedModel
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.request_body import Call
from tenants.snapshot.snapshot import Caller

#: The largest body that is cached, and the size of all cached bodies.
MAX_BODY_BYTES = 16 * 1024
MAX_TOTAL_BYTES = 4 << 20

_Name = tuple[UUID, str, bytes]


class ParsedRequest(msgspec.Struct, frozen=True):
    """A parsed request, and the model that its name stood for at that time."""

    call: Call
    model: ServedModel


class ParsedRequestCache:
    """The requests that recently received stored responses, oldest first."""

    def __init__(self) -> None:
        self._parsed: dict[_Name, ParsedRequest] = {}
        self._bytes = 0

    def find(self, caller: Caller, endpoint: Endpoint, body: bytes) -> ParsedRequest | None:
        """Return the parsed request of an identical body. The caller checks that the model is still the same."""
        if len(body) > MAX_BODY_BYTES:
            return None
        return self._parsed.get((caller.key_id, endpoint.path, body))

    def put(self, caller: Caller, call: Call, model: ServedModel, body: bytes, digest: bytes) -> None:
        """Cache a parsed request; ``digest``: of its canonical form (``Call.digest``)."""
        if len(body) > MAX_BODY_BYTES:
            return
        name = (caller.key_id, call.endpoint.path, body)
        if name not in self._parsed:
            self._bytes += len(body)
        self._parsed[name] = ParsedRequest(msgspec.structs.replace(call, digest=digest), model)
        while self._bytes > MAX_TOTAL_BYTES:
            oldest = next(iter(self._parsed))
            del self._parsed[oldest]
            self._bytes -= len(oldest[2])
