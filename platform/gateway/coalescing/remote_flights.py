"""Follow flights of other gateway processes: each is copied into a flight here, over one connection per process."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from caching.single_flight import Flight
from gateway import metrics
from gateway.coalescing.flight_leases import LEASE_SECONDS, Owner
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
from gateway.errors import EngineOverran
from tenants.snapshot.snapshot import Caller

#: To connect, subscribe, and receive the reply: less than the lifetime of a lease.
REPLY_SECONDS = 4.0
#: How long a copy waits for its first follower. In two halves: a loop that was busy for all of the first half lets
#: requests that were about to join do so in the second.
JOIN_SECONDS = 1.0
#: How long a connection without subscriptions stays open.
IDLE_SECONDS = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class _Subscription:
    """A flight of another process. ``local`` is its copy, None until the other process has confirmed."""

    name: bytes
    reply: asyncio.Future[Flight | None]
    local: Flight | None = None


class RemoteFlights:
    """The copies in one process of flights of others. Lives on one event loop."""

    def __init__(
        self, listener: PeerListener, publish: Callable[[Flight], None], withdraw: Callable[[Flight], None]
    ) -> None:
        """``publish`` lets requests of this process follow a copy, ``withdraw`` ends that."""
        self._listener = listener
        self._publish = publish
        self._withdraw = withdraw
        self._connections: dict[str, asyncio.Task[PeerConnection]] = {}
        self._subscriptions: dict[PeerConnection, dict[int, _Subscription]] = {}
        self._numbers = itertools.count()
        #: Address of a process that timed out → until when it is not retried, by the monotonic clock.
        self._timed_out: dict[str, float] = {}

    async def follow(self, caller: Caller, name: bytes, owner: Owner) -> Flight | None:
        """Return a copy of the flight of a lease, which may have completed already.

        None: its process is dead or does not reply, or has no such flight. A follower joins within JOIN_SECONDS.
        """
        if self._timed_out.get(owner.address, 0.0) > time.monotonic():
            return None
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                return await self._follow(caller, name, owner)
        except OSError:  # TimeoutError is one
            return None

    def close(self) -> None:
        """Drop every connection; copies fail."""
        for task in self._connections.values():
            task.cancel()
        for connection in list(self._subscriptions):
            connection.drop()

    async def _follow(self, caller: Caller, name: bytes, owner: Owner) -> Flight | None:
        connection = await self._connection(owner.address)
        subscription = _Subscription(name=name, reply=asyncio.get_running_loop().create_future())
        number = next(self._numbers)
        self._subscriptions[connection][number] = subscription
        connection.send(Subscribe(number, caller.tenant_id.bytes, name, owner.value))
        try:
            return await subscription.reply
        finally:
            if subscription.local is None:
                self._end(connection, number)

    async def _connection(self, address: str) -> PeerConnection:
        """Return the connection to a process, opened if there is none. Raises OSError."""
        task = self._connections.get(address)
        if task is None:
            task = self._connections[address] = asyncio.ensure_future(self._connect(address))
            # Read the exception: every request that waits for it may have been cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            connection = await asyncio.shield(task)
        except OSError:
            if self._connections.get(address) is task:
                del self._connections[address]
            raise
        if connection.lost:
            raise ConnectionResetError
        return connection

    async def _connect(self, address: str) -> PeerConnection:
        connection = PeerConnection(self._receive, lambda lost: self._lost(address, lost))
        self._subscriptions[connection] = {}
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                await self._listener.connect(address, lambda: connection)
        except BaseException:
            connection.drop()
            raise
        return connection

    def _receive(self, connection: PeerConnection, message: Message) -> None:
        """Copy a message to its flight. Messages of subscriptions that have ended are dropped."""
        known = self._subscriptions[connection]
        match message:
            case Subscribed() if (found := known.get(message.number)) is not None and found.local is None:
                self._begin(connection, message, found)
            case Chunk() if (found := known.get(message.number)) is not None and found.local is not None:
                found.local.add(message.piece)
            case Completed() if (found := known.get(message.number)) is not None and found.local is not None:
                self._end(connection, message.number)
                found.local.complete(message.entry)
            case Failed():
                self._fail(connection, message.number, _error(message))

    def _begin(self, connection: PeerConnection, confirmed: Subscribed, subscription: _Subscription) -> None:
        local = subscription.local = Flight(
            subscription.name, confirmed.source_id, confirmed.key_id, streamed=confirmed.streamed
        )

        def unsubscribe_if_unused() -> None:
            if not local.followers and not local.ended:
                self._end(connection, confirmed.number)
                connection.send(Unsubscribe(confirmed.number))
                local.fail()

        local.on_abandoned = unsubscribe_if_unused
        self._publish(local)
        loop = asyncio.get_running_loop()
        loop.call_later(JOIN_SECONDS / 2, loop.call_later, JOIN_SECONDS / 2, unsubscribe_if_unused)
        metrics.REMOTE_FLIGHTS.inc()
        if not subscription.reply.done():
            subscription.reply.set_result(local)

    def _fail(self, connection: PeerConnection, number: int, cause: EngineOverran | None = None) -> None:
        subscription = self._subscriptions.get(connection, {}).get(number)
        if subscription is None:
            return
        self._end(connection, number)
        if subscription.local is not None:
            subscription.local.fail(cause)
        if not subscription.reply.done():
            subscription.reply.set_result(None)

    def _end(self, connection: PeerConnection, number: int) -> None:
        """Forget a subscription: its copy gets no further followers."""
        known = self._subscriptions.get(connection, {})
        subscription = known.pop(number, None)
        if subscription is not None and subscription.local is not None:
            self._withdraw(subscription.local)
        if subscription is not None and not known:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._drop_if_idle, connection)

    def _drop_if_idle(self, connection: PeerConnection) -> None:
        if not self._subscriptions.get(connection, {}):
            connection.drop()

    def _lost(self, address: str, connection: PeerConnection) -> None:
        if connection.timed_out:
            self._do_not_retry(address)
        self._connections.pop(address, None)
        for number in list(self._subscriptions.get(connection, {})):
            self._fail(connection, number)
        self._subscriptions.pop(connection, None)

    def _do_not_retry(self, address: str) -> None:
        """Skip a process until its leases have ended: it does not renew them."""
        now = time.monotonic()
        self._timed_out = {each: until for each, until in self._timed_out.items() if until > now}
        self._timed_out[address] = now + LEASE_SECONDS


def _error(failed: Failed) -> EngineOverran | None:
    if failed.overran is None:
        return None
    message, code, status = failed.overran
    return EngineOverran(message, code, status=status, headers=[(b"x-should-retry", b"false")])
