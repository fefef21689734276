"""Which limits and budgets bound a request, and what its answer says of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal
from uuid import UUID

from billing.budgets import holds
from gateway.admission.lua_scripts import UNITS
from gateway.redis_client.connection import Argument
from gateway.request import Headers
from tenants import keyspace, periods
from tenants.caller_limits import BudgetLine, LimitLine, Period
from tenants.ids import TenantId
from tenants.snapshot import Caller

Kind = Literal["requests", "tokens", "concurrency"]
KINDS: tuple[Kind, ...] = ("requests", "tokens", "concurrency")
#: More tokens a minute than this count as this: it is where buckets stay exact.
MOST_TOKENS = 10**11


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisKeys:
    """Where Redis keeps what bounds one tenant (see ``gateway.admission.lua_scripts``)."""

    limits: str
    holds: str
    #: What the keys of leases and of counters begin with.
    leases: str
    counters: str

    @classmethod
    def of(cls, tenant_id: TenantId) -> RedisKeys:
        """Return a tenant's."""
        return cls(
            limits=keyspace.tenant_key(tenant_id, "limits"),
            holds=holds.holds_key(tenant_id),
            leases=keyspace.tenant_key(tenant_id, "leases"),
            counters=holds.counter_prefix(tenant_id),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPlan:
    """What bounds one caller's requests to one model."""

    keys: RedisKeys
    lines: tuple[LimitLine, ...]
    budgets: tuple[BudgetLine, ...]
    #: Of the lines, as ADMIT and SETTLE take them.
    admit_arguments: tuple[Argument, ...]
    settle_arguments: tuple[Argument, ...]
    #: Keys of leases.
    leased: tuple[str, ...]
    #: A limit of zero, which nothing passes, and what of it is zero.
    closed: tuple[LimitLine, Kind] | None
    #: What answers are told of requests, and of tokens.
    gauges: tuple[tuple[RateLimitHeader, ...], tuple[RateLimitHeader, ...]]
    #: The names of counters in the minute since 1970 that was asked for last.
    _named: dict[int, tuple[str, ...]] = field(init=False, default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, caller: Caller, model_name: str) -> LimitPlan:
        """Return the plan of a caller for a model."""
        lines = tuple(line for line in caller.limits if line.model_name in {"", model_name})
        admit: list[Argument] = [len(lines)]
        settle: list[Argument] = []
        for line in lines:
            tokens = _argument(tokens_of(line))
            concurrent = _argument(line.concurrent_requests)
            admit += [line.id.hex, _argument(line.requests_per_minute), tokens, concurrent]
            if tokens != "-" or concurrent != "-":
                settle += [line.id.hex, tokens, int(concurrent != "-")]
        keys = RedisKeys.of(caller.tenant_id)
        return cls(
            keys=keys,
            lines=lines,
            budgets=tuple(each for each in caller.budgets if each.model_name in {"", model_name}),
            admit_arguments=tuple(admit),
            settle_arguments=tuple(settle),
            leased=tuple(keys.leases + line.id.hex for line in lines if line.concurrent_requests is not None),
            closed=next((found for line in lines if (found := _closed(line)) is not None), None),
            gauges=(_gauges(lines, "requests"), _gauges(lines, "tokens")),
        )

    def counters(self, request_id: UUID) -> tuple[str, ...]:
        """Return the names of the counters that a request draws from, by the moment that is in its id."""
        if not self.budgets:
            return ()
        minute = (request_id.int >> 80) // 60_000
        named = self._named.get(minute)
        if named is None:
            windows = [_window(each.period, each.timezone, minute) for each in self.budgets]
            named = tuple(holds.counter_name(each.id, at) for each, at in zip(self.budgets, windows, strict=True))
            self._named.clear()
            self._named[minute] = named
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitHeader:
    """One figure of a limit, as answers are told of it. ``at``: where a script says what is owed of it."""

    at: int
    limit: int
    scope: tuple[bytes, bytes]
    limit_told: tuple[bytes, bytes]
    remaining_name: bytes
    reset_name: bytes

    @classmethod
    def of(cls, line: LimitLine, kind: Kind, limit: int, *, at: int = 0) -> RateLimitHeader:
        """Return that of a limit's requests or tokens."""
        name = kind.encode()
        return cls(
            at=at,
            limit=limit,
            scope=scope_header(line),
            limit_told=(b"x-ratelimit-limit-" + name, b"%d" % limit),
            remaining_name=b"x-ratelimit-remaining-" + name,
            reset_name=b"x-ratelimit-reset-" + name,
        )

    def remaining(self, owed: int) -> int:
        """Return what is left of it, of which so many units are owed."""
        left = self.limit * UNITS - owed
        return left // UNITS if left > 0 else 0

    def headers(self, remaining: int, reset_ms: int) -> Headers:
        """Return the usual headers; the reset is in seconds with one decimal, as OpenAI writes it.

        ``reset_ms``: until all of it is there again, or what was refused would fit.
        """
        return [
            self.limit_told,
            (self.remaining_name, b"%d" % remaining),
            (self.reset_name, b"%d.%ds" % divmod(-(-reset_ms // 100), 10)),
        ]


def headers(plan: LimitPlan, owed: Sequence[int]) -> Headers:
    """Return what an admitted request is told: of requests and of tokens the limit that is nearest to refusing.

    That is the one of which the smallest share is left. ``owed`` has two numbers for each line, requests and tokens.
    The scope is that of the nearer of the two.
    """
    told: Headers = []
    scope, least = None, math.inf
    for gauges in plan.gauges:
        if not gauges:
            continue
        nearest = gauges[0]
        if len(gauges) > 1:
            nearest = min(gauges, key=lambda each: each.remaining(owed[each.at]) / each.limit if each.limit else 0.0)
        units, limit = owed[nearest.at], nearest.limit
        remaining = nearest.remaining(units)
        told += nearest.headers(remaining, -(-units // limit) if limit else 0)
        left = remaining / limit if limit else 0.0
        if left < least:
            scope, least = nearest.scope, left
    if scope is not None:
        told.append(scope)
    return told


def scope_header(line: LimitLine | BudgetLine) -> tuple[bytes, bytes]:
    """Return the header that names a limit or budget: whose it is, and of which model if of one."""
    return b"x-ratelimit-scope", f"{line.scope}:{line.model_name}".rstrip(":").encode()


def tokens_of(line: LimitLine) -> int | None:
    """Return its tokens a minute as they are counted."""
    return None if line.tokens_per_minute is None else min(line.tokens_per_minute, MOST_TOKENS)


@lru_cache(maxsize=4096)
def _window(period: Period, timezone: str, minute: int) -> int:
    """Return when the period around a minute since 1970 began; zones begin their days with one."""
    return periods.begins(period, timezone, datetime.fromtimestamp(minute * 60, UTC))


def _gauges(lines: Sequence[LimitLine], kind: Literal["requests", "tokens"]) -> tuple[RateLimitHeader, ...]:
    figures = [line.requests_per_minute if kind == "requests" else tokens_of(line) for line in lines]
    return tuple(
        RateLimitHeader.of(line, kind, figure, at=2 * number + (kind == "tokens"))
        for number, (line, figure) in enumerate(zip(lines, figures, strict=True))
        if figure is not None
    )


def _closed(line: LimitLine) -> tuple[LimitLine, Kind] | None:
    figures = (line.requests_per_minute, line.tokens_per_minute, line.concurrent_requests)
    return next(((line, kind) for kind, figure in zip(KINDS, figures, strict=True) if figure == 0), None)


def _argument(figure: int | None) -> Argument:
    return "-" if figure is None else figure
