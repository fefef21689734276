"""Admit a request to every limit and budget that bounds it, and look its answer up, in one turn with Redis.

All or nothing: a refusal takes nothing. No request waits for Redis longer than one turn may take, whatever it asks.
While Redis is away limits are shared among the gateways (``gateway.admission.local_limiter``) and lookups find nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from gateway.admission import limit_plan, rejections
from gateway.admission.budget_reserve import END_HOLD, BudgetReserve
from gateway.admission.lease_renewer import LEASE_SECONDS, RENEWALS, EndScript, LeaseRenewer
from gateway.admission.limit_plan import LimitPlan
from gateway.admission.local_limiter import GatewayRank, LocalLimiter, Rejection
from gateway.admission.lua_scripts import (
    ADMIT,
    ADMITTED,
    CHARGE,
    EXCEEDED,
    EXTEND,
    LIMITED,
    RENEW,
    RESERVE,
    SETTLE,
    TOO_LARGE,
)
from gateway.errors import GatewayError
from gateway.redis_client.client import RedisClient, ReplyFuture
from gateway.redis_client.connection import Argument, RedisFailed, RedisNotSent, RedisUnavailable
from gateway.request import Headers
from tenants.snapshot import Caller


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one request needs. ``limited`` False: it was counted before."""

    caller: Caller
    model_name: str
    request_id: UUID
    #: Reserved by estimate, prompt and answer; settled by what was used.
    tokens: int
    #: The most that it can cost until :meth:`Reservation.extend`; 0 where no budget asks.
    hold_pico: int
    #: Under which Redis may have its answer; what this process has at hand is not looked up here.
    cache_key: str | None
    #: What the stored answer costs, which it holds instead where that is found.
    hit_pico: int = 0
    limited: bool = True


class _Taken(msgspec.Struct, kw_only=True, eq=False):
    """What an admitted request has, to be given back."""

    #: It has what an engine's answer needs; else a request alone.
    runs: bool = False
    tokens: int = 0
    held_pico: int = 0
    #: Of the slices of this process, because Redis was away.
    reserved_pico: int = 0
    counters: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    #: Counted in this process, because Redis was away.
    local: bool = False
    owed: list[int] = msgspec.field(default_factory=list)


class Reservation:
    """An admitted request's taken on its limits and budgets; :meth:`settle` ends it."""

    def __init__(self, admission: AdmissionController, demand: AdmissionRequest, plan: LimitPlan) -> None:
        #: The sealed answer, if one was looked for and found.
        self.stored: bytes | None = None
        self.demand = demand
        self.plan = plan
        self.taken = _Taken()
        #: Of all that Redis is asked to admit it, monotonic seconds.
        self.deadline = time.monotonic() + admission.patience_seconds
        self._admission = admission
        self._settled = False

    def headers(self) -> Headers:
        """Return the ``x-ratelimit-*`` headers of the limits that are nearest to refusing."""
        return limit_plan.headers(self.plan, self.taken.owed) if self.taken.owed else []

    def settle(self, *, tokens: int, amount_pico: int) -> None:
        """Give back what was reserved beyond this, or owe what was used beyond that.

        Nobody waits for it; the second call does nothing.
        """
        if not self._settled:
            self._settled = True
            self._admission.settle(self, tokens, amount_pico)

    async def extend(self, *, hold_pico: int) -> None:
        """Hold so much more. Raises BudgetExceeded, Unavailable."""
        if self.taken.counters and not self._settled:
            await self._admission.extend(self, hold_pico)

    async def miss(self) -> None:
        """Take what an engine's answer needs, because the stored one that was found cannot be used.

        Raises as :meth:`AdmissionController.admit` does.
        """
        if self.stored is not None:
            self.stored = None
            await self._admission.admit_unanswered(self)


class AdmissionController:
    """Limits, budgets and lookups. ``turns`` and ``cache`` may be one conversation; then both travel together."""

    def __init__(
        self,
        turns: RedisClient,
        cache: RedisClient,
        *,
        rank: Callable[[], GatewayRank] = GatewayRank,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """``rank``: which of the live gateways this is."""
        turns.register(ADMIT, EXTEND, SETTLE, CHARGE, RENEW, RESERVE, END_HOLD)
        self._redis = turns
        self._cache = cache
        self.patience_seconds = turns.timeout_seconds
        self._rank = rank
        self._local = LocalLimiter()
        self._renewal = LeaseRenewer(turns, lease_seconds)
        self._slices = BudgetReserve(
            turns, self._renewal, lambda: rank().gateways, round_seconds=lease_seconds / RENEWALS
        )

    async def admit(self, demand: AdmissionRequest) -> Reservation:
        """Take the request from every limit and budget and fetch its answer, all or nothing.

        Raises RateLimited, BadRequest for what no waiting helps, BudgetExceeded, Unavailable for a budget that cannot
        be asked.
        """
        plan = demand.caller.derived(LimitPlan.of, demand.model_name)
        if plan.closed is not None and demand.limited:
            raise rejections.limited(*plan.closed, rejections.CLOSED_MS)
        ticket = Reservation(self, demand, plan)
        asked = demand.cache_key
        if not plan.lines and not plan.budgets:
            if asked is not None:
                ticket.stored = await _found(self._cache.execute("GET", asked))
            return ticket
        # Sent before anything is awaited, so that both answers come at the same time.
        lookup = self._cache.execute("GET", asked) if asked is not None and self._cache is not self._redis else None
        await self._take(ticket, asked if lookup is None else None, requests=int(demand.limited))
        if lookup is not None:
            try:
                ticket.stored = await _found(lookup)
            except asyncio.CancelledError:
                ticket.settle(tokens=0, amount_pico=0)
                raise
        return ticket

    async def admit_unanswered(self, ticket: Reservation) -> None:
        """Take what a request needs beyond what a stored answer does. See :meth:`Reservation.miss`."""
        taken = ticket.taken
        if taken.reserved_pico:
            self._slices.release(taken.counters, taken.reserved_pico)
            taken.reserved_pico = 0
        if (ticket.plan.lines or ticket.plan.budgets) and not taken.runs:
            await self._take(ticket, None, requests=0, again=True)

    def settle(self, ticket: Reservation, tokens: int, amount_pico: int) -> None:
        """End a taken. See :meth:`Reservation.settle`."""
        demand, plan, taken = ticket.demand, ticket.plan, ticket.taken
        more = tokens - taken.tokens
        if taken.leases:
            self._renewal.closed(taken.leases, demand.request_id)
        if taken.local:
            self._local.settle(plan.lines, self._rank(), demand.request_id, tokens=more)
            more = 0
        if taken.reserved_pico:
            self._charge(ticket, amount_pico)
        if taken.counters and not taken.reserved_pico:
            said = _settling(plan, demand.request_id, more, str(amount_pico))
            missed = partial(self._end_later, plan, demand.request_id, amount_pico)
            self._redis.fire_script(SETTLE, *said, failed=missed)
        elif taken.leases or (more and plan.settle_arguments):
            self._redis.fire_script(SETTLE, *_settling(plan, demand.request_id, more, ""))

    async def extend(self, ticket: Reservation, hold_pico: int) -> None:
        """Hold more. See :meth:`Reservation.extend`."""
        taken, deadline = ticket.taken, time.monotonic() + self.patience_seconds
        try:
            outcome, which = await self._hold_more(ticket, hold_pico)
            if outcome == EXCEEDED and self._slices.give_back(taken.counters):
                outcome, which = await _within(self._hold_more(ticket, hold_pico), deadline)
        except RedisFailed:
            if not self._slices.spend(taken.counters, hold_pico):
                raise rejections.budget_unavailable(ticket.plan.budgets[0]) from None
            taken.reserved_pico += hold_pico
            return
        if outcome != ADMITTED:
            line = ticket.plan.budgets[which - 1]
            raise rejections.budget_exceeded(line) if outcome == EXCEEDED else rejections.budget_unknown(line)
        taken.held_pico += hold_pico

    def _hold_more(self, ticket: Reservation, hold_pico: int) -> ReplyFuture:
        keys, taken, request = ticket.plan.keys, ticket.taken, ticket.demand.request_id.hex
        begins = int(taken.local and not taken.held_pico)
        if begins:
            self._renewal.end_now(keys, ticket.demand.request_id)
        whole = taken.held_pico + hold_pico
        return self._redis.eval(
            EXTEND, 1, keys.holds, keys.counters, request, hold_pico, whole, begins, *taken.counters
        )

    def _charge(self, ticket: Reservation, amount_pico: int) -> None:
        """Have the budgets know what a request cost that spent slices; then the slices are whole again."""
        keys, taken, request_id = ticket.plan.keys, ticket.taken, ticket.demand.request_id
        arguments: tuple[Argument, ...] = (
            1,
            keys.holds,
            keys.counters,
            request_id.hex,
            str(amount_pico),
            *taken.counters,
        )
        heard = partial(self._slices.release, taken.counters, taken.reserved_pico)
        self._renewal.end(keys, request_id, EndScript(script=CHARGE, arguments=arguments, heard=heard))

    def close(self) -> None:
        """Give back what this process has set aside of budgets. The conversation must still be open."""
        self._slices.close()

    async def _take(self, ticket: Reservation, cache_key: str | None, *, requests: int, again: bool = False) -> None:
        """Take a ticket's taken. What is found under the key, or was before, takes requests and its price alone.

        ``again``: it has asked Redis before, and waits for what is left of its time.
        """
        demand, plan = ticket.demand, ticket.plan
        runs = ticket.stored is None and demand.tokens > 0
        held = demand.hold_pico if ticket.stored is None else demand.hit_pico
        priced = held > 0 or (cache_key is not None and demand.hit_pico > 0)
        counters = plan.counters(demand.request_id) if runs or priced else ()
        answer = self._ask(ticket, cache_key, counters, held, requests=requests, runs=runs)
        try:
            outcome, which, kind, wait_ms, found, *owed = await (_within(answer, ticket.deadline) if again else answer)
        except RedisFailed as failure:
            if (runs or counters) and not isinstance(failure, RedisNotSent):
                self._end_later(plan, demand.request_id, 0)  # it may be admitted there when Redis goes on
            self._take_here(ticket, counters, held, requests=requests, runs=runs)
            return
        except asyncio.CancelledError:
            # It may have been admitted, and nobody will settle it. Whether its tokens were taken is not known.
            if counters or (runs and plan.leased):
                self._redis.fire_script(SETTLE, *_settling(plan, demand.request_id, 0, "0"))
            raise
        if outcome == EXCEEDED and not again and self._slices.give_back(counters):
            await self._take(ticket, cache_key, requests=requests, again=True)
            return
        if outcome != ADMITTED:
            raise _refusal(plan, demand, outcome, which, kind, wait_ms)
        ticket.taken.owed = owed
        held = held if found is None else demand.hit_pico
        if counters and (found is None or held):
            ticket.taken.counters, ticket.taken.held_pico = counters, held
            self._slices.used(plan.keys, counters, held)
        if found is None:
            self._claimed(ticket, runs=runs)
        elif isinstance(found, bytes):
            ticket.stored = found
        else:
            assert cache_key is not None
            ticket.stored = await _found(_within(self._redis.execute("GET", cache_key), ticket.deadline))
            if ticket.stored is None:  # it has just expired
                await self._take(ticket, None, requests=0, again=True)

    def _ask(
        self,
        ticket: Reservation,
        cache_key: str | None,
        counters: tuple[str, ...],
        held: int,
        *,
        requests: int,
        runs: bool,
    ) -> ReplyFuture:
        demand, plan = ticket.demand, ticket.plan
        keys = (plan.keys.limits, plan.keys.holds, *((cache_key,) if cache_key is not None else ()))
        return self._redis.eval(
            ADMIT,
            len(keys),
            *keys,
            plan.keys.leases,
            plan.keys.counters,
            demand.request_id.hex,
            requests,
            min(demand.tokens, limit_plan.MOST_TOKENS) if runs else 0,
            int(not demand.limited),
            self._renewal.lease_ms if runs else 0,
            held,
            demand.hit_pico,
            *plan.admit_arguments,
            *counters,
        )

    def _take_here(
        self, ticket: Reservation, counters: tuple[str, ...], held: int, *, requests: int, runs: bool
    ) -> None:
        """Take a ticket's taken in this process. Raises RateLimited, Unavailable."""
        demand, plan = ticket.demand, ticket.plan
        if counters and not self._slices.spend(counters, held):
            raise rejections.budget_unavailable(plan.budgets[0])
        owed = self._local.take(
            plan.lines,
            self._rank(),
            demand.request_id,
            requests=requests,
            tokens=demand.tokens if runs else 0,
            leased=runs,
            forced=not demand.limited,
        )
        if isinstance(owed, Rejection):
            self._slices.release(counters, held)
            raise rejections.limited(owed.line, owed.kind, owed.wait_ms)
        taken = ticket.taken
        taken.owed, taken.local = owed, True
        taken.counters, taken.reserved_pico = counters, held if counters else 0
        self._claimed(ticket, runs=runs)

    def _claimed(self, ticket: Reservation, *, runs: bool) -> None:
        """Note the tokens and leases that the ticket has to give back."""
        demand, plan, taken = ticket.demand, ticket.plan, ticket.taken
        taken.runs, taken.tokens = runs, demand.tokens if runs else 0
        if runs and plan.leased:
            taken.leases = plan.leased
            self._renewal.opened(taken.leases, demand.request_id)

    def _end_later(self, plan: LimitPlan, request_id: UUID, amount_pico: int) -> None:
        """End a request's leases and its hold once Redis hears; whether it did already does not matter."""
        if plan.leased or plan.budgets:
            said = _settling(plan, request_id, 0, str(amount_pico))
            self._renewal.end_later(plan.keys, request_id, EndScript(script=SETTLE, arguments=said))


async def _within(answer: Awaitable[Any], deadline: float) -> Any:
    """Return the answer. Raises RedisFailed, also at the deadline: a request waits no longer for all it asks."""
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
            return await answer
    except TimeoutError:
        raise RedisUnavailable("it did not answer in time") from None


async def _found(lookup: Awaitable[Any]) -> bytes | None:
    try:
        found = await lookup
    except RedisFailed:
        return None
    return found if isinstance(found, bytes) else None


def _settling(plan: LimitPlan, request_id: UUID, more: int, cost: str) -> tuple[Argument, ...]:
    keys = plan.keys
    return (2, keys.limits, keys.holds, keys.leases, keys.counters, request_id.hex, more, cost, *plan.settle_arguments)


def _refusal(
    plan: LimitPlan, demand: AdmissionRequest, outcome: int, which: int, kind: int, wait_ms: int
) -> GatewayError:
    """Return what the script's outcome means for the caller."""
    if outcome == LIMITED:
        return rejections.limited(plan.lines[which - 1], limit_plan.KINDS[kind - 1], wait_ms)
    if outcome == TOO_LARGE:
        return rejections.too_large(plan.lines[which - 1], demand.tokens)
    line = plan.budgets[which - 1]
    return rejections.budget_exceeded(line) if outcome == EXCEEDED else rejections.budget_unknown(line)
