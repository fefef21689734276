"""Single flight across the gateway processes of one host: a request follows the flight of whichever process leads.

The process whose request leads has a lease in Redis on the flight's name (``gateway.coalescing.flight_leases``). The
others subscribe to the flight over a unix socket (``gateway.coalescing.peer_connection``) and copy it into a flight of
their own, so that all followers in one process count as one at the leader. A name is a MAC in its tenant's scope; no
prompt is sent. Processes of different hosts share nothing: an identical request runs at most once per host. While Redis
is unavailable, or when only one process runs, each process runs its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from caching.errors import FlightFailed
from caching.single_flight import Flight, SingleFlight
from gateway import metrics
from gateway.coalescing.flight_leases import FlightLeases, Owner
from gateway.coalescing.peer_connection import (
    Chunk,
    Completed,
    Failed,
    Message,
    PeerConnection,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from gateway.coalescing.peer_listener import PeerListener
from gateway.coalescing.remote_flights import RemoteFlights
from gateway.errors import EngineOverran
from gateway.redis_client.client import RedisClient
from tenants.snapshot.snapshot import Caller

log = logging.getLogger(__name__)

#: How long the flight of a lease may take to begin.
BEGIN_SECONDS = 1.0
#: Lease owners that are tried before a request runs alone.
MAX_OWNERS = 4


class SharedFlights(SingleFlight):
    """The flights of this process, and copies of those of the host's other processes. Lives on one event loop."""

    def __init__(self, redis: RedisClient, sockets_dir: Path, others: Callable[[], bool]) -> None:
        """``redis``: the cache's Redis. ``others``: returns whether another gateway process runs."""
        super().__init__()
        self._others = others
        self._listener = PeerListener(sockets_dir)
        self._leases = FlightLeases(redis, self._listener)
        # A copy has no lease here, so no other process subscribes to it.
        self._remote = RemoteFlights(self._listener, super().begin, super().forget)
        self._claims: dict[bytes, asyncio.Task[Flight | None]] = {}
        self._subscribers: dict[PeerConnection, dict[int, asyncio.Task[None]]] = {}
        self._opening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; until then this process runs its own flights."""
        self._opening = asyncio.ensure_future(self._open())

    async def close(self) -> None:
        """Release the leases and drop all subscribers and subscriptions. Redis must still be open."""
        if self._opening is not None:
            self._opening.cancel()
        self._listener.close()
        self._leases.close()
        for task in self._claims.values():
            task.cancel()
        for connection in list(self._subscribers):
            connection.drop()
        self._remote.close()

    @property
    def listens(self) -> bool:
        """True once other processes can follow flights of this one."""
        return bool(self._listener.address)

    @property
    def shared(self) -> bool:
        """Return whether a flight needs a lease, because other processes may have or want it."""
        return self.listens and self._others()

    async def claim(self, caller: Caller, name: bytes) -> Flight | None:
        """Return the flight to follow, of this process or a copy; None: begin one before any ``await``.

        A follower joins the flight before any ``await``. Call this again when the followed flight has failed. Waits a
        few seconds at most for a process that is frozen.
        """
        found = self.find(name)
        if found is not None or not self.shared:
            return found
        claim = self._claims.get(name)
        if claim is None:
            claim = self._claims[name] = asyncio.ensure_future(self._claim(caller, name))
            claim.add_done_callback(lambda _: self._claims.pop(name, None))
        remote = await asyncio.shield(claim)
        found = self.find(name)
        if found is None and remote is not None and remote.joinable:  # a short one completes with its first chunk
            found = remote
        return found

    def begin(self, flight: Flight) -> None:
        """Let requests follow a flight until it is forgotten; those of other processes too if it has a lease here."""
        super().begin(flight)
        lease = self._leases.find(flight.name)
        if lease is not None:
            lease.begun.set()

    def forget(self, flight: Flight) -> None:
        """Let no further request find a flight, here or in another process."""
        if self._flights.get(flight.name) is flight:
            self._leases.release(flight.name)
        super().forget(flight)

    async def _open(self) -> None:
        try:
            await self._listener.open(self._accept)
        except OSError as error:
            log.warning("this process shares no flights with the host's other gateway processes: %s", error)

    async def _claim(self, caller: Caller, name: bytes) -> Flight | None:
        """Take the lease of a name, or return a copy of its owner's flight; neither while Redis is unavailable."""
        dead = b""
        for _ in range(MAX_OWNERS):
            got = await self._leases.take(caller, name, dead)
            if not isinstance(got, Owner):
                if got is not None and dead:
                    metrics.FLIGHT_TAKEOVERS.inc()
                return None
            if got.address != self._listener.address:
                found = await self._remote.follow(caller, name, got)
                if found is not None:
                    return found
            dead = got.value
        return None

    def _accept(self) -> PeerConnection:
        connection = PeerConnection(self._receive, self._lost)
        self._subscribers[connection] = {}
        return connection

    def _lost(self, connection: PeerConnection) -> None:
        for task in self._subscribers.pop(connection, {}).values():
            task.cancel()

    def _receive(self, connection: PeerConnection, message: Message) -> None:
        tasks = self._subscribers[connection]
        match message:
            case Subscribe() if message.number not in tasks:
                tasks[message.number] = task = asyncio.ensure_future(self._serve(connection, message))
                task.add_done_callback(lambda _: tasks.pop(message.number, None))
            case Unsubscribe() if message.number in tasks:
                tasks[message.number].cancel()

    async def _serve(self, connection: PeerConnection, request: Subscribe) -> None:
        """Send a flight from its first piece to its end. The subscribing process counts as one follower."""
        flight = await self._requested(request)
        if flight is None:
            connection.send(Failed(request.number))
            return
        flight.join()
        try:
            connection.send(Subscribed(request.number, flight.source_id, flight.key_id, flight.streamed))
            async for piece in flight.follow():
                if not connection.send(Chunk(request.number, piece)):
                    raise FlightFailed(0)
                await connection.drain()
            if not connection.send(Completed(request.number, flight.entry)):
                raise FlightFailed(0)
        except FlightFailed:
            cause = flight.cause
            overran = (cause.message, cause.code, cause.status) if isinstance(cause, EngineOverran) else None
            connection.send(Failed(request.number, overran))
        finally:
            flight.leave()

    async def _requested(self, request: Subscribe) -> Flight | None:
        """Return the flight under a lease of this process, waiting for one that is about to begin."""
        lease = self._leases.find(request.name)
        if lease is None or lease.value != request.lease or lease.tenant_id.bytes != request.tenant_id:
            return None
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                await lease.begun.wait()
        except TimeoutError:
            return None
        return self.find(request.name)
