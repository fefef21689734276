"""Admit a request to all its limits and budgets, and look up its stored response, in one round trip to Redis.

All or nothing: a rejection takes nothing. A request waits for Redis for the client's timeout at most, however many
commands it needs. While Redis is unavailable each gateway admits its share of the limits
(``gateway.admission.local_limiter``) and lookups find nothing.
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
    UNKNOWN,
)
from gateway.admission.used_up_limits import UsedUpLimits
from gateway.errors import GatewayError
from gateway.redis_client.client import RedisClient, ReplyFuture
from gateway.redis_client.connection import Argument, RedisFailed, RedisNotSent, RedisUnavailable
from gateway.request import Headers
from tenants.caller_limits import BudgetLine
from tenants.snapshot.snapshot import Caller

#: Redis and the process's reserve are both unable to extend a hold. No outcome of a script.
UNAVAILABLE = -4
#: Between two tries to extend a hold: counters are counted again within half a second, as a rule.
EXTEND_RETRY_SECONDS = 0.25


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one request needs. ``limited`` False: the limits have counted it already."""

    caller: Caller
    model_name: str
    request_id: UUID
    #: An estimate of prompt and completion, corrected by :meth:`Reservation.settle`.
    tokens: int
    #: The most that it can cost until :meth:`Reservation.extend`; 0 without a hard budget.
    hold_pico: int
    #: The Redis key of its stored response; None without a lookup.
    cache_key: str | None
    #: The price of the stored response, held instead if that is found.
    hit_pico: int = 0
    limited: bool = True


class _Taken(msgspec.Struct, kw_only=True, eq=False):
    """What an admitted request has taken and must give back."""

    #: It has taken what an engine's response needs; else one request and the price of a cache hit.
    runs: bool = False
    tokens: int = 0
    held_pico: int = 0
    #: Taken from the reserves of this process, because Redis was unavailable.
    reserved_pico: int = 0
    counters: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    #: Counted in this process, because Redis was unavailable.
    local: bool = False
    owed: list[int] = msgspec.field(default_factory=list)


class _NotExtended(msgspec.Struct, frozen=True, kw_only=True):
    """Why a hold was not extended: the outcome of EXTEND, or UNAVAILABLE; and the budget."""

    outcome: int
    line: BudgetLine

    def error(self) -> GatewayError:
        """Return the error that the client gets."""
        if self.outcome == UNAVAILABLE:
            return rejections.budget_unavailable(self.line)
        return _budget_error(self.outcome, self.line)


class Reservation:
    """What an admitted request has of its limits and budgets, until :meth:`settle`."""

    def __init__(self, admission: AdmissionController, request: AdmissionRequest, plan: LimitPlan) -> None:
        #: The sealed stored response, if the lookup found one.
        self.stored: bytes | None = None
        self.request = request
        self.plan = plan
        self.taken = _Taken()
        #: For all commands that admit it, monotonic seconds.
        self.deadline = time.monotonic() + admission.patience_seconds
        self._admission = admission
        self._settled = False
        #: Since when extensions have found no counter to take from, monotonic seconds.
        self._unknown_since: float | None = None

    def headers(self) -> Headers:
        """Return the ``x-ratelimit-*`` headers of the limits nearest to rejecting."""
        return limit_plan.headers(self.plan, self.taken.owed) if self.taken.owed else []

    def settle(self, *, tokens: int, amount_pico: int) -> None:
        """Replace what was reserved by what was used, without waiting for Redis. Idempotent."""
        if not self._settled:
            self._settled = True
            self._admission.settle(self, tokens, amount_pico)

    async def extend(self, *, hold_pico: int, patience_seconds: float = 0.0) -> None:
        """Hold ``hold_pico`` more. Raises BudgetExceeded, Unavailable.

        While what is left of a budget is unknown, it tries again for up to ``patience_seconds`` in a row.
        """
        while self.taken.counters and not self._settled:
            refused = await self._admission.extend(self, hold_pico)
            if refused is None:
                self._unknown_since = None
                return
            now = time.monotonic()
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            if refused.outcome == EXCEEDED or now - self._unknown_since >= patience_seconds:
                raise refused.error()
            await asyncio.sleep(EXTEND_RETRY_SECONDS)

    async def take_for_engine(self) -> None:
        """Take what an engine's response needs, because the stored response cannot be used.

        Raises as :meth:`AdmissionController.admit` does.
        """
        if self.stored is not None:
            self.stored = None
            await self._admission.admit_for_engine(self)


class AdmissionController:
    """Limits, budgets and lookups. ``redis`` and ``cache`` may be one client; then one script serves both."""

    def __init__(
        self,
        redis: RedisClient,
        cache: RedisClient,
        *,
        rank: Callable[[], GatewayRank] = GatewayRank,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """``rank`` returns the position of this process among the running gateways."""
        redis.register(ADMIT, EXTEND, SETTLE, CHARGE, RENEW, RESERVE, END_HOLD)
        self._redis = redis
        self._cache = cache
        self.patience_seconds = redis.timeout_seconds
        self._rank = rank
        self._local = LocalLimiter()
        self._used_up = UsedUpLimits()
        self._renewer = LeaseRenewer(redis, lease_seconds)
        self._reserves = BudgetReserve(
            redis, self._renewer, lambda: rank().gateways, round_seconds=lease_seconds / RENEWALS
        )

    def refuse_early(self, caller: Caller) -> None:
        """Raise RateLimited if a limit for all models is 0, or was used up a moment ago. Takes nothing.

        It reads only this process's memory, so it may let pass what :meth:`admit` rejects, but not the opposite.
        """
        plan = caller.derived(LimitPlan.of, "")
        if plan.closed is not None:
            raise rejections.limited(*plan.closed, rejections.CLOSED_MS)
        self._used_up.check(plan.lines)

    async def admit(self, request: AdmissionRequest) -> Reservation:
        """Take the request from every limit and budget, or from none, and look up its stored response.

        Raises RateLimited, BadRequest if no retry helps, BudgetExceeded, Unavailable if a budget cannot be checked.
        """
        plan = request.caller.derived(LimitPlan.of, request.model_name)
        if plan.closed is not None and request.limited:
            raise rejections.limited(*plan.closed, rejections.CLOSED_MS)
        reservation = Reservation(self, request, plan)
        key = request.cache_key
        if not plan.lines and not plan.budgets:
            if key is not None:
                reservation.stored = await _found(self._cache.execute("GET", key))
            return reservation
        # Sent before any ``await``, so that both replies arrive at the same time.
        lookup = self._cache.execute("GET", key) if key is not None and self._cache is not self._redis else None
        await self._take(reservation, key if lookup is None else None, requests=int(request.limited))
        if lookup is not None:
            try:
                reservation.stored = await _found(lookup)
            except asyncio.CancelledError:
                reservation.settle(tokens=0, amount_pico=0)
                raise
        return reservation

    async def admit_for_engine(self, reservation: Reservation) -> None:
        """See :meth:`Reservation.take_for_engine`."""
        taken = reservation.taken
        if taken.reserved_pico:
            self._reserves.release(taken.counters, taken.reserved_pico)
            taken.reserved_pico = 0
        if (reservation.plan.lines or reservation.plan.budgets) and not taken.runs:
            await self._take(reservation, None, requests=0, again=True)

    def settle(self, reservation: Reservation, tokens: int, amount_pico: int) -> None:
        """See :meth:`Reservation.settle`."""
        request, plan, taken = reservation.request, reservation.plan, reservation.taken
        more = tokens - taken.tokens
        if taken.leases:
            self._renewer.remove(taken.leases, request.request_id)
        if taken.local:
            self._local.settle(plan.lines, self._rank(), request.request_id, tokens=more)
            more = 0
        if taken.reserved_pico:
            self._charge(reservation, amount_pico)
        if taken.counters and not taken.reserved_pico:
            arguments = _settle_arguments(plan, request.request_id, more, str(amount_pico))
            missed = partial(self._end_later, plan, request.request_id, amount_pico)
            self._redis.fire_script(SETTLE, *arguments, failed=missed)
        elif taken.leases or (more and plan.settle_arguments):
            self._redis.fire_script(SETTLE, *_settle_arguments(plan, request.request_id, more, ""))

    async def extend(self, reservation: Reservation, hold_pico: int) -> _NotExtended | None:
        """Hold more for a request; return why not, or None if it was done."""
        taken, deadline = reservation.taken, time.monotonic() + self.patience_seconds
        server = self._redis.server
        try:
            outcome, which = await self._hold_more(reservation, hold_pico)
            if self._may_succeed_now(outcome, taken.counters, server):
                outcome, which = await _within(self._hold_more(reservation, hold_pico), deadline)
        except RedisFailed:
            if not self._reserves.spend(taken.counters, hold_pico):
                return _NotExtended(outcome=UNAVAILABLE, line=reservation.plan.budgets[0])
            taken.reserved_pico += hold_pico
            return None
        if outcome != ADMITTED:
            return _NotExtended(outcome=outcome, line=reservation.plan.budgets[which - 1])
        taken.held_pico += hold_pico
        return None

    def _hold_more(self, reservation: Reservation, hold_pico: int) -> ReplyFuture:
        keys, taken, request_id = reservation.plan.keys, reservation.taken, reservation.request.request_id
        server = self._redis.server
        begins = int(taken.local and not taken.held_pico)
        if begins:
            self._renewer.end_now(keys, request_id)
        whole = taken.held_pico + hold_pico
        return self._redis.eval(
            EXTEND, 1, keys.holds, keys.counters, request_id.hex, hold_pico, whole, begins, server, *taken.counters
        )

    def _charge(self, reservation: Reservation, amount_pico: int) -> None:
        """Charge a request that spent reserves to its budgets, then refill the reserves."""
        keys, taken, request_id = reservation.plan.keys, reservation.taken, reservation.request.request_id
        arguments: tuple[Argument, ...] = (
            1,
            keys.holds,
            keys.counters,
            request_id.hex,
            str(amount_pico),
            *taken.counters,
        )
        on_reply = partial(self._reserves.release, taken.counters, taken.reserved_pico)
        self._renewer.end(keys, request_id, EndScript(script=CHARGE, arguments=arguments, on_reply=on_reply))

    def close(self) -> None:
        """Give back the budget reserves of this process. Redis must still be open."""
        self._reserves.close()

    async def _take(
        self, reservation: Reservation, cache_key: str | None, *, requests: int, again: bool = False
    ) -> None:
        """Take what a request needs, in Redis or, if that is unavailable, in this process.

        With a stored response that is one request and the price of a hit. ``again``: the request has waited for Redis
        before, and waits until its deadline at most.
        """
        request, plan = reservation.request, reservation.plan
        runs = reservation.stored is None and request.tokens > 0
        held = request.hold_pico if reservation.stored is None else request.hit_pico
        priced = held > 0 or (cache_key is not None and request.hit_pico > 0)
        counters = plan.counters(request.request_id) if runs or priced else ()
        server = self._redis.server
        reply = self._run_admit(reservation, cache_key, counters, held, requests=requests, runs=runs)
        try:
            outcome, which, kind, wait_ms, found, *owed = await (
                _within(reply, reservation.deadline) if again else reply
            )
        except RedisFailed as failure:
            if (runs or counters) and not isinstance(failure, RedisNotSent):
                self._end_later(plan, request.request_id, 0)  # Redis may still run the script
            self._take_locally(reservation, counters, held, requests=requests, runs=runs)
            return
        except asyncio.CancelledError:
            # Redis may have admitted the request. Its tokens are not corrected: whether they were taken is unknown.
            if counters or (runs and plan.leased):
                self._redis.fire_script(SETTLE, *_settle_arguments(plan, request.request_id, 0, "0"))
            raise
        if not again and self._may_succeed_now(outcome, counters, server):
            await self._take(reservation, cache_key, requests=requests, again=True)
            return
        if outcome != ADMITTED:
            if outcome == LIMITED and limit_plan.KINDS[kind - 1] == "requests":
                self._used_up.add(plan.lines[which - 1], wait_ms)
            raise _rejection(plan, request, outcome, which, kind, wait_ms)
        reservation.taken.owed = owed
        held = held if found is None else request.hit_pico
        if counters and (found is None or held):
            reservation.taken.counters, reservation.taken.held_pico = counters, held
            self._reserves.record(plan.keys, counters, held)
        if found is None:
            self._record_taken(reservation, runs=runs)
        elif isinstance(found, bytes):
            reservation.stored = found
        else:
            assert cache_key is not None
            reservation.stored = await _found(_within(self._redis.execute("GET", cache_key), reservation.deadline))
            if reservation.stored is None:  # it has just expired
                await self._take(reservation, None, requests=0, again=True)

    def _may_succeed_now(self, outcome: int, counters: tuple[str, ...], server: bytes) -> bool:
        """Return whether a refusal had a cause that is gone. ``server``: what the script got as the server."""
        if outcome == UNKNOWN:
            return server != self._redis.server  # it was sent before the connection had said it
        return outcome == EXCEEDED and self._reserves.give_back(counters)

    def _run_admit(
        self,
        reservation: Reservation,
        cache_key: str | None,
        counters: tuple[str, ...],
        held: int,
        *,
        requests: int,
        runs: bool,
    ) -> ReplyFuture:
        request, plan = reservation.request, reservation.plan
        keys = (plan.keys.limits, plan.keys.holds, *((cache_key,) if cache_key is not None else ()))
        return self._redis.eval(
            ADMIT,
            len(keys),
            *keys,
            plan.keys.leases,
            plan.keys.counters,
            request.request_id.hex,
            requests,
            min(request.tokens, limit_plan.MAX_TOKENS) if runs else 0,
            int(not request.limited),
            self._renewer.lease_ms if runs else 0,
            held,
            request.hit_pico,
            self._redis.server,
            *plan.admit_arguments,
            *counters,
        )

    def _take_locally(
        self, reservation: Reservation, counters: tuple[str, ...], held: int, *, requests: int, runs: bool
    ) -> None:
        """Take what a request needs in this process. Raises RateLimited, Unavailable."""
        request, plan = reservation.request, reservation.plan
        if counters and not self._reserves.spend(counters, held):
            raise rejections.budget_unavailable(plan.budgets[0])
        owed = self._local.take(
            plan.lines,
            self._rank(),
            request.request_id,
            requests=requests,
            tokens=request.tokens if runs else 0,
            leased=runs,
            forced=not request.limited,
        )
        if isinstance(owed, Rejection):
            self._reserves.release(counters, held)
            raise rejections.limited(owed.line, owed.kind, owed.wait_ms)
        taken = reservation.taken
        taken.owed, taken.local = owed, True
        taken.counters, taken.reserved_pico = counters, held if counters else 0
        self._record_taken(reservation, runs=runs)

    def _record_taken(self, reservation: Reservation, *, runs: bool) -> None:
        """Record the tokens and leases that the request must give back."""
        request, plan, taken = reservation.request, reservation.plan, reservation.taken
        taken.runs, taken.tokens = runs, request.tokens if runs else 0
        if runs and plan.leased:
            taken.leases = plan.leased
            self._renewer.add(taken.leases, request.request_id)

    def _end_later(self, plan: LimitPlan, request_id: UUID, amount_pico: int) -> None:
        """End a request's leases and hold in the next round, in case Redis missed that."""
        if plan.leased or plan.budgets:
            arguments = _settle_arguments(plan, request_id, 0, str(amount_pico))
            self._renewer.end_later(plan.keys, request_id, EndScript(script=SETTLE, arguments=arguments))


async def _within(answer: Awaitable[Any], deadline: float) -> Any:
    """Return the reply. Raises RedisFailed, also at the deadline."""
    try:
        async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
            return await answer
    except TimeoutError:
        raise RedisUnavailable("no reply in time") from None


async def _found(lookup: Awaitable[Any]) -> bytes | None:
    try:
        found = await lookup
    except RedisFailed:
        return None
    return found if isinstance(found, bytes) else None


def _settle_arguments(plan: LimitPlan, request_id: UUID, more: int, cost: str) -> tuple[Argument, ...]:
    keys = plan.keys
    return (2, keys.limits, keys.holds, keys.leases, keys.counters, request_id.hex, more, cost, *plan.settle_arguments)


def _rejection(
    plan: LimitPlan, request: AdmissionRequest, outcome: int, which: int, kind: int, wait_ms: int
) -> GatewayError:
    """Return the error for an outcome of ADMIT."""
    if outcome == LIMITED:
        return rejections.limited(plan.lines[which - 1], limit_plan.KINDS[kind - 1], wait_ms)
    if outcome == TOO_LARGE:
        return rejections.too_large(plan.lines[which - 1], request.tokens)
    return _budget_error(outcome, plan.budgets[which - 1])


def _budget_error(outcome: int, line: BudgetLine) -> GatewayError:
    return rejections.budget_exceeded(line) if outcome == EXCEEDED else rejections.budget_unknown(line)
