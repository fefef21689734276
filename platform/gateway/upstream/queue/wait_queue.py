"""The queue of requests that wait for a replica of their model.

Queued requests wait in memory, so each tenant's policy bounds their time, number and bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from catalogue.registry import ServedModel
from gateway import errors, metrics
from gateway.control_plane.in_flight import InFlight
from gateway.control_plane.snapshot_feed import SnapshotFeed
from gateway.errors import NOT_NOW, EngineGone, NotReady
from gateway.upstream.queue.bounds import QueueBounds, QueuedRequest
from gateway.upstream.suspect_requests import MAX_FAILED_ENGINES
from workers.serving.startup_eta import UNMEASURED_SECONDS, Deployed

#: Queued requests also retry this often: an engine that failed only briefly causes no change of the snapshot.
RETRY_SECONDS = 1.0
#: How often a waiting stream sends a comment. Load balancers close a silent connection after 30 s or more, and until
#: the first comment an error still has its own status.
HEARTBEAT_SECONDS = 15.0

Outcome = Literal["served", "refused", "expired", "client_gone"]
T = TypeVar("T")


class ReplicaQueue:
    """The queued requests of this process. Lives on one event loop."""

    def __init__(
        self,
        feed: SnapshotFeed,
        in_flight: InFlight,
        bounds: QueueBounds,
        *,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        """``bounds``: of the whole process. ``heartbeat_seconds``: how often a waiting stream gets a comment."""
        self.heartbeat_seconds = heartbeat_seconds
        self._feed = feed
        self._in_flight = in_flight
        self.bounds = bounds
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Let every queued request retry. Call it when the snapshot has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def startup_eta_seconds(self, model: ServedModel, regions: frozenset[str]) -> float:
        """Return the measured time that a start of the model's next replica takes; ``regions`` empty: anywhere."""
        deployed = self._feed.snapshot.startable_deployment(model, regions)
        return self._feed.snapshot.etas.get(deployed.id, UNMEASURED_SECONDS) if deployed else UNMEASURED_SECONDS

    async def wait(
        self, request: QueuedRequest, failure: NotReady | EngineGone, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Return the result of ``attempt``, called each time the replicas have changed while it raises NOT_NOW.

        ``failure``: the error of the first attempt. Raises it, or a later one, if no replica can start, the time is
        over or too many engines failed on the request; Unavailable if the tenant's queue is full or no engine can load
        the model, an adapter; and other errors of ``attempt``. Only the waiting counts against the time.
        """
        began = time.monotonic()
        outcome: Outcome = "client_gone"
        try:
            result = await self._retry_until_served(request, failure, attempt)
            outcome = "served"
            return result
        except errors.GatewayError:
            outcome = "expired" if request.left_seconds <= 0 else "refused"
            raise
        finally:
            metrics.QUEUE_SECONDS.labels(request.model.name, outcome).observe(time.monotonic() - began)

    async def _retry_until_served(
        self, request: QueuedRequest, failure: NotReady | EngineGone, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        if self._startable(request) is None:
            await self._feed.refresh()  # an operator may just have created a deployment
        if self._startable(request) is None:
            raise self._not_startable(request, failure)
        self._require_capacity(request)  # once: a request keeps its place between attempts
        while True:
            self._feed.snapshot.require_loadable(request.model)
            deployed = self._startable(request)
            if deployed is None:
                raise self._not_startable(request, failure)
            if isinstance(failure, EngineGone) and failure.engines >= MAX_FAILED_ENGINES:
                raise failure
            if request.left_seconds <= 0:
                raise self._expired(request, failure)
            await self._wait_for_change(request, deployed)
            try:
                return await attempt()
            except NOT_NOW as again:
                failure = again

    async def _wait_for_change(self, request: QueuedRequest, deployed: Deployed) -> None:
        """Wait for a change, at most RETRY_SECONDS."""
        changed = self._changed
        with (
            self.bounds.counted(request),
            self._in_flight.queued(deployed.name, request.tokens, request.caller.allowed_regions),
        ):
            try:
                async with asyncio.timeout(min(request.left_seconds, RETRY_SECONDS)):
                    await changed.wait()
            except TimeoutError:
                pass

    def _require_capacity(self, request: QueuedRequest) -> None:
        """Raise Unavailable if the tenant's queue is full."""
        if limit := self.bounds.exceeded(request):
            name = request.model.name
            raise errors.queue_full(f"No replica of {name!r} is ready", limit, self._eta_seconds(request))

    def _startable(self, request: QueuedRequest) -> Deployed | None:
        return self._feed.snapshot.startable_deployment(request.model, request.caller.allowed_regions)

    def _eta_seconds(self, request: QueuedRequest) -> float:
        return self.startup_eta_seconds(request.model, request.caller.allowed_regions)

    def _not_startable(self, request: QueuedRequest, failure: NotReady | EngineGone) -> NotReady | EngineGone:
        if isinstance(failure, EngineGone):
            return failure
        regions = request.caller.allowed_regions
        if regions and self._runs_elsewhere(request.model):
            return errors.region_unavailable(request.model.name, regions)
        return errors.no_replicas_wanted(request.model.name)

    def _expired(self, request: QueuedRequest, failure: NotReady | EngineGone) -> NotReady | EngineGone:
        if isinstance(failure, EngineGone):
            return failure
        regions = request.caller.allowed_regions
        if regions and self._feed.snapshot.endpoints.get(request.model.name):  # ready, in other regions
            return errors.region_unavailable(request.model.name, regions, self._eta_seconds(request))
        return errors.no_replica_ready(request.model.name, self._eta_seconds(request))

    def _runs_elsewhere(self, model: ServedModel) -> bool:
        """Return whether the model has a replica in any region, or may start one."""
        snapshot = self._feed.snapshot
        return bool(snapshot.endpoints.get(model.name)) or snapshot.startable_deployment(model) is not None
