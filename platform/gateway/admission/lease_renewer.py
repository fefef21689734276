"""What requests that run have in Redis is kept there: their leases; and ended there, if Redis missed their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar
from uuid import UUID

from gateway.admission.limit_plan import RedisKeys
from gateway.admission.lua_scripts import RENEW
from gateway.redis_client.client import RedisClient, ReplyFuture
from gateway.redis_client.connection import Argument, Script

T = TypeVar("T")

#: Of a request that ends without a word, which only a killed process does.
LEASE_SECONDS = 30.0
#: Each lease is renewed so often in its life, so that one renewal may fail.
RENEWALS = 3
#: Leases in one command; more would make everybody wait.
BATCH = 200
#: Ends that Redis missed are kept up to so many; the drain ends what is forgotten here.
MOST_MISSED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EndScript:
    """A script that ends something, and may be told twice. ``heard`` is called once Redis answered."""

    script: Script
    arguments: tuple[Argument, ...]
    heard: Callable[[], None] = lambda: None


class LeaseRenewer:
    """Looks after the open requests of this process, a few times in the life of a lease, while there are any."""

    def __init__(self, turns: RedisClient, lease_seconds: float = LEASE_SECONDS) -> None:
        self._redis = turns
        self.lease_ms = int(lease_seconds * 1000)
        self._every_seconds = lease_seconds / RENEWALS
        self._leases: dict[str, set[UUID]] = {}
        self._missed: dict[tuple[str, UUID], EndScript] = {}
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, keys: tuple[str, ...], request_id: UUID) -> None:
        """Renew the request's leases, by their keys, until it is closed."""
        for key in keys:
            self._leases.setdefault(key, set()).add(request_id)
        self._schedule()

    def closed(self, keys: tuple[str, ...], request_id: UUID) -> None:
        """Renew them no more."""
        for key in keys:
            running = self._leases.get(key)
            if running is not None:
                running.discard(request_id)
                if not running:
                    del self._leases[key]

    def end(self, keys: RedisKeys, request_id: UUID, end: EndScript) -> None:
        """Tell Redis of an end, again until it has heard."""
        self._missed.pop((keys.holds, request_id), None)
        self._tell((keys.holds, request_id), end)

    def end_later(self, keys: RedisKeys, request_id: UUID, end: EndScript) -> None:
        """Do as :meth:`end` once Redis has had time to come back."""
        if len(self._missed) < MOST_MISSED:
            self._missed[(keys.holds, request_id)] = end
            self._schedule()

    def end_now(self, keys: RedisKeys, request_id: UUID) -> None:
        """Tell Redis at once of an end that it missed, if it did: of what began before, and not of what begins now."""
        missed = self._missed.pop((keys.holds, request_id), None)
        if missed is not None:
            self._tell((keys.holds, request_id), missed)

    def _tell(self, name: tuple[str, UUID], end: EndScript) -> None:
        self._redis.eval(end.script, *end.arguments).add_done_callback(partial(self._heard, name, end))

    def _heard(self, name: tuple[str, UUID], end: EndScript, answer: ReplyFuture) -> None:
        if answer.cancelled():
            return
        if answer.exception() is None:
            end.heard()
        elif len(self._missed) < MOST_MISSED:
            self._missed[name] = end
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every_seconds, self._renew)

    def _renew(self) -> None:
        self._timer = None
        if self._redis.closed:
            return
        missed, self._missed = self._missed, {}
        for name, end in missed.items():
            self._tell(name, end)
        # Last: a request that Redis missed may run here all the same, and has its lease from then on.
        for key, running in self._leases.items():
            for batch in batches([each.hex for each in running]):
                self._redis.fire_script(RENEW, 1, key, self.lease_ms, *batch)
        if self._leases:
            self._schedule()


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items, BATCH at a time."""
    left = iter(items)
    while batch := list(islice(left, BATCH)):
        yield batch
