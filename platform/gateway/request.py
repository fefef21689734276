"""What crosses the edge: a request as it came, an answer as it goes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

import msgspec

from billing.wal.records import State
from caching.single_flight import Flight
from gateway.errors import GatewayError
from gateway.protocols.endpoint import Endpoint

Headers = list[tuple[bytes, bytes]]
JSON: Headers = [(b"content-type", b"application/json")]
SSE: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


class ClientDisconnect:
    """What becomes of a request whose client leaves: it is stopped, unless others follow the flight that it leads."""

    __slots__ = ("_flight", "_stop", "happened")

    def __init__(self, stop: Callable[[], None] = lambda: None) -> None:
        self._stop = stop
        self._flight: Flight | None = None
        #: The client has left, so that nothing is sent any more.
        self.happened = False

    @property
    def has_followers(self) -> bool:
        """Say whether somebody else waits for what the request brings."""
        flight = self._flight
        return flight is not None and flight.followers > 0 and not flight.ended

    def lead(self, flight: Flight) -> None:
        """Take note that the request leads."""
        self._flight = flight
        flight.on_abandoned = self._alone

    def signal(self) -> None:
        """Take note that the client has left."""
        self.happened = True
        if not self.has_followers:
            self._stop()

    def cancel_with(self, stop: Callable[[], None]) -> None:
        """Stop it so from now on."""
        self._stop = stop

    def _alone(self) -> None:
        if self.happened:
            self._stop()


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A whole request. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    #: Address of whoever sent it; empty when it is not known.
    client: str = ""
    disconnect: ClientDisconnect = msgspec.field(default_factory=ClientDisconnect)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a client is told while nothing else comes, each so many seconds: balancers cut what is silent."""

    every_seconds: float
    comment: Callable[[], str]

    def event(self) -> bytes:
        """Return the comment as every reader of server-sent events skips it."""
        return f": {self.comment()}\n\n".encode()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: all of it in ``body``, or piece by piece from ``stream``.

    Whoever sends it calls ``on_close`` at the end, however the end came; calling it twice is allowed. ``end_with``
    makes a stream that runs tell this error and end. A piece of a stream is whole events, so ``heartbeat`` may be told
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
    """What one request has gathered on its way, for its headers and its usage record."""

    request_id: UUID
    #: The same as clients and engines are told it.
    request_name: str
    client_request_id: str
    #: time.time_ns() at arrival, and time.perf_counter() for durations.
    started_at_ns: int
    started: float
    #: In whose words errors are told.
    endpoint: Endpoint
    #: The name in the catalogue, once known.
    model: str = ""
    headers: Headers = msgspec.field(default_factory=list)
    #: Durations as far as they are known: until it was admitted, waiting for a replica, until an engine's first byte.
    admit_seconds: float = 0.0
    queue_seconds: float = 0.0
    engine_seconds: float = 0.0

    #: Why the request was ended from outside (``gateway.pipeline.revocation``).
    refusal: GatewayError | None = None
    #: How it ended, once its END is written.
    ended: State | None = None

    def timings(self) -> Headers:
        """Return the headers that say where the time until now went, milliseconds (``server-timing``: W3C)."""
        total = (time.perf_counter() - self.started) * 1000
        queue, engine = self.queue_seconds * 1000, self.engine_seconds * 1000
        spent = (self.admit_seconds * 1000, queue, engine, total)
        return [
            (b"server-timing", b"admit;dur=%.2f, queue;dur=%.2f, engine;dur=%.2f, total;dur=%.2f" % spent),
            (b"x-gateway-overhead-ms", b"%.2f" % max(0.0, total - queue - engine)),
            (b"x-queue-ms", b"%.2f" % queue),
        ]
