"""Flights of all gateway processes: who asks for an answer that another process waits for follows that one's flight.

The process whose request leads has the lease of the answer's name (``gateway.coalescing.flight_leases``) and tells the
flight to the others over a link (``gateway.coalescing.peer_connection``); they mirror it among their own, so that many
followers there are one here. Who asks names the answer, which is a MAC in its tenant's scope; no prompt travels. While
Redis is away, or only one process lives, each process runs its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from caching.errors import FlightFailed
from caching.single_flight import Flight, SingleFlight
from gateway import metrics
from gateway.coalescing.flight_leases import FlightLeases, Owner
from gateway.coalescing.peer_connection import Failed, Following, Landed, Leave, Link, Message, Told, Wish
from gateway.coalescing.peer_listener import Listener, Place
from gateway.coalescing.remote_flights import Mirrors
from gateway.redis_client.client import Turns
from tenants.snapshot import Caller

log = logging.getLogger(__name__)

#: How long a flight that is asked for may take to begin once its lease is there.
BEGIN_SECONDS = 1.0
#: Owners that are tried before a request goes alone.
TRIES = 4
#: Connections at once of which nobody knows yet who they are: from this host, and from others.
MAX_STRANGERS = 256


class SharedFlights(SingleFlight):
    """The flights of this process, and mirrors of those of others. Lives on one event loop."""

    def __init__(self, turns: Turns, place: Place, others: Callable[[], bool]) -> None:
        """``turns``: with the Redis of answers. ``others``: whether another gateway process lives."""
        super().__init__()
        self._others = others
        self._listener = Listener(place)
        self._leases = FlightLeases(turns, lambda: self._listener.address)
        self._mirrors = Mirrors(self._listener, self._show, super().forget)
        self._asking: dict[bytes, asyncio.Task[Flight | None]] = {}
        self._telling: dict[Link, dict[int, asyncio.Task[None]]] = {}
        self._strangers: dict[bool, set[Link]] = {False: set(), True: set()}
        self._opening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; until then each process runs its own."""
        self._opening = asyncio.ensure_future(self._open())

    async def close(self) -> None:
        """Tell and follow nothing any more; leases are given back. Redis must still be open."""
        if self._opening is not None:
            self._opening.cancel()
        self._listener.close()
        self._leases.close()
        for task in self._asking.values():
            task.cancel()
        for link in list(self._telling):
            link.drop()
        self._mirrors.close()

    @property
    def listens(self) -> bool:
        """True once others can follow what runs here."""
        return bool(self._listener.address)

    @property
    def shared(self) -> bool:
        """Say whether other processes are asked who leads."""
        return self.listens and self._others()

    async def claim(self, caller: Caller, name: bytes) -> Flight | None:
        """Return the flight to follow, of this process or mirrored here; None: begin one, before anything is awaited.

        A follower joins the flight before it awaits anything. Ask again when the flight that was followed failed.
        Waits for nobody who is not there: a few seconds at most for a process that has stopped in the middle.
        """
        found = self.find(name)
        if found is not None or not self.shared:
            return found
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.ensure_future(self._ask(caller, name))
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        mirror = await asyncio.shield(asking)
        found = self.find(name)
        if found is None and mirror is not None and mirror.joinable:  # a short one lands with its first piece
            found = mirror
        return found

    def begin(self, flight: Flight) -> None:
        """Let others follow it, those of other processes too if this one has its lease, until it is forgotten."""
        super().begin(flight)
        lease = self._leases.find(flight.name)
        if lease is not None:
            lease.begun.set()

    def forget(self, flight: Flight) -> None:
        """Let nobody find it any more, here or elsewhere."""
        if self._flights.get(flight.name) is flight:
            self._leases.release(flight.name)
        super().forget(flight)

    async def _open(self) -> None:
        try:
            await self._listener.open(self._accept)
        except OSError as error:
            log.warning("other gateway processes cannot follow requests of this one: %s", error)

    async def _ask(self, caller: Caller, name: bytes) -> Flight | None:
        """Take the lease of a name, or return a mirror of the flight of who has it; neither while Redis is away."""
        dead = b""
        for _ in range(TRIES):
            got = await self._leases.take(caller, name, dead)
            if not isinstance(got, Owner):
                if got is not None and dead:
                    metrics.FLIGHT_TAKEOVERS.inc()
                return None
            if got.address != self._listener.address:
                found = await self._mirrors.follow(caller, name, got)
                if isinstance(found, Flight):
                    return found
                if found == "unreachable":
                    return None
            dead = got.value
        return None

    def _show(self, mirror: Flight) -> None:
        """Let requests of this process follow a mirror; it is told to no other process, for it has no lease here."""
        super().begin(mirror)

    def _accept(self, address: str, is_far: bool) -> Link:
        link = Link("listener", address, self._hear, self._lost)
        self._telling[link] = {}
        strangers = {each for each in self._strangers[is_far] if not each.proved.done()} | {link}
        self._strangers[is_far] = strangers
        if len(strangers) > MAX_STRANGERS:
            link.drop()
        return link

    def _lost(self, link: Link) -> None:
        for task in self._telling.pop(link, {}).values():
            task.cancel()

    def _hear(self, link: Link, message: Message) -> None:
        telling = self._telling[link]
        match message:
            case Wish() if message.number not in telling:
                telling[message.number] = task = asyncio.ensure_future(self._tell(link, message))
                task.add_done_callback(lambda _: telling.pop(message.number, None))
            case Leave() if message.number in telling:
                telling[message.number].cancel()

    async def _tell(self, link: Link, wish: Wish) -> None:
        """Tell a flight from its first piece to its end. The other process counts as one follower."""
        flight = await self._wished(wish)
        if flight is None:
            link.send(Failed(wish.number))
            return
        flight.join()
        try:
            link.send(Following(wish.number, flight.source_id, flight.key_id, flight.streamed))
            async for piece in flight.follow():
                if not link.send(Told(wish.number, piece)):
                    raise FlightFailed(0)
                await link.room()
            if not link.send(Landed(wish.number, flight.entry)):
                raise FlightFailed(0)
        except FlightFailed:
            link.send(Failed(wish.number))
        finally:
            flight.leave()

    async def _wished(self, wish: Wish) -> Flight | None:
        """Return the flight under a lease of this process, which may be about to begin."""
        lease = self._leases.find(wish.name)
        if lease is None or lease.value != wish.lease or lease.tenant_id.bytes != wish.tenant_id:
            return None
        try:
            async with asyncio.timeout(BEGIN_SECONDS):
                await lease.begun.wait()
        except TimeoutError:
            return None
        return self.find(wish.name)
