"""What one gateway process is made of; built once at start (``gateway.pipeline.runtime``) and passed to each stage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.admission.controller import AdmissionController
from gateway.bodies.memory import BodyMemory
from gateway.bodies.parser_pool import ParserPool
from gateway.cache.parsed_requests import ParsedRequestCache
from gateway.cache.two_level_store import PredictionCache
from gateway.coalescing.shared_flights import SharedFlights
from gateway.control_plane.snapshot_feed import SnapshotFeed
from gateway.metering.content_recorder import ContentRecorder
from gateway.metering.refusals import RefusalLog
from gateway.metering.usage_log import UsageLog
from gateway.pipeline.idempotency import Idempotency
from gateway.pipeline.revocation import ActiveRequests
from gateway.request import Request, RequestContext, Response
from gateway.tracing.tracer import Tracer
from gateway.upstream.dispatcher import Dispatcher
from gateway.upstream.queue.wait_queue import ReplicaQueue
from gateway.upstream.routing.sketch_log import SketchLog
from tenants.snapshot.snapshot import Caller

#: Stores a deferred request and returns the 202 response.
Defer = Callable[[RequestContext, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The components of the pipeline. ``poll_deferred`` answers GET /v1/requests/{id}."""

    feed: SnapshotFeed
    replica_queue: ReplicaQueue
    admission: AdmissionController
    prediction_cache: PredictionCache
    parsed_requests: ParsedRequestCache
    body_memory: BodyMemory
    parser_pool: ParserPool
    dispatcher: Dispatcher
    sketches: SketchLog
    wal: UsageLog
    refusals: RefusalLog
    contents: ContentRecorder
    defer: Defer
    active_requests: ActiveRequests
    idempotency: Idempotency
    single_flight: SharedFlights
    poll_deferred: Callable[[Caller, str], Awaitable[Response]]
    #: None: no request is traced.
    tracer: Tracer | None
