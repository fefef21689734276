"""A request and its response as they cross the gateway's edge, and what the stages share about a request."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import msgspec

from billing.wal.records import State
from caching.single_flight import Flight
from catalogue.registry import ServedModel
from gateway.bodies.memory import BodyShare
from gateway.errors import GatewayError
from gateway.protocols.endpoint import Endpoint
from gateway.protocols.request_body import Call
from gateway.request_trace import RequestTrace
from tenants.ids import ReplicaId
from tenants.snapshot.snapshot import Caller

Headers = list[tuple[bytes, bytes]]
JSON: Headers = [(b"content-type", b"application/json")]
CLOSE: Headers = [(b"connection", b"close")]
SSE: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class ClientDisconnect:
    """Whether the client has disconnected. That cancels its request, unless other requests follow its flight."""

    __slots__ = ("_cancel", "_flight", "happened")

    def __init__(self, cancel: Callable[[], None] = lambda: None) -> None:
        self._cancel = cancel
        self._flight: Flight | None = None
        #: The client has disconnected; nothing more is sent.
        self.happened = False

    @property
    def has_followers(self) -> bool:
        """Return whether another request waits for this request's response."""
        flight = self._flight
        return flight is not None and flight.followers > 0 and not flight.ended

    def lead(self, flight: Flight) -> None:
        """Note the flight that the request leads."""
        self._flight = flight
        flight.on_abandoned = self._on_abandoned

    def signal(self) -> None:
        """Note that the client has disconnected; cancel the request unless it has followers."""
        self.happened = True
        if not self.has_followers:
            self._cancel()

    def cancel_with(self, cancel: Callable[[], None]) -> None:
        """Cancel the request with ``cancel`` from now on."""
        self._cancel = cancel

    def _on_abandoned(self) -> None:
        if self.happened:
            self._cancel()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A complete request. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    #: The client's address; empty when it is not known.
    client: str = ""
    disconnect: ClientDisconnect = msgspec.field(default_factory=ClientDisconnect)
    #: Counts the body in memory; who creates it releases it once the response is sent. None: it is not counted.
    share: BodyShare | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The comment that a silent stream sends every ``every_seconds``, because load balancers cut idle connections."""

    every_seconds: float
    comment: Callable[[], str]

    def event(self) -> bytes:
        """Return the comment as a server-sent event, which clients skip."""
        return f": {self.comment()}\n\n".encode()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response: complete in ``body``, or piece by piece from ``stream``.

    The sender calls ``on_close`` at the end, however the response ended; a second call does nothing. ``end_with`` makes
    a running stream send an error as its last event. A piece of a stream is whole events, so ``heartbeat`` may be sent
    between any two.
    """

    status: int
    headers: Headers
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    heartbeat: Heartbeat | None = None
    on_close: Callable[[], None] = lambda: None
    end_with: Callable[[GatewayError], None] = lambda error: None


class RequestTimeline(msgspec.Struct, kw_only=True, eq=False):
    """Ids, times and headers that one request collects for its response headers and its usage record."""

    request_id: UUID
    #: The request id as clients and engines receive it.
    request_name: str
    client_request_id: str
    #: time.time_ns() at arrival, and time.perf_counter() for durations.
    started_at_ns: int
    started: float
    #: The endpoint whose error format the client understands.
    endpoint: Endpoint
    #: The model's name in the catalogue; empty until it is known.
    model: str = ""
    headers: Headers = msgspec.field(default_factory=list)
    #: Durations: until admission, waiting for a replica, and until the engine's first byte.
    admit_seconds: float = 0.0
    queue_seconds: float = 0.0
    engine_seconds: float = 0.0
    #: What a request that is not answered yet waits for: a replica, room on one, or the engine that has it.
    waits_for: Literal["replica", "room", "engine"] = "replica"
    #: How many engines have failed on it before its first byte.
    failed_engines: int = 0
    #: An engine failed before the first byte of its answer.
    has_failed: bool = False
    #: The replica that a rollout counts this failure for (``gateway.upstream.rollout_outcomes``).
    blamed: ReplicaId | None = None

    #: The error that ended the request from outside (``gateway.pipeline.revocation``).
    refusal: GatewayError | None = None
    #: The state in the request's END record, once it is written.
    ended: State | None = None
    #: Whose request it is; None until its key was checked.
    caller: Caller | None = None
    #: The request has a usage record, or will have one when it runs later.
    has_record: bool = False
    #: None: it is not traced.
    trace: RequestTrace | None = None

    def timings(self) -> Headers:
        """Return the headers that report where the time went so far, in milliseconds (``server-timing``: W3C)."""
        total = (time.perf_counter() - self.started) * 1000
        queue, engine = self.queue_seconds * 1000, self.engine_seconds * 1000
        spent = (self.admit_seconds * 1000, queue, engine, total)
        return [
            (b"server-timing", b"admit;dur=%.2f, queue;dur=%.2f, engine;dur=%.2f, total;dur=%.2f" % spent),
            (b"x-gateway-overhead-ms", b"%.2f" % max(0.0, total - queue - engine)),
            (b"x-queue-ms", b"%.2f" % queue),
        ]


class RequestContext(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One inference request as every stage sees it: its caller, the checked call, the model and the timeline."""

    caller: Caller
    call: Call
    model: ServedModel
    timeline: RequestTimeline
