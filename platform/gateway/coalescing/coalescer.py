"""Decide whether a request leads or follows: identical requests in flight run once (``caching.single_flight``)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from caching.entry import Entry
from caching.errors import FlightFailed
from caching.single_flight import Flight
from gateway.cache.policy import CachePolicy
from gateway.coalescing.shared_flights import SharedFlights
from gateway.errors import EngineFailed, EngineOverran, EngineRefused, GatewayError
from gateway.metering.meter import Meter
from gateway.request import ClientDisconnect, Headers, RequestContext

#: After this many failed leaders the request may be the cause: it gets their error, or runs alone.
MAX_RUNS = 3
#: Headers about the source of a response, replaced when a follower becomes the leader.
_SOURCE_HEADERS = frozenset({b"x-cache", b"cache-status", b"x-source-id"})

B = TypeVar("B")


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """Another request's response: whole in ``entry``, else streamed by the flight, which is already joined."""

    flight: Flight
    entry: Entry | None
    #: The body of the entry in the format of this request.
    body: bytes = b""


class Coalescer(Generic[B]):
    """Leads or follows on behalf of one request."""

    def __init__(
        self,
        flights: SharedFlights,
        context: RequestContext,
        meter: Meter,
    ) -> None:
        self._flights = flights
        self._caller = context.caller
        self._call = context.call
        self._model = context.model
        self._timeline = context.timeline
        self._meter = meter
        self.disconnect = ClientDisconnect()
        #: The name of its flight; None if it must run alone.
        self._name: bytes | None = None
        #: It rejects responses that were complete before it arrived (``max-age=0``).
        self._rejects_completed = False
        #: Time spent waiting for flights that failed, seconds.
        self.waited_seconds = 0.0
        self._runs = 0
        #: The flight that it leads.
        self.flight: Flight | None = None
        #: It follows another request.
        self.follows = False

    def prepare(self, policy: CachePolicy, disconnect: ClientDisconnect) -> None:
        """Set the cache policy and the client's disconnect. Call this first."""
        self.disconnect = disconnect
        if policy.readable and policy.writable and not self._call.endpoint.wants_token_counts(self._call.body):
            self._name = policy.name
            self._rejects_completed = policy.max_age_seconds == 0

    async def lead_or_follow(self, lead: Callable[[], Awaitable[B]]) -> B | Followed:
        """Return what ``lead`` started, or the response of an identical request in flight. Raises GatewayError.

        If the followed flight fails, one of its followers becomes the leader and the others follow that one.
        """
        trace = self._timeline.trace
        while self._name is not None:
            if trace is not None:
                trace.enter("coalescing")
            if self._flights.shared:
                self._meter.wait()
                flight = await self._flights.claim(self._caller, self._name)
            else:
                flight = self._flights.find(self._name)
            if flight is None or self._is_purged(flight) or (flight.completed and self._rejects_completed):
                self._lead(self._name)
                break
            followed = await self._follow(flight)
            if followed is not None:
                return followed
        if self.follows:
            self.follows = False
            self._record_source(None)
        if trace is not None:
            trace.leave()
        return await lead()

    def fail(self, error: BaseException) -> None:
        """Fail the flight that it leads, if that has not ended."""
        if self.flight is not None:
            self.flight.fail(error if isinstance(error, GatewayError) else None)

    def complete(self, entry: Entry | None, *, stored_as: bytes | None) -> None:
        """Complete the flight that it leads. An entry without a body serves only followers of the stream.

        ``stored_as``: the cache key under which the response is stored; None if it is not. That of another revision has
        another key, and no request that comes later may get it.
        """
        if self.flight is not None:
            self.flight.complete(entry, stays=stored_as == self.flight.name)

    def flight_failed(self, flight: Flight) -> None:
        """Handle the failure of the followed flight. Raises its error if a retry cannot help, or after MAX_RUNS."""
        cause = flight.cause
        if isinstance(cause, EngineRefused | EngineOverran):
            raise replace(cause)
        self._runs += 1
        if self._runs >= MAX_RUNS:
            self._name = None
            if isinstance(cause, EngineFailed):
                raise replace(cause)

    async def _follow(self, flight: Flight) -> Followed | None:
        """Return the response of a flight, None if it failed or cannot be rendered in this request's format."""
        flight.join()
        self.follows = True
        joined = False
        began = time.monotonic()
        try:
            self._record_source(flight)
            if self._call.stream and flight.streamed:
                await flight.started()
                joined = True
                return Followed(flight=flight, entry=None)
            entry = await flight.result()
            body = None if entry is None else self._call.render(entry.body)
            if body is not None:
                return Followed(flight=flight, entry=entry, body=body)
            self._name = None
        except FlightFailed:
            self.flight_failed(flight)
        finally:
            if not joined:
                flight.leave()
        self.waited_seconds += time.monotonic() - began
        return None

    def _lead(self, name: bytes) -> None:
        flight = Flight(name, self._timeline.request_id, self._caller.key_id, streamed=self._call.stream)
        self._flights.begin(flight)
        self.disconnect.lead(flight)
        self.flight = flight

    def _record_source(self, flight: Flight | None) -> None:
        """Record whose response it gets, in the usage log and the headers; None: its own."""
        headers: Headers = [(b"x-cache", b"miss")]
        if flight is None:
            self._meter.lead()
        else:
            self._meter.follow(flight.source_id)
            headers = follower_headers(flight.source_id)
        self._timeline.headers = [each for each in self._timeline.headers if each[0] not in _SOURCE_HEADERS] + headers

    def _is_purged(self, flight: Flight) -> bool:
        purges = self._caller.cache.purges
        return purges.covers(flight.source_id, flight.key_id, self._model.name)


def follower_headers(source_id: UUID) -> Headers:
    """Return the headers of a follower's response (``cache-status``: RFC 9211)."""
    return [
        (b"x-cache", b"coalesced"),
        (b"cache-status", b"hearth; fwd=miss; collapsed"),
        (b"x-source-id", str(source_id).encode()),
    ]
