"""What one gateway process is made of; built once at start (see ``gateway.pipeline.runtime``), passed in everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from billing.wal.writer import WalWriter
from gateway.admission.controller import Admission
from gateway.cache.parsed_requests import Repeats
from gateway.cache.two_level_store import Shelf
from gateway.coalescing.shared_flights import SharedFlights
from gateway.control_plane.snapshot_feed import Feed
from gateway.pipeline.idempotency import Idempotency
from gateway.pipeline.revocation import Visits
from gateway.protocols.endpoint import Wire
from gateway.request import Incoming, Outgoing, Trace
from gateway.upstream.dispatcher import Dispatcher
from gateway.upstream.wait_queue import Hold
from tenants.snapshot import Caller

#: Hands a deferred request over: (caller, wire, incoming, trace) → the 202 answer.
Defer = Callable[[Caller, Wire, Incoming, Trace], Awaitable[Outgoing]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of the journey. ``poll_deferred`` answers GET /v1/requests/{id}."""

    feed: Feed
    hold: Hold
    admission: Admission
    shelf: Shelf
    repeats: Repeats
    dispatcher: Dispatcher
    wal: WalWriter
    defer: Defer
    visits: Visits
    idempotency: Idempotency
    single_flight: SharedFlights
    poll_deferred: Callable[[Caller, str], Awaitable[Outgoing]]
