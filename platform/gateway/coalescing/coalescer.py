"""Whether a request leads or follows: identical ones in flight run once (``caching.single_flight``)."""

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
from gateway.errors import EngineFailed, EngineRefused, GatewayError
from gateway.metering.meter import Meter
from gateway.request import ClientDisconnect, Headers, RequestContext

#: A request whose leaders failed so often may be the cause itself; it is asked by itself, or told so.
MAX_RUNS = 3
#: What says in an answer how it came about; told anew by a follower that comes to lead.
_TOLD = frozenset({b"x-cache", b"cache-status", b"x-source-id"})

B = TypeVar("B")


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """Another request's answer: all of it in ``entry``, else told by the flight, which is joined, as it comes."""

    flight: Flight
    entry: Entry | None
    #: Of an entry: what the client is told, in the shape that it asked for.
    told: bytes = b""


class Coalescer(Generic[B]):
    """How one request comes by its answer. ``lead`` asks an engine and returns what began."""

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
        #: The name under which it may be followed, and follow; None where it may do neither.
        self._name: bytes | None = None
        #: It takes no answer that was there before it asked.
        self._wants_new = False
        #: How long it has waited for others that told it nothing in the end, seconds.
        self.waited_seconds = 0.0
        self._runs = 0
        #: The flight that it leads.
        self.flight: Flight | None = None
        #: It waits for another request's answer.
        self.follows = False

    def prepare(self, policy: CachePolicy, disconnect: ClientDisconnect) -> None:
        """Begin with what the cache may do for the request. Call it first."""
        self.disconnect = disconnect
        if policy.readable and policy.writable and not self._tells_counts():
            self._name = policy.name
            self._wants_new = policy.max_age_seconds == 0

    async def lead_or_follow(self, lead: Callable[[], Awaitable[B]]) -> B | Followed:
        """Return what ``lead`` began, or the answer of an identical request in flight. Raises GatewayError.

        When the flight that is followed fails, one of its followers leads and the others follow that one.
        """
        while self._name is not None:
            if self._flights.shared:
                self._meter.wait()
                flight = await self._flights.claim(self._caller, self._name)
            else:
                flight = self._flights.find(self._name)
            if flight is None or self._is_purged(flight) or (flight.completed and self._wants_new):
                self._begin(self._name)
                break
            followed = await self._follow(flight)
            if followed is not None:
                return followed
        if self.follows:
            self.follows = False
            self._note(None)
        return await lead()

    def fail(self, error: BaseException) -> None:
        """End the flight that it leads, if that has not ended."""
        if self.flight is not None:
            self.flight.fail(error if isinstance(error, GatewayError) else None)

    def complete(self, entry: Entry | None, *, stored: bool) -> None:
        """End the flight that it leads with a whole answer: one without a body can be told in its own shape only.

        ``stored``: the prediction cache was given it.
        """
        if self.flight is not None:
            self.flight.complete(entry, stays=stored)

    def flight_failed(self, flight: Flight) -> None:
        """Take note that a flight failed that was followed. Raises what its engine said, or that it fails too often."""
        cause = flight.cause
        if isinstance(cause, EngineRefused):
            raise replace(cause)
        self._runs += 1
        if self._runs >= MAX_RUNS:
            self._name = None
            if isinstance(cause, EngineFailed):
                raise replace(cause)

    async def _follow(self, flight: Flight) -> Followed | None:
        """Return what a flight tells, None where it failed or cannot be told in this request's shape."""
        flight.join()
        self.follows = True
        joined = False
        began = time.monotonic()
        try:
            self._note(flight)
            if self._call.stream and flight.streamed:
                await flight.started()
                joined = True
                return Followed(flight=flight, entry=None)
            entry = await flight.result()
            told = None if entry is None else self._call.render(entry.body)
            if told is not None:
                return Followed(flight=flight, entry=entry, told=told)
            self._name = None
        except FlightFailed:
            self.flight_failed(flight)
        finally:
            if not joined:
                flight.leave()
        self.waited_seconds += time.monotonic() - began
        return None

    def _begin(self, name: bytes) -> None:
        flight = Flight(name, self._timeline.request_id, self._caller.key_id, streamed=self._call.stream)
        self._flights.begin(flight)
        self.disconnect.lead(flight)
        self.flight = flight

    def _note(self, flight: Flight | None) -> None:
        """Write down and tell whose answer it is given; None: one of its own."""
        told: Headers = [(b"x-cache", b"miss")]
        if flight is None:
            self._meter.lead()
        else:
            self._meter.follow(flight.source_id)
            told = follower_headers(flight.source_id)
        self._timeline.headers = [each for each in self._timeline.headers if each[0] not in _TOLD] + told

    def _is_purged(self, flight: Flight) -> bool:
        purges = self._caller.cache.purges
        return purges.covers(flight.source_id, flight.key_id, self._model.name)

    def _tells_counts(self) -> bool:
        """Say whether the client wants the tokens of each event, which no other client is told."""
        options = self._call.body.get("stream_options")
        return bool(options and options.get("continuous_usage_stats"))


def follower_headers(source_id: UUID) -> Headers:
    """Return the headers of an answer that another request got (``cache-status``: RFC 9211)."""
    return [
        (b"x-cache", b"coalesced"),
        (b"cache-status", b"hearth; fwd=miss; collapsed"),
        (b"x-source-id", str(source_id).encode()),
    ]
