"""Hold requests that find no replica while one comes, instead of refusing them.

Held requests wait in memory, so each tenant's policy bounds their time, number and bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from catalogue.registry import ServedModel
from gateway import errors, metrics
from gateway.control_plane.in_flight import InFlight
from gateway.control_plane.snapshot_feed import SnapshotFeed
from gateway.errors import NOT_NOW, EngineGone, NotReady
from tenants.ids import TenantId
from tenants.snapshot import Caller
from workers.serving.startup_eta import UNMEASURED_SECONDS, Deployed

#: Held requests also try by themselves this often: an engine that only hiccuped changes nothing that is announced.
RETRY_SECONDS = 1.0
#: How often a waiting stream sends a comment. Load balancers close a silent connection after 30 s or more, and until
#: the first comment an error still has its own status.
HEARTBEAT_SECONDS = 15.0
#: A request that broke so many engines may be the cause itself, and is not sent to another.
MAX_BROKEN = 3

Outcome = Literal["served", "refused", "expired", "client_gone"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRequest:
    """A request to hold. ``tokens``: prompt and answer, as routing counts them. ``waited_seconds``: for another one."""

    caller: Caller
    model: ServedModel
    size_bytes: int
    tokens: int
    waited_seconds: float = 0.0


@dataclass(slots=True)
class _TenantUsage:
    """What one tenant has waiting."""

    requests: int = 0
    size_bytes: int = 0


class ReplicaQueue:
    """The requests that wait in this process. Lives on one event loop."""

    def __init__(
        self, feed: SnapshotFeed, in_flight: InFlight, *, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> None:
        """``heartbeat_seconds``: how often a waiting stream gets a comment."""
        self.heartbeat_seconds = heartbeat_seconds
        self._feed = feed
        self._in_flight = in_flight
        self._rooms: dict[TenantId, _TenantUsage] = {}
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Let every held request try again. Call it when the feed's view has changed."""
        self._news.set()
        self._news = asyncio.Event()

    def startup_eta_seconds(self, model: ServedModel) -> float:
        """Return how long a start of the model's next replica takes, as measured."""
        deployed = self._feed.snapshot.startable_deployment(model)
        return self._feed.snapshot.etas.get(deployed.id, UNMEASURED_SECONDS) if deployed else UNMEASURED_SECONDS

    async def wait(
        self, guest: QueuedRequest, failure: NotReady | EngineGone, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Return what ``attempt`` returns, called each time the replicas have changed while it raises NOT_NOW.

        ``failure`` is what the first attempt raised. Raises it, or a later one, when nothing will come, the time is
        over or the request has broken too many engines; Unavailable when the tenant has too much waiting; and what
        else ``attempt`` raises. Only the waiting counts against the time.
        """
        began = time.monotonic()
        outcome: Outcome = "client_gone"
        try:
            result = await self._retry_until_served(guest, failure, attempt)
            outcome = "served"
            return result
        except errors.GatewayError:
            outcome = "expired" if time.monotonic() - began >= guest.caller.policy.queue_seconds else "refused"
            raise
        finally:
            metrics.QUEUE_SECONDS.labels(guest.model.name, outcome).observe(time.monotonic() - began)

    async def _retry_until_served(
        self, guest: QueuedRequest, failure: NotReady | EngineGone, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        if self._feed.snapshot.startable_deployment(guest.model) is None:
            await self._feed.refresh()  # an operator may have given it a deployment a moment ago
        if self._feed.snapshot.startable_deployment(guest.model) is None:
            raise failure
        self._require_room(guest)  # once: who waits again does not lose its place to who came meanwhile
        left = guest.caller.policy.queue_seconds - guest.waited_seconds
        broken = 0
        while True:
            broken += failure.reached if isinstance(failure, EngineGone) else 0
            deployed = self._feed.snapshot.startable_deployment(guest.model)
            if deployed is None or broken >= MAX_BROKEN:
                raise failure
            if left <= 0:
                raise self._expired(guest, failure)
            left -= await self._wait_for_change(guest, deployed, left)
            try:
                return await attempt()
            except NOT_NOW as again:
                failure = again

    async def _wait_for_change(self, guest: QueuedRequest, deployed: Deployed, seconds: float) -> float:
        """Wait for news, at most RETRY_SECONDS; return how long it took."""
        began = time.monotonic()
        news = self._news
        with self._room(guest), self._in_flight.queued(deployed.name, guest.tokens):
            try:
                async with asyncio.timeout(min(seconds, RETRY_SECONDS)):
                    await news.wait()
            except TimeoutError:
                pass
        return time.monotonic() - began

    def _require_room(self, guest: QueuedRequest) -> None:
        """Raise Unavailable when the tenant has too much waiting. Nothing may be awaited before the place is taken."""
        room = self._rooms.get(guest.caller.tenant_id, _TenantUsage())
        policy = guest.caller.policy
        if room.requests >= policy.queue_requests or room.size_bytes + guest.size_bytes > policy.queue_bytes:
            raise errors.queue_full(guest.model.name, self.startup_eta_seconds(guest.model))

    @contextmanager
    def _room(self, guest: QueuedRequest) -> Iterator[None]:
        """Take the request's place for as long as the block lasts: while it waits, not while it is tried."""
        room = self._rooms.setdefault(guest.caller.tenant_id, _TenantUsage())
        room.requests += 1
        room.size_bytes += guest.size_bytes
        held = metrics.QUEUED_REQUESTS.labels(guest.model.name)
        held.inc()
        try:
            yield
        finally:
            held.dec()
            room.requests -= 1
            room.size_bytes -= guest.size_bytes
            if not room.requests:
                self._rooms.pop(guest.caller.tenant_id, None)

    def _expired(self, guest: QueuedRequest, failure: NotReady | EngineGone) -> NotReady | EngineGone:
        if isinstance(failure, EngineGone):
            return failure
        return errors.no_replica_ready(guest.model.name, self.startup_eta_seconds(guest.model))
