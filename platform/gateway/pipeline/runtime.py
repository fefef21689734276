"""Build the components of a gateway process, and close them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from django.conf import settings

from billing.wal.writer import WalWriter
from gateway import metrics
from gateway.admission.controller import AdmissionController
from gateway.admission.local_limiter import GatewayRank
from gateway.bodies.memory import BodyMemory
from gateway.bodies.parser_pool import ParserPool
from gateway.cache.parsed_requests import ParsedRequestCache
from gateway.cache.two_level_store import PredictionCache
from gateway.coalescing.shared_flights import SharedFlights
from gateway.control_plane.in_flight import InFlight
from gateway.control_plane.load_reporter import LoadReporter, process_name
from gateway.control_plane.snapshot_feed import ControlSnapshot, SnapshotFeed
from gateway.control_plane.traffic_reporter import TrafficReporter
from gateway.metering.content_recorder import ContentRecorder
from gateway.metering.refusals import RefusalLog
from gateway.pipeline import async_requests
from gateway.pipeline.components import Components
from gateway.pipeline.handler import Pipeline
from gateway.pipeline.idempotency import Idempotency
from gateway.pipeline.key_locks import KeyLocks
from gateway.pipeline.revocation import ActiveRequests
from gateway.redis_client.client import RedisClient
from gateway.redis_client.replication import ReplicatedWrites
from gateway.tracing.tracer import open_tracer
from gateway.upstream.client import UpstreamClient
from gateway.upstream.dispatcher import Dispatcher
from gateway.upstream.queue.bounds import QueueBounds
from gateway.upstream.queue.wait_queue import ReplicaQueue
from gateway.upstream.rollout_outcomes import RolloutOutcomes
from gateway.upstream.routing import boots
from gateway.upstream.routing import memory as routing_memory
from gateway.upstream.routing.decision_log import DecisionLog
from gateway.upstream.routing.exchange import RoutingExchange
from gateway.upstream.routing.sketch_log import SketchLog
from routing.router import Router
from routing.shared.file import SharedFile
from tenants import redis_address
from workers.serving import engine_tls

#: Longest time to connect to an engine; then another replica is tried.
ENGINE_CONNECT_TIMEOUT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Everything that a process opens: connections to engines and Redis, one WAL writer, one snapshot feed."""

    pipeline: Pipeline
    components: Components
    feed: SnapshotFeed
    upstream: UpstreamClient
    redis: tuple[RedisClient, ...]
    wal: WalWriter
    key_locks: KeyLocks
    routing_file: SharedFile | None
    routing_exchange: RoutingExchange
    decisions: DecisionLog

    async def close(self) -> None:
        """Close everything, the WAL last."""
        await asyncio.to_thread(self.feed.stop)
        await self.routing_exchange.close()
        self.decisions.send()
        self.components.sketches.send()
        await self.upstream.close()
        self.components.admission.close()
        await self.components.parser_pool.close()
        await self.components.contents.close()
        await self.components.prediction_cache.close()
        await self.components.single_flight.close()
        if self.components.tracer is not None:
            await self.components.tracer.close()
        for client in self.redis:
            await client.close()
        self.components.refusals.close()
        if self.routing_file is not None:
            routing_memory.close(self.routing_file)
        self.key_locks.close()
        self.wal.close()


def start(role: str) -> Runtime:
    """Open everything on the running loop. ``role`` names the WAL file. Raises WalError and OSError for its files."""
    wal, key_locks = _open_files(role)  # first, because nothing else here can fail
    process = process_name(role, settings.NODE_NAME)
    control = _ControlPlane(process)
    limits = _redis(settings.REDIS_LIMITS_URL)
    same = settings.REDIS_CACHE_URL == settings.REDIS_LIMITS_URL
    cache = limits if same else _redis(settings.REDIS_CACHE_URL)
    replicated = _replicated(settings.REDIS_LIMITS_URL)
    upstream = UpstreamClient(
        connect_seconds=ENGINE_CONNECT_TIMEOUT_SECONDS,
        read_timeout_seconds=settings.ENGINE_TIMEOUT_SECONDS,
        tls_context=engine_tls.GATEWAY.context,
    )
    single_flight = SharedFlights(cache, settings.GATEWAY_SOCKETS_DIR, control.has_other_gateways)
    single_flight.start()
    routing_exchange = RoutingExchange(cache, settings.REDIS_CACHE_URL, control.router, lambda: control.has_other_hosts)
    routing_exchange.start()
    decisions = DecisionLog(cache)
    components = Components(
        feed=control.feed,
        replica_queue=control.replica_queue,
        admission=AdmissionController(limits, cache, rank=control.rank),
        prediction_cache=PredictionCache(cache, settings.CACHE_FIRST_LEVEL_BYTES),
        parsed_requests=ParsedRequestCache(),
        body_memory=BodyMemory(),
        parser_pool=ParserPool(),
        dispatcher=Dispatcher(
            upstream, control.router, control.in_flight, control.queue_bounds, decisions, control.outcomes
        ),
        sketches=SketchLog(cache),
        wal=wal,
        refusals=RefusalLog(wal),
        contents=ContentRecorder(),
        defer=async_requests.accept,
        active_requests=control.active_requests,
        idempotency=Idempotency(limits, key_locks, replicated=replicated),
        single_flight=single_flight,
        poll_deferred=async_requests.poll,
        tracer=open_tracer(role, process),
    )
    _export_memory(components)
    control.feed.start()
    return Runtime(
        pipeline=Pipeline(components),
        components=components,
        feed=control.feed,
        upstream=upstream,
        redis=(limits, *([] if same else [cache]), *([] if replicated is None else [replicated.redis])),
        wal=wal,
        key_locks=key_locks,
        routing_file=control.routing_file,
        routing_exchange=routing_exchange,
        decisions=decisions,
    )


class _ControlPlane:
    """The snapshot feed, and what a change of the snapshot updates on the running loop."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self.routing_file = routing_memory.open_shared()
        self.router = Router(self.routing_file.state if self.routing_file else routing_memory.private())
        metrics.ROUTING_DRIFTING.set_function(lambda: self.router.drifting)
        self.in_flight = InFlight()
        self.active_requests = ActiveRequests()
        self.outcomes = RolloutOutcomes()
        self._load_reporter = LoadReporter(process, self.in_flight)
        self._traffic_reporter = TrafficReporter(process, self.outcomes.traffic)
        self.feed = SnapshotFeed(on_change=self._changed, on_poll=self._report)
        self.queue_bounds = QueueBounds()
        self.replica_queue = ReplicaQueue(self.feed, self.in_flight, self.queue_bounds)
        self.has_other_hosts = False

    def rank(self) -> GatewayRank:
        """Return the place of this process among all gateways."""
        return GatewayRank.of(self._process, self.feed.snapshot.gateways)

    def has_other_gateways(self) -> bool:
        """Return whether another gateway process runs."""
        return any(each != self._process for each in self.feed.snapshot.gateways)

    def _changed(self, old: ControlSnapshot | None, new: ControlSnapshot) -> None:
        """Pass a new snapshot on to the loop. Called in the feed's thread."""
        self._loop.call_soon_threadsafe(self._follow_engines, new)
        if old is not None and old.callers is not new.callers:
            self._loop.call_soon_threadsafe(self.active_requests.revoke, new.callers)
        self._loop.call_soon_threadsafe(self.replica_queue.wake)

    def _report(self, snapshot: ControlSnapshot) -> None:
        """Report to the fleet what is due. Called in the feed's thread."""
        self._load_reporter.report_if_due(snapshot)
        self._traffic_reporter.report_if_due()

    def _follow_engines(self, snapshot: ControlSnapshot) -> None:
        """Tell the router which engines run and leave, their caches' sizes, and whether other hosts have gateways."""
        running = [endpoint for group in snapshot.endpoints.values() for endpoint in group]
        engines = boots.of(running)
        self.router.follow(engines, leaving=frozenset(each.replica_id for each in running if each.leaving))
        self._load_reporter.follow(running)
        metrics.keep_replicas(engines)
        here = self.routing_file.count() if self.routing_file else 1
        self.has_other_hosts = len(snapshot.gateways) > here


def _export_memory(components: Components) -> None:
    """Let metrics read how much memory is in use."""
    metrics.CACHE_FIRST_LEVEL_BYTES.set_function(components.prediction_cache.local_bytes)
    metrics.BODY_BYTES.set_function(lambda: components.body_memory.used_bytes)


def _open_files(role: str) -> tuple[WalWriter, KeyLocks]:
    """Open the WAL of this process and the key locks of the host, or neither. Raises WalError, OSError."""
    wal = WalWriter(settings.WAL_DIR, role, settings.WAL_SYNC, max_bytes=settings.WAL_MAX_BYTES)
    try:
        return wal, KeyLocks(settings.WAL_DIR)
    except OSError:
        wal.close()
        raise


def _replicated(url: str) -> ReplicatedWrites | None:
    """Return a second connection for writes that a failover must not lose; None on a socket, which has no replica."""
    address = redis_address.parse(url)
    if address.path:
        return None
    return ReplicatedWrites(
        url,
        timeout_seconds=settings.REDIS_TIMEOUT_SECONDS,
        wait_seconds=settings.REDIS_TIMEOUT_SECONDS,
        has_replica=bool(address.primary),
    )


def _redis(url: str) -> RedisClient:
    return RedisClient(url, timeout_seconds=settings.REDIS_TIMEOUT_SECONDS)
