"""What one gateway process is made of; built once at start (see ``gateway.pipeline.runtime``), passed in everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from billing.wal.writer import WalWriter
from gateway.admission.controller import AdmissionController
from gateway.cache.parsed_requests import ParsedRequestCache
from gateway.cache.two_level_store import PredictionCache
from gateway.coalescing.shared_flights import SharedFlights
from gateway.control_plane.snapshot_feed import SnapshotFeed
from gateway.pipeline.idempotency import Idempotency
from gateway.pipeline.revocation import ActiveRequests
from gateway.protocols.endpoint import Endpoint
from gateway.request import Request, RequestTimeline, Response
from gateway.upstream.dispatcher import Dispatcher
from gateway.upstream.wait_queue import ReplicaQueue
from tenants.snapshot import Caller

#: Hands a deferred request over: (caller, endpoint, request, timeline) → the 202 answer.
Defer = Callable[[Caller, Endpoint, Request, RequestTimeline], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The parts of the journey. ``poll_deferred`` answers GET /v1/requests/{id}."""

    feed: SnapshotFeed
    replica_queue: ReplicaQueue
    admission: AdmissionController
    prediction_cache: PredictionCache
    parsed_requests: ParsedRequestCache
    dispatcher: Dispatcher
    wal: WalWriter
    defer: Defer
    active_requests: ActiveRequests
    idempotency: Idempotency
    single_flight: SharedFlights
    poll_deferred: Callable[[Caller, str], Awaitable[Response]]
