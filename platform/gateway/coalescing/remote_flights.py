"""Follow flights of other gateway processes: each is mirrored into a flight of this one, over one link per process."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from caching.single_flight import Flight
from gateway import metrics
from gateway.coalescing.flight_leases import LEASE_SECONDS, Owner
from gateway.coalescing.peer_connection import Failed, Following, Landed, Leave, Link, Message, Told, Wish
from gateway.coalescing.peer_listener import Elsewhere, Listener
from tenants.snapshot import Caller

#: For a connection, its proofs, and the word whether there is such a flight: less than a lease lasts.
ANSWER_SECONDS = 4.0
#: A mirror that nobody has joined by then is left again. Waited for in two halves: a loop that was busy for all of the
#: first lets those join in the second who were about to.
JOIN_SECONDS = 1.0
IDLE_SECONDS = 30.0
#: For so long nobody asks a process again to which no connection came about, as behind a firewall.
UNREACHED_SECONDS = 60.0

#: ``gone``: the process is dead, silent, or has no such flight. ``unreachable``: it cannot be asked from here.
Missed = Literal["gone", "unreachable"]


@dataclass(slots=True, eq=False, kw_only=True)
class _Wished:
    """A flight of another process that is asked for, or mirrored."""

    name: bytes
    answer: asyncio.Future[Flight | None]
    mirror: Flight | None = None


class Mirrors:
    """The mirrors of one process. Lives on one event loop."""

    def __init__(self, listener: Listener, show: Callable[[Flight], None], hide: Callable[[Flight], None]) -> None:
        """``show`` lets requests of this process follow a mirror, ``hide`` no more."""
        self._listener = listener
        self._show = show
        self._hide = hide
        self._links: dict[str, asyncio.Task[Link]] = {}
        self._wishes: dict[Link, dict[int, _Wished]] = {}
        self._numbers = itertools.count()
        #: Processes that went silent → until when they are not asked again, by the monotonic clock.
        self._silent: dict[str, float] = {}

    async def follow(self, caller: Caller, name: bytes, owner: Owner) -> Flight | Missed:
        """Return a mirror of the flight of a lease, which may have landed. Who follows it joins it in JOIN_SECONDS."""
        if self._silent.get(owner.address, 0.0) > time.monotonic():
            return "gone"
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._follow(caller, name, owner)
        except Elsewhere:
            return "unreachable"
        except OSError:  # of it TimeoutError
            return "gone"

    def close(self) -> None:
        """Drop every link; who follows a mirror is told that it failed."""
        for task in self._links.values():
            task.cancel()
        for link in list(self._wishes):
            link.drop()

    async def _follow(self, caller: Caller, name: bytes, owner: Owner) -> Flight | Missed:
        link = await self._link(owner.address)
        wished = _Wished(name=name, answer=asyncio.get_running_loop().create_future())
        number = next(self._numbers)
        self._wishes[link][number] = wished
        link.send(Wish(number, caller.tenant_id.bytes, name, owner.value))
        try:
            return await wished.answer or "gone"
        finally:
            if wished.mirror is None:
                self._end(link, number)

    async def _link(self, address: str) -> Link:
        """Return a link to a process that has proved itself. Raises OSError."""
        task = self._links.get(address)
        if task is None:
            task = self._links[address] = asyncio.ensure_future(self._connect(address))
            # taken note of: all who wait for it may have left
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            link = await asyncio.shield(task)
        except OSError:
            if self._links.get(address) is task:
                del self._links[address]
            raise
        if link.lost:
            raise ConnectionResetError
        return link

    async def _connect(self, address: str) -> Link:
        link = Link("caller", address, self._hear, lambda lost: self._lost(address, lost))
        self._wishes[link] = {}
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._listener.connect(address, lambda: link)
                if not await link.proved:
                    raise ConnectionResetError
        except TimeoutError:  # which is an OSError
            self._went_silent(address, UNREACHED_SECONDS)
            raise
        finally:
            if not link.proved.done():
                link.drop()
        return link

    def _hear(self, link: Link, message: Message) -> None:
        """Mirror what is told. What came for a wish that has ended is dropped."""
        wishes = self._wishes[link]
        match message:
            case Following() if (wished := wishes.get(message.number)) is not None and wished.mirror is None:
                self._begin(link, message, wished)
            case Told() if (wished := wishes.get(message.number)) is not None and wished.mirror is not None:
                wished.mirror.add(message.piece)
            case Landed() if (wished := wishes.get(message.number)) is not None and wished.mirror is not None:
                self._end(link, message.number)
                wished.mirror.land(message.entry)
            case Failed():
                self._fail(link, message.number)

    def _begin(self, link: Link, following: Following, wished: _Wished) -> None:
        mirror = wished.mirror = Flight(wished.name, following.source_id, following.key_id, streamed=following.streamed)

        def left() -> None:
            if not mirror.followers and not mirror.ended:
                self._end(link, following.number)
                link.send(Leave(following.number))
                mirror.fail()

        mirror.on_alone = left
        self._show(mirror)
        loop = asyncio.get_running_loop()
        loop.call_later(JOIN_SECONDS / 2, loop.call_later, JOIN_SECONDS / 2, left)
        metrics.MIRRORED_FLIGHTS.inc()
        if not wished.answer.done():
            wished.answer.set_result(mirror)

    def _fail(self, link: Link, number: int) -> None:
        wished = self._wishes.get(link, {}).get(number)
        if wished is None:
            return
        self._end(link, number)
        if wished.mirror is not None:
            wished.mirror.fail()
        if not wished.answer.done():
            wished.answer.set_result(None)

    def _end(self, link: Link, number: int) -> None:
        """Forget a wish: its mirror is followed by nobody more."""
        wishes = self._wishes.get(link, {})
        wished = wishes.pop(number, None)
        if wished is not None and wished.mirror is not None:
            self._hide(wished.mirror)
        if wished is not None and not wishes:
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._drop_idle, link)

    def _drop_idle(self, link: Link) -> None:
        if not self._wishes.get(link, {}):
            link.drop()

    def _lost(self, address: str, link: Link) -> None:
        if link.went_silent:
            self._went_silent(address, LEASE_SECONDS)
        self._links.pop(address, None)
        for number in list(self._wishes.get(link, {})):
            self._fail(link, number)
        self._wishes.pop(link, None)

    def _went_silent(self, address: str, seconds: float) -> None:
        """Ask a process no more for so long: at least until its leases have ended, which it does not renew."""
        now = time.monotonic()
        self._silent = {each: until for each, until in self._silent.items() if until > now}
        self._silent[address] = now + seconds
