"""Parts of hard budgets that this process has set aside, to spend while Redis is away.

A slice is debited from its counter beforehand and stands among the tenant's holds under an id of its own, so whatever
is spent of it was taken off the budget before: together nothing is spent beyond. It is what was held in the last round,
and never much of what is left. It is kept only while the budget has room for a thousand requests such as those of the
last round, and goes back when it has not, when nobody asks any more, or when a request is refused for want of it; so a
budget that runs low is counted in one place, to the last request.

The slice of a process that was killed is given back by ``billing.budgets.reconciler``, as every hold that nobody ends.
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

#: A budget has slices only while so many typical requests fit.
LEAST_ROOM_REQUESTS = 1000
#: The slices of all gateways together are at most one part in so many of what is left.
PARTS = 20
#: After so many rounds without a request a slice goes back.
IDLE_ROUNDS = 6
#: A slice is taken anew before the keeper would take it for a dead process's.
LASTS_SECONDS = 1200.0

END_HOLD = Script.of(holds.SETTLE)


@dataclass(slots=True)
class _Reserved:
    """What was set aside of one counter. ``free`` is what no request has of it."""

    id: UUID
    keys: RedisKeys
    pico: int
    free: int
    since: float
    idle_rounds: int = 0


@dataclass(slots=True)
class _Use:
    """What was held of one counter in this round."""

    keys: RedisKeys
    pico: int = 0
    requests: int = 0


class BudgetReserve:
    """The slices of one process, by the name of their counter. ``gateways`` says how many processes there are."""

    def __init__(
        self, turns: RedisClient, renewal: LeaseRenewer, gateways: Callable[[], int], *, round_seconds: float
    ) -> None:
        self._redis = turns
        self._renewal = renewal
        self._gateways = gateways
        self._round_seconds = round_seconds
        self._slices: dict[str, _Reserved] = {}
        self._uses: dict[str, _Use] = {}
        self._timer: asyncio.TimerHandle | None = None

    def used(self, keys: RedisKeys, counters: tuple[str, ...], pico: int) -> None:
        """Take note of what a request holds, to know what a slice should be."""
        for counter in counters:
            use = self._uses.get(counter)
            if use is None:
                use = self._uses[counter] = _Use(keys)
            use.pico += pico
            use.requests += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._round_seconds, self._round)

    def spend(self, counters: tuple[str, ...], pico: int) -> bool:
        """Take an amount from the slice of each counter, or from none. What costs nothing needs none."""
        if not pico:
            return True
        slices = [self._slices.get(counter) for counter in counters]
        if any(each is None or each.free < pico for each in slices):
            return False
        for each in slices:
            assert each is not None
            each.free -= pico
        return True

    def release(self, counters: tuple[str, ...], pico: int) -> None:
        """Put back what a request took, once Redis knows what it cost."""
        for counter in counters:
            if (each := self._slices.get(counter)) is not None:
                each.free = min(each.free + pico, each.pico)

    def give_back(self, counters: tuple[str, ...]) -> bool:
        """Give back the slices of these counters that no request has anything of; say whether there was one."""
        given = [self._give_back(counter) for counter in counters]
        return any(given)

    def close(self) -> None:
        """Give back all that can be; nobody waits for it."""
        self.give_back(tuple(self._slices))

    def _give_back(self, counter: str) -> bool:
        each = self._slices.get(counter)
        if each is None or each.free < each.pico:
            return False
        del self._slices[counter]
        self._renewal.end(each.keys, each.id, self._end(each.keys, each.id))
        return True

    def _end(self, keys: RedisKeys, slice_id: UUID) -> EndScript:
        return EndScript(script=END_HOLD, arguments=(1, keys.holds, keys.counters, slice_id.hex, "0"))

    def _round(self) -> None:
        self._timer = None
        if self._redis.closed:
            return
        if self._redis.failing:  # then a slice is for using
            self._timer = asyncio.get_running_loop().call_later(self._round_seconds, self._round)
            return
        uses, self._uses = self._uses, {}
        for counter, each in list(self._slices.items()):
            each.idle_rounds = 0 if counter in uses else each.idle_rounds + 1
            if each.idle_rounds >= IDLE_ROUNDS or time.monotonic() - each.since > LASTS_SECONDS:
                self._give_back(counter)
        for counter, use in uses.items():
            self._ask(counter, use)
        if self._slices or uses:
            self._timer = asyncio.get_running_loop().call_later(self._round_seconds, self._round)

    def _ask(self, counter: str, use: _Use) -> None:
        """Take a slice; of one that is there, ask whether it still is and may be kept."""
        known = self._slices.get(counter)
        slice_id = known.id if known is not None else new_id()
        answer = self._redis.eval(
            RESERVE,
            1,
            use.keys.holds,
            use.keys.counters,
            counter,
            slice_id.hex,
            0 if known is not None else use.pico,
            LEAST_ROOM_REQUESTS * max(1, use.pico // use.requests),
            PARTS * self._gateways(),
        )
        answer.add_done_callback(partial(self._told, counter, use.keys, slice_id))

    def _told(self, counter: str, keys: RedisKeys, slice_id: UUID, answer: ReplyFuture) -> None:
        known = self._slices.get(counter)
        if answer.cancelled() or answer.exception() is not None:
            if known is None:  # it may have been taken
                self._renewal.end_later(keys, slice_id, self._end(keys, slice_id))
            return
        pico = int(answer.result())
        if known is not None and known.id == slice_id:
            if pico < 0:  # Redis has lost it
                del self._slices[counter]
            elif pico == 0:
                self._give_back(counter)
        elif pico > 0:
            self._slices[counter] = _Reserved(id=slice_id, keys=keys, pico=pico, free=pico, since=time.monotonic())
