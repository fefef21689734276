"""Parts of hard budgets that this process sets aside, to spend while Redis is unavailable.

A reserve is subtracted from its counter in advance and is one of the tenant's holds, with an id of its own. So all that
is spent from it was already taken from the budget, which is never exceeded. A reserve is what requests held in the last
round, and at most a small part of what is left. It is kept while the budget has room for a thousand requests like those
of the last round. Otherwise, when no request needs it, or when a request is rejected for lack of budget, it is given
back; so a budget that runs low is counted in one place, to the last request.

``billing.budgets.reconciler`` gives back the reserve of a killed process, like every hold that is never settled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from billing.budgets import holds
from gateway.admission.lease_renewer import EndScript, LeaseRenewer
from gateway.admission.limit_plan import RedisKeys
from gateway.admission.lua_scripts import RESERVE
from gateway.redis_client.client import RedisClient, ReplyFuture
from gateway.redis_client.connection import Script
from tenants.ids import new_id

#: A budget has reserves only while this many typical requests fit.
MIN_ROOM_REQUESTS = 1000
#: The reserves of all gateways together are at most one part in PARTS of what is left.
PARTS = 20
#: Rounds without a request after which a reserve is given back.
IDLE_ROUNDS = 6
#: A reserve is replaced before the reconciler would count it as a dead process's.
MAX_AGE_SECONDS = 1200.0

END_HOLD = Script.of(holds.SETTLE)


@dataclass(slots=True)
class _Reserved:
    """What is set aside from one counter. ``free``: the part that no request uses."""

    id: UUID
    keys: RedisKeys
    pico: int
    free: int
    since: float
    idle_rounds: int = 0


@dataclass(slots=True)
class _Usage:
    """What requests held from one counter in this round."""

    keys: RedisKeys
    pico: int = 0
    requests: int = 0


class BudgetReserve:
    """The reserves of one process, by the name of their counter. ``gateways`` returns the number of processes."""

    def __init__(
        self, redis: RedisClient, renewer: LeaseRenewer, gateways: Callable[[], int], *, round_seconds: float
    ) -> None:
        self._redis = redis
        self._renewer = renewer
        self._gateways = gateways
        self._round_seconds = round_seconds
        self._reserves: dict[str, _Reserved] = {}
        self._usage: dict[str, _Usage] = {}
        self._timer: asyncio.TimerHandle | None = None

    def record(self, keys: RedisKeys, counters: tuple[str, ...], pico: int) -> None:
        """Record what a request holds, from which the next reserve is sized."""
        for counter in counters:
            use = self._usage.get(counter)
            if use is None:
                use = self._usage[counter] = _Usage(keys)
            use.pico += pico
            use.requests += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round_seconds, self._round)

    def spend(self, counters: tuple[str, ...], pico: int) -> bool:
        """Take an amount from the reserve of each counter, or from none; return whether it was taken."""
        if not pico:
            return True
        reserves = [self._reserves.get(counter) for counter in counters]
        if any(each is None or each.free < pico for each in reserves):
            return False
        for each in reserves:
            assert each is not None
            each.free -= pico
        return True

    def release(self, counters: tuple[str, ...], pico: int) -> None:
        """Return a request's amount to the reserves, once Redis has recorded its cost."""
        for counter in counters:
            if (each := self._reserves.get(counter)) is not None:
                each.free = min(each.free + pico, each.pico)

    def give_back(self, counters: tuple[str, ...]) -> bool:
        """Give back the reserves of these counters that no request uses; return whether there was one."""
        given = [self._give_back(counter) for counter in counters]
        return any(given)

    def close(self) -> None:
        """Give back every unused reserve, without waiting for Redis."""
        self.give_back(tuple(self._reserves))

    def _give_back(self, counter: str) -> bool:
        each = self._reserves.get(counter)
        if each is None or each.free < each.pico:
            return False
        del self._reserves[counter]
        self._renewer.end(each.keys, each.id, self._end(each.keys, each.id))
        return True

    def _end(self, keys: RedisKeys, reserve_id: UUID) -> EndScript:
        return EndScript(script=END_HOLD, arguments=(1, keys.holds, keys.counters, reserve_id.hex, "0"))

    def _round(self) -> None:
        self._timer = None
        if self._redis.closed:
            return
        if self._redis.failing:  # reserves are spent now, not renewed
            self._timer = asyncio.get_running_loop().call_later(self._round_seconds, self._round)
            return
        usage, self._usage = self._usage, {}
        for counter, each in list(self._reserves.items()):
            each.idle_rounds = 0 if counter in usage else each.idle_rounds + 1
            if each.idle_rounds >= IDLE_ROUNDS or time.monotonic() - each.since > MAX_AGE_SECONDS:
                self._give_back(counter)
        for counter, use in usage.items():
            self._request(counter, use)
        if self._reserves or usage:
            self._timer = asyncio.get_running_loop().call_later(self._round_seconds, self._round)

    def _request(self, counter: str, use: _Usage) -> None:
        """Take a reserve, or check whether the existing one may be kept."""
        known = self._reserves.get(counter)
        reserve_id = known.id if known is not None else new_id()
        reply = self._redis.eval(
            RESERVE,
            1,
            use.keys.holds,
            use.keys.counters,
            counter,
            reserve_id.hex,
            0 if known is not None else use.pico,
            MIN_ROOM_REQUESTS * max(1, use.pico // use.requests),
            PARTS * self._gateways(),
            self._redis.server,
        )
        reply.add_done_callback(partial(self._on_reply, counter, use.keys, reserve_id))

    def _on_reply(self, counter: str, keys: RedisKeys, reserve_id: UUID, reply: ReplyFuture) -> None:
        known = self._reserves.get(counter)
        if reply.cancelled() or reply.exception() is not None:
            if known is None:  # Redis may have set it aside
                self._renewer.end_later(keys, reserve_id, self._end(keys, reserve_id))
            return
        pico = int(reply.result())
        if known is not None and known.id == reserve_id:
            if pico < 0:  # Redis has lost it
                del self._reserves[counter]
            elif pico == 0:
                self._give_back(counter)
        elif pico > 0:
            self._reserves[counter] = _Reserved(id=reserve_id, keys=keys, pico=pico, free=pico, since=time.monotonic())
