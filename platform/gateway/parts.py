"""What one gateway process is made of; built once at start (see ``gateway.runtime``), passed in everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from billing.wal import WalWriter
from gateway.admission import Admission
from gateway.dispatch import Dispatcher
from gateway.feed import Feed
from gateway.hold import Hold
from gateway.idempotency import Idempotency
from gateway.messages import Incoming, Outgoing, Trace
from gateway.repeats import Repeats
from gateway.shared_flights import SharedFlights
from gateway.shelf import Shelf
from gateway.visits import Visits
from gateway.wire.base import Wire
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
